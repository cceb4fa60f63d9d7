"""Opening model libraries, so that every file is opened once and released after its last user."""

import _ctypes
import ctypes
import os
import platform
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rutc.runtime.artifact import open_artifact, parsed_manifest, programs_of
from rutc.runtime.c_interface import (
    ABI_VERSION,
    EntryPoints,
    KeepingEntryPoint,
    Options,
    StateEntryPoints,
    TargetEntryPoints,
)
from rutc.runtime.errors import ModelError
from rutc.runtime.forks import Locked
from rutc.runtime.objects import Objects
from rutc.runtime.weights_file import Given

FileId = tuple[int, int]

_MISSING: Final = (AttributeError, UnicodeDecodeError)
"""How ctypes tells that a function is missing: the path, in its message, may be no UTF-8."""

_locked: Final = Locked()
_libraries: Final[dict[FileId, "Library"]] = {}
_ended: Final[deque["Library"]] = deque()
"""A library for each use that has ended and is still counted."""


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
            why = str(error).removeprefix(f"{spelling}: ")
            raise ModelError(f"cannot load {path}: {why}") from error
        try:
            self.entries = _entry_points(path, self._handle)
            self.manifest = parsed_manifest(path, self.entries.manifest())
            self.objects = _exchange(self._handle)
            self.keeping = _keeping_entry_point(self._handle)
            self.states = _state_entry_points(self._handle)
            self._targets = _target_entry_points(self._handle)
        except ModelError:
            _ctypes.dlclose(self._handle._handle)
            raise

    def open(self, options: Options, target: str | None) -> tuple[int, Mapping[str, object]]:
        """Returns a session, and the manifest of the target that it runs, None: the best one.

        Raises:
            ModelError: the library has no such target, or opens no session.
        """
        if self._targets is None:
            only = self.manifest.get("target")
            if target is not None and target != only:
                raise ModelError(f"{self.path} has no target {target!r}: it has {only}")
            handle = self.entries.open(ctypes.byref(options))
        else:
            asked = None if target is None else target.encode()
            handle = self._targets.open(ctypes.byref(options), asked)
        if not handle:
            message = self.entries.last_error(None).decode(errors="replace")
            raise ModelError(f"cannot open {self.path}: {message}")
        if self._targets is None:
            return handle, self.manifest
        name = self._targets.name(handle).decode(errors="replace")
        own = (m for m in programs_of(self.manifest) if m.get("target") == name)
        return handle, next(own, self.manifest)

    def release(self) -> None:
        """Ends one use; after the last one the library leaves the process."""
        _ended.append(self)
        _count_ended()

    def end_use(self) -> None:
        """Counts a use that has ended; the caller has the lock."""
        self.users -= 1
        if self.users == 0:
            del _libraries[self._file_id]
            _ctypes.dlclose(self._handle._handle)


def open_library(
    path: str | os.PathLike[str], *, check_integrity: bool = False, weights: Given | None = None
) -> Library:
    """Returns the library of a file, opened anew or shared; call its `release` when done.

    Weights are given where they are to be checked, too, and are not those beside it.

    Raises:
        ModelError: the file does not exist, is not whole, is no model that this runtime can run, or
            has changed since it was compiled: its weights only if that is to be found out.
    """
    artifact = open_artifact(Path(os.path.abspath(path)))
    with artifact.file:
        file = artifact.path
        if artifact.machine != platform.machine():
            raise ModelError(
                f"{file} is for {artifact.machine} processors, and this one is {platform.machine()}"
            )
        if check_integrity:
            artifact.check_integrity(weights)
        status = os.fstat(artifact.file.fileno())
        file_id = (status.st_dev, status.st_ino)
        try:
            with _locked.alone():
                library = _libraries.get(file_id)
                if library is None:
                    if not check_integrity:
                        artifact.check_code()
                    library = Library(file, _unused_spelling(file), file_id)
                    _libraries[file_id] = library
                library.users += 1
                return library
        finally:
            _count_ended()


def _count_ended() -> None:
    """Counts the uses that have ended, unless someone has the lock, who does so afterwards.

    That may be this very thread: sessions are also closed where garbage is collected, at any time.
    """
    while _ended and not _locked.lock._is_owned() and _locked.lock.acquire(blocking=False):
        try:
            while _ended:
                _ended.popleft().end_use()
        finally:
            _locked.lock.release()


def _exchange(handle: ctypes.CDLL) -> Objects | None:
    """Returns what exchanges Python's objects; None where the library has none of them."""
    try:
        return Objects(handle)
    except _MISSING:
        return None


def _keeping_entry_point(handle: ctypes.CDLL) -> KeepingEntryPoint | None:
    """Returns what hands memory of outputs over; None where the library has none of it."""
    try:
        return KeepingEntryPoint(handle, _prefix(handle))
    except _MISSING:
        return None


def _state_entry_points(handle: ctypes.CDLL) -> StateEntryPoints | None:
    """Returns what reads and sets states; None where the library has none of them."""
    try:
        return StateEntryPoints(handle, _prefix(handle))
    except _MISSING:
        return None


def _target_entry_points(handle: ctypes.CDLL) -> TargetEntryPoints | None:
    """Returns what chooses one of several targets; None where the library has one."""
    try:
        return TargetEntryPoints(handle, _prefix(handle))
    except _MISSING:
        return None


def _prefix(handle: ctypes.CDLL) -> str:
    """Returns what the names of the entry points begin with."""
    # An array of characters in the library: its first is at the symbol's address.
    address = ctypes.addressof(ctypes.c_char.in_dll(handle, "rutc_artifact_prefix"))
    return ctypes.string_at(address).decode()


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
        entries = EntryPoints(handle, _prefix(handle))
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} is a shared library, but no model compiled by rutc") from error
    version = entries.abi_version()
    if version != ABI_VERSION:
        raise ModelError(
            f"{path} has version {version} of rutc's interface and this runtime knows version "
            f"{ABI_VERSION}: compile the model again, or install the rutc that compiled it"
        )
    return entries
