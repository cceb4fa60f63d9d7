"""Files that appear complete or not at all, and what is temporary on the way there.

    .rutc-0123456789abcdef            a file or folder of a process that runs, or was killed
    .rutc-0123456789abcdef.publish    a folder whose files are being moved to the folder around it

Their owner holds a lock on them (`flock`), which the system takes from a process that ends in
whatever way. `sweep` removes what nobody holds, and finishes what was being published.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from rutc.base.interrupts import uninterrupted
from rutc.errors import UserError

TEMPORARY = re.compile(r"\.rutc-[0-9a-f]{16}(\.publish)?")
PUBLISHING = ".publish"
COMPANIONS = (".h", ".weights")
"""The suffixes of what may appear beside a library, in whose place it is moved last."""
ELF = b"\x7fELF"
"""The first bytes of a library, as of all that is in this format."""
ATTEMPTS, PAUSE_S = 20, 0.01

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_replaceable(path: Path) -> None:
    """Checks that there is nothing at a path, or a file that may be replaced.

    Symbolic links are not followed: what they lead to was not named.

    Raises:
        UserError: there is a directory, a link, a device, a pipe or a socket, or no such name.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error
    for matches, kind in _KINDS:
        if matches(mode):
            raise UserError(
                f"cannot write {shown(path)}: it is {kind}, and only regular files are replaced; "
                "give another file name"
            )


def check_writable(path: Path) -> None:
    """Checks that a file can be created or replaced at a path.

    Raises:
        UserError: there is something else than a file, or its folder is missing or not writable.
    """
    folder = path.parent
    check_replaceable(path)
    if not folder.is_dir():
        raise UserError(f"cannot write {shown(path)}: there is no directory {shown(folder)}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write {shown(path)}: the directory {shown(folder)} is not writable"
        )


def check_folder(path: Path) -> None:
    """Checks that a path is that of a folder, or of nothing.

    Raises:
        UserError: there is something else.
    """
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return
    except FileNotFoundError:
        if not path.is_symlink():
            return
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error
    raise UserError(
        f"cannot write the folder {shown(path)}: there is something else of that name; "
        "remove it or give another name"
    )


def cannot_write(path: Path, error: Exception) -> UserError:
    """The error of a file that the system does not let be written."""
    return UserError(f"cannot write {shown(path)}: {_why(error)}")


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shown(path: Path) -> str:
    """A path as it stands in messages: where a file is to get in the end, and only what shows."""
    text = str(Path(*[part for part in path.parts if not TEMPORARY.fullmatch(part)]))
    return text if text.isprintable() else repr(text)


def write_file(path: Path, data: bytes) -> None:
    """Writes a file for the user, complete or not at all.

    Raises:
        UserError: it cannot be written, or there is something else than a file.
    """
    check_replaceable(path)
    try:
        write_atomically(path, data)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error


def make_folder(path: Path) -> None:
    """Makes a folder for the user, and those around it, where there is none.

    Raises:
        UserError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot make the folder {shown(path)}: {_why(error)}") from error


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file that other processes see either not at all or complete."""
    with temporary_file(path.parent, mode) as (file, temporary):
        rest = memoryview(data)
        while len(rest) > 0:
            rest = rest[os.write(file, rest) :]
        temporary.replace(path)


@contextmanager
def temporary_file(folder: Path, mode: int = 0o666) -> Iterator[tuple[int, Path]]:
    """A new file that is open for reading and writing, removed at the end if it is still there."""
    path, file = folder, -1
    try:
        with uninterrupted():
            path, file = _claimed_file(folder, mode)
        yield file, path
    finally:
        with uninterrupted():
            if file >= 0:
                path.unlink(missing_ok=True)
                os.close(file)


class Workplace:
    """A new folder in a folder, removed at the end of the `with` with all that it holds."""

    def __init__(self, parent: Path | None = None) -> None:
        """Take the folder around it; None: that for temporary files."""
        self._parent = parent
        self._lock = -1
        self.path = Path()

    def __enter__(self) -> Self:
        return self.open()

    def open(self) -> Self:
        """Creates it.

        Raises:
            UserError: it cannot be created.
        """
        parent = temporary_folder() if self._parent is None else self._parent
        sweep(parent)
        try:
            with uninterrupted():
                self.path, self._lock = _claimed(parent)
        except OSError as error:
            raise UserError(f"cannot write in {shown(parent)}: {_why(error)}") from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def publish(self, folder: Path | None = None) -> None:
        """Moves all files to another folder, or to the one around it, libraries last.

        What is moved to the folder around it is moved whole: if the process is killed meanwhile,
        whoever sweeps that folder next finishes it.

        Raises:
            UserError: something stands in the way; nothing was moved.
            OSError: the files cannot be moved.
        """
        names = sorted(os.listdir(self.path))
        target = self.path.parent if folder is None else folder
        for name in names:
            check_replaceable(target / name)
        # What an older process left half published is not to take the place of this later.
        sweep(target)
        with uninterrupted():
            if folder is None:
                self.path = self.path.rename(f"{self.path}{PUBLISHING}")
            _move(self.path, target)

    def close(self) -> None:
        """Removes it."""
        with uninterrupted():
            if self._lock >= 0:
                _remove(self.path)
                os.close(self._lock)
                self._lock = -1


def remove_folder(path: Path) -> None:
    """Removes a folder and what is in it, for other processes at once.

    Raises:
        OSError: it is not there or cannot be removed.
    """
    shutil.rmtree(path.rename(path.with_name(_name())))


def sweep(folder: Path) -> None:
    """Cleans up in a folder after processes that ended before they could."""
    with suppress(OSError):
        with os.scandir(folder) as found:
            names = [entry.name for entry in found if TEMPORARY.fullmatch(entry.name)]
        for name in names:
            _sweep(folder / name)


def _sweep(path: Path) -> None:
    """Removes a file or folder that is ours and that no process holds."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if status.st_uid != os.geteuid():
                return
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not stat.S_ISDIR(status.st_mode):
                path.unlink(missing_ok=True)
                return
            if path.name.endswith(PUBLISHING):
                with suppress(UserError):
                    for name in os.listdir(path):
                        check_replaceable(path.parent / name)
                    _move(path, path.parent)
            _remove(path)
        finally:
            os.close(file)


def _remove(folder: Path) -> None:
    """Removes a folder, into which processes that were just ended may write to the last."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(PAUSE_S)


def _claimed(parent: Path) -> tuple[Path, int]:
    """A new folder and the lock on it."""
    while True:
        path = parent / _name()
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # Another process may have swept it before the lock was ours.
            if _locked(lock) and path.exists():
                return path, lock
            os.close(lock)


def _claimed_file(folder: Path, mode: int) -> tuple[Path, int]:
    """A new file that is locked."""
    while True:
        path = folder / _name()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        # As above.
        if _locked(file) and path.exists():
            return path, file
        os.close(file)


def _locked(file: int) -> bool:
    """Locks a file; False if another process holds it. Not all file systems have locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _move(source: Path, target: Path) -> None:
    """Moves the files of a folder, those first that others need."""
    names = sorted(os.listdir(source), key=lambda n: (Path(n).suffix not in COMPANIONS, n))
    for name in names:
        (source / name).replace(target / name)


def _name() -> str:
    return f".rutc-{os.urandom(8).hex()}"


def temporary_folder() -> Path:
    """The folder for temporary files.

    Raises:
        UserError: there is none that can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise UserError(
            "there is no folder for temporary files that can be written and has space left: "
            "free some, or set TMPDIR to such a folder"
        ) from error
