"""Opening model libraries, so that every file is opened once and released after its last user."""

import _ctypes
import ctypes
import json
import os
import platform
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rutc.runtime.errors import ModelError
from rutc.runtime.interface import ABI_VERSION, EntryPoints

FileId = tuple[int, int]

ELF_MACHINES: Final[Mapping[int, str]] = {62: "x86_64", 183: "aarch64"}
"""The names that the operating system has for the values of `e_machine` (ELF-64, System V ABI)."""

_lock: Final = threading.Lock()
_libraries: Final[dict[FileId, "Library"]] = {}


class Library:
    """An opened model library; `open_library` makes them."""

    def __init__(self, path: Path, spelling: str, file_id: FileId) -> None:
        self.path = path
        self.spelling = spelling
        self.users = 0
        self._file_id = file_id
        try:
            self._handle = ctypes.CDLL(spelling)
        except OSError as error:
            made_for = _machine(path)
            if made_for not in (None, platform.machine()):
                raise ModelError(
                    f"{path} is for {made_for} processors, and this one is {platform.machine()}"
                ) from error
            raise ModelError(f"cannot load {path}: {error}") from error
        try:
            self.entries = _entry_points(path, self._handle)
            self.manifest = _manifest(path, self.entries)
        except ModelError:
            _ctypes.dlclose(self._handle._handle)
            raise

    def release(self) -> None:
        """Ends one use; after the last one the library leaves the process."""
        with _lock:
            self.users -= 1
            if self.users == 0:
                del _libraries[self._file_id]
                _ctypes.dlclose(self._handle._handle)


def open_library(path: str | os.PathLike[str]) -> Library:
    """Returns the library of a file, opened anew or shared; call its `release` when done.

    Raises:
        ModelError: the file does not exist, or is no model that this runtime can run.
    """
    file = Path(os.path.abspath(path))
    try:
        status = file.stat()
    except OSError as error:
        raise ModelError(f"cannot load {file}: {error.strerror}") from error
    file_id = (status.st_dev, status.st_ino)
    with _lock:
        library = _libraries.get(file_id)
        if library is None:
            library = Library(file, _unused_spelling(file), file_id)
            _libraries[file_id] = library
        library.users += 1
        return library


def _machine(path: Path) -> str | None:
    """Returns the processor family that a library is for; None where it is none, or unknown."""
    with path.open("rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return None
    return ELF_MACHINES.get(int.from_bytes(header[18:20], "little"))


def _unused_spelling(file: Path) -> str:
    """Returns a path of the file that no opened library was opened by.

    The dynamic loader takes equal paths for the same library, also when the file at that path
    has been replaced by another.
    """
    used = {library.spelling for library in _libraries.values()}
    spelling = str(file)
    while spelling in used:
        spelling = os.path.join(os.path.dirname(spelling), ".", file.name)
    return spelling


def _entry_points(path: Path, handle: ctypes.CDLL) -> EntryPoints:
    try:
        # An array of characters in the library: its first is at the symbol's address.
        address = ctypes.addressof(ctypes.c_char.in_dll(handle, "rutc_artifact_prefix"))
        entries = EntryPoints(handle, ctypes.string_at(address).decode())
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} is a shared library, but no model compiled by rutc") from error
    version = entries.abi_version()
    if version != ABI_VERSION:
        raise ModelError(
            f"{path} has version {version} of rutc's interface and this runtime knows version "
            f"{ABI_VERSION}: compile the model again, or install the rutc that compiled it"
        )
    return entries


def _manifest(path: Path, entries: EntryPoints) -> Mapping[str, object]:
    try:
        manifest = json.loads(entries.manifest())
    except ValueError as error:
        raise ModelError(f"the manifest in {path} is damaged: {error}") from error
    if not isinstance(manifest, dict):
        raise ModelError(f"the manifest in {path} is damaged: it is no JSON object")
    return manifest
