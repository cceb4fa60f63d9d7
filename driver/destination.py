"""Where an artifact goes: to its destination if it agrees, else to a folder beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rutc.base.files import (
    COMPANIONS,
    ELF,
    Workplace,
    cannot_write,
    check_folder,
    check_replaceable,
    check_writable,
    make_folder,
    shown,
)
from rutc.driver.options import Report
from rutc.errors import UserError

UNVERIFIED = ".unverified"
"""The suffix of the folder of what does not agree with ONNX Runtime."""


def check_destination(output: Path, source: Path) -> Path:
    """Returns the output path if files can be written there, and none of them is the model."""
    check_writable(output)
    companions = [output.with_suffix(suffix) for suffix in COMPANIONS]
    if output in {*companions, unverified_folder(output)}:
        raise UserError(f"cannot write the model to {shown(output)}: choose a name ending in .so")
    for path in (output, *companions):
        check_replaceable(path)
        if path.exists() and source.exists() and path.samefile(source):
            written = path != output and output.exists()
            if _is_library(source):
                instead = "the model that it was compiled from"
            else:
                instead = "the model that it was written for" if written else "another name with -o"
            raise UserError(
                f"cannot write {shown(path)}: it is the file to compile itself; give {instead}"
            )
    check_folder(unverified_folder(output))
    return output


def _is_library(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(ELF)) == ELF


@contextmanager
def bundle_folder(folder: Path, output: Path | None) -> Iterator[None]:
    """Makes a folder for a library and its loader, which an error takes away again if it is empty.

    Raises:
        UserError: the folder cannot be, or the library is to go elsewhere.
    """
    check_folder(folder)
    if output is not None and output.absolute().parent != folder.absolute():
        raise UserError(
            f"--bundle {shown(folder)} is where the library goes: leave out -o {shown(output)}, or "
            "name a file in that folder"
        )
    new = not folder.exists()
    make_folder(folder)
    try:
        yield
    except BaseException:
        if new and not any(folder.iterdir()):
            folder.rmdir()
        raise


def unverified_folder(destination: Path) -> Path:
    """The folder for what does not agree with ONNX Runtime."""
    return destination.with_name(f"{destination.stem}{UNVERIFIED}")


def publish(
    place: Workplace, report: Report, destination: Path, folder: Path | None = None
) -> Report:
    """Moves an artifact to a folder, or to that around its temporary one, the library last."""
    try:
        place.publish(folder)
    except OSError as error:
        raise cannot_write(destination, error) from error
    return replace(
        report,
        library=destination,
        header=destination.with_name(report.header.name),
        weights=None if report.weights is None else destination.with_name(report.weights.name),
    )


def keep_unverified(place: Workplace, report: Report, destination: Path) -> Path:
    """Returns the library after moving an artifact to a folder that says what it is."""
    folder = unverified_folder(destination)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return publish(place, report, folder / destination.name, folder).library
