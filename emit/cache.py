"""The cache of what was compiled: objects by the hash of what decides them, of bounded size.

    FOLDER/objects/KK/KEY     bytes, then the SHA-256 of KEY and them; KK is how KEY begins
    FOLDER/artifacts/KEY      the files of a whole artifact, see `archive`
    KEY                       SHA-256 of the kind of object and of all that it was made from

Several processes may use one cache: files appear complete, a file that was removed or damaged is
made again. Objects may take half of the cache's size, artifacts the other. Each folder keeps its
share and forgets what was not used for longest.

What is found becomes code. So nothing is used of a folder, and no file, that belongs to another
user or that others may write to.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rutc.base.files import TEMPORARY, remove_folder, shown, sweep, write_atomically
from rutc.base.record import record
from rutc.emit.linking.toolchain import cache_directory
from rutc.errors import UserError

LIMIT_VARIABLE = "RUTC_CACHE_MIB"
DEFAULT_LIMIT_MIB = 4096
SHARES = 256
"""Folders of objects."""
DIGEST_BYTES = 32
FOLDER_MODE, FILE_MODE = 0o700, 0o600


@record
class Usage:
    """What a cache holds, and the most that it may."""

    folder: Path
    objects: int
    artifacts: int
    bytes: int
    limit_bytes: int


def key_of(kind: str, parts: Sequence[str | bytes]) -> str:
    """The key of an object of some kind made from `parts`."""
    digest = hashlib.sha256()
    for part in (kind, *parts):
        # Names of files may hold bytes that are no text.
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def digest_of_files(root: Path, files: Iterable[Path]) -> str:
    """Returns a hash of files by their names below a folder and their bytes, in any order."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(root)}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def lookup(key: str) -> bytes | None:
    """Returns an object, which thereby is the one used last; None if it is not there or damaged."""
    path = _path(key)
    file = opened(path)
    if file is None:
        return None
    try:
        with file:
            content = file.read()
    except OSError:
        return None
    data, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if _digest(key, data) != digest:
        return None
    with suppress(OSError):
        os.utime(path)
    return data


def store(key: str, data: bytes) -> None:
    """Puts an object into the cache and makes room for it; a cache of 0 MiB stays empty."""
    if limit_bytes() == 0:
        return
    path = _path(key)
    try:
        if made(path.parent):
            write_atomically(path, data + _digest(key, data), FILE_MODE)
            trim(path.parent, limit_bytes() // 2 // SHARES, keep=path.name)
    except OSError:
        return


def opened(path: Path) -> BinaryIO | None:
    """A file of the cache, open for reading; None if there is none that may be used.

    Nothing may of a cache of 0 MiB, whatever it holds from before.

    Raises:
        UserError: `$RUTC_CACHE_MIB` is no size.
    """
    if limit_bytes() == 0 or not _are_ours(path.parent):
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or _distrusted(status) is not None:
        os.close(file)
        return None
    return os.fdopen(file, "rb")


def made(folder: Path) -> bool:
    """Makes a folder of the cache where it is missing; False if it may not be used.

    Raises:
        OSError: it cannot be made.
    """
    top = cache_directory()
    for path in (top, *reversed([p for p in folder.parents if top in p.parents]), folder):
        path.mkdir(mode=FOLDER_MODE, parents=path == top, exist_ok=True)
    return _are_ours(folder)


def _are_ours(folder: Path) -> bool:
    """Whether a folder and those around it in the cache, as far as they exist, are ours alone."""
    top = cache_directory()
    for path in (folder, *folder.parents):
        why = distrust(path)
        if why is not None:
            _tell(path, why)
            return False
        if path == top:
            break
    return True


def distrust(folder: Path) -> str | None:
    """Returns why a folder of the cache is not used; None if it is, or is not there."""
    try:
        return _distrusted(folder.stat())
    except OSError:
        return None


def _distrusted(status: os.stat_result) -> str | None:
    """Why what is found there is not used."""
    if status.st_uid != os.geteuid():
        return f"it belongs to another user ({status.st_uid}); set RUTC_CACHE to a folder of yours"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write to it; take that from them with chmod go-w"
    return None


@functools.cache
def _tell(folder: Path, why: str) -> None:
    """Says once on stderr why the cache is not used."""
    with suppress(OSError):
        print(f"the cache {shown(folder)} is not used: {why}", file=sys.stderr, flush=True)


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def usage() -> Usage:
    """Returns how large the cache is."""
    folders = [path for path, _ in _entries(_objects())]
    objects = [status.st_size for folder in folders for _, status in _entries(folder)]
    whole = [status.st_size for _, status in _entries(artifacts())]
    return Usage(
        cache_directory(), len(objects), len(whole), sum(objects) + sum(whole), limit_bytes()
    )


def clear() -> None:
    """Removes all objects and artifacts.

    Raises:
        UserError: they cannot be removed.
    """
    sweep(cache_directory())
    for folder in (_objects(), artifacts()):
        try:
            remove_folder(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UserError(
                f"cannot clear the cache {shown(folder)}: {error.strerror or error}"
            ) from error


def limit_bytes() -> int:
    """Returns the most bytes that the cache may hold.

    Raises:
        UserError: `$RUTC_CACHE_MIB` is no size.
    """
    configured = os.environ.get(LIMIT_VARIABLE, "")
    if configured and not configured.isdecimal():
        raise UserError(
            f"{LIMIT_VARIABLE} must be a whole number of MiB, the size of the cache, "
            f"not {configured!r}"
        )
    return int(configured or DEFAULT_LIMIT_MIB) << 20


def artifacts() -> Path:
    """Returns the folder of whole artifacts."""
    return cache_directory() / "artifacts"


def _objects() -> Path:
    return cache_directory() / "objects"


def _path(key: str) -> Path:
    return _objects() / key[:2] / key


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields what is in a folder, which other processes may remove meanwhile."""
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):
                if not TEMPORARY.fullmatch(entry.name):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def trim(folder: Path, limit: int, keep: str) -> None:
    """Removes what was not used for longest from a folder, until `limit` bytes suffice.

    What a process left behind when it was killed goes in any case.
    """
    sweep(folder)
    entries = sorted(_entries(folder), key=lambda entry: (entry[1].st_mtime_ns, entry[0].name))
    excess = sum(status.st_size for _, status in entries) - limit
    for path, status in entries:
        if excess <= 0:
            return
        if path.name != keep:
            path.unlink(missing_ok=True)
            excess -= status.st_size
