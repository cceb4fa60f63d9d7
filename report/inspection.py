"""What `rutc inspect` shows, be it of an artifact or of a model."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import RenderableType

from rutc.base.files import ELF, write_file
from rutc.errors import UserError
from rutc.tensor_ir.indices.affine import quoted
from rutc.tensor_ir.indices.ranges import Range, common_size, limits_text, multiple

LIBRARY_MAGIC = (ELF, b"\xcf\xfa\xed\xfe", b"MZ")
Shown = tuple[dict[str, object], list[RenderableType]]
"""What `--json` prints, and what a reader sees."""


def is_library(path: Path) -> bool:
    """Tells a shared library from a model by its first bytes.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "no regular file"
            raise UserError(f"cannot read {path}: it is {kind}")
        with path.open("rb") as file:
            return file.read(4).startswith(LIBRARY_MAGIC)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def write_page(page: Path, told: bytes, payload: dict[str, object]) -> str:
    """Writes a page, and returns a line that says so."""
    write_file(page, told)
    payload["page"] = page
    return f"{page}: open it in a browser"


def open_sizes(sizes: Mapping[str, Range]) -> list[str]:
    """A line on the sizes that a run chooses, if there are some."""
    each = [
        f"{quoted(name)} ({limits_text(limits, step)}, planned for {step * common_size(limits)})"
        for (name, step), limits in ((multiple(s), limits) for s, limits in sizes.items())
    ]
    return [f"sizes that a run chooses: {', '.join(each)}"] if each else []
