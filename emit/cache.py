"""The cache of what was compiled: objects by the hash of what decides them, of bounded size.

    FOLDER/objects/KK/KEY     bytes, then their SHA-256; KK are the first digits of KEY
    FOLDER/artifacts/KEY      the files of a whole artifact, see `archive`
    KEY                       SHA-256 of the kind of object and of all that it was made from

Several processes may use one cache: files appear complete, a file that was removed or damaged is
made again. Objects may take half of the cache's size, artifacts the other. Each folder keeps its
share and forgets what was not used for longest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rutc.emit.toolchain import cache_directory, write_atomically
from rutc.errors import UserError
from rutc.record import record

LIMIT_VARIABLE = "RUTC_CACHE_MIB"
DEFAULT_LIMIT_MIB = 4096
SHARES = 256
"""Folders of objects."""
DIGEST_BYTES = 32


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
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def cached(kind: str, parts: Sequence[str | bytes], build: Callable[[], bytes]) -> bytes:
    """Returns what `build` returns, from the cache where the same `kind` and `parts` were built.

    A cache that cannot be written (a read-only home) is skipped: nothing but time is lost.
    """
    key = key_of(kind, parts)
    found = lookup(key)
    if found is None:
        found = build()
        store(key, found)
    return found


def lookup(key: str) -> bytes | None:
    """Returns an object, which thereby is the one used last; None if it is not there or damaged."""
    path = _path(key)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
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
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data + hashlib.sha256(data).digest())
        trim(path.parent, limit_bytes() // 2 // SHARES, keep=path.name)
    except OSError:
        return


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
    for folder in (_objects(), artifacts()):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"cannot clear the cache {folder}: {error}") from error


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
    """Yields the files in a folder, which other processes may remove meanwhile."""
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            with suppress(FileNotFoundError):
                yield Path(entry.path), entry.stat()


def trim(folder: Path, limit: int, keep: str) -> None:
    """Removes what was not used for longest from a folder, until `limit` bytes suffice.

    Parts of files that a process left behind when it was killed count like all others.
    """
    entries = sorted(_entries(folder), key=lambda entry: (entry[1].st_mtime_ns, entry[0].name))
    excess = sum(status.st_size for _, status in entries) - limit
    for path, status in entries:
        if excess <= 0:
            return
        if path.name != keep:
            path.unlink(missing_ok=True)
            excess -= status.st_size
