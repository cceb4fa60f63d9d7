"""Whole artifacts in the cache: files of one compilation, with what is to be known of them.

    the files' bytes, one after the other | facts as JSON | their length, 8 bytes | their SHA-256

An archive appears complete, and is used only if all of its bytes are what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IXUSR
from typing import BinaryIO

from rutc.base.bulk import Span, copied
from rutc.base.files import sweep, temporary_file
from rutc.base.record import record
from rutc.emit import cache

TAIL_BYTES = 8 + cache.DIGEST_BYTES
FACTS_LIMIT_BYTES = 1 << 24


@record
class Stored:
    """A file in an archive: its name, where it begins, its size and its digest."""

    name: str
    executable: bool
    start: int
    bytes: int
    digest: str


@record
class Archive:
    """An archive that is open for reading."""

    file: BinaryIO
    path: Path
    files: tuple[Stored, ...]
    facts: Mapping[str, object]

    def extract(self, folder: Path) -> bool:
        """Writes the files to a folder; none of them if they are not what they were.

        Raises:
            OSError: the folder cannot be written.
        """
        written: list[Path] = []
        for stored in self.files:
            path = folder / stored.name
            written.append(path)
            span = Span(self.file.fileno(), stored.start, stored.bytes)
            mode = 0o777 if stored.executable else 0o666
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            try:
                digest = copied(span, (file, 0))
            finally:
                os.close(file)
            if digest.hex() != stored.digest:
                for unusable in written:
                    unusable.unlink()
                return False
        with suppress(OSError):
            os.utime(self.path)
        return True


@contextmanager
def opened(key: str) -> Iterator[Archive | None]:
    """The archive of a key; None if there is none, or only parts of one."""
    path = cache.artifacts() / key
    file = cache.opened(path)
    if file is None:
        yield None
        return
    with file:
        yield _read(file, path)


def most_bytes() -> int:
    """The size of the largest archive that is kept: half of what all of them may take."""
    return cache.limit_bytes() // 4


def store(key: str, files: Mapping[str, Path], facts: Mapping[str, object]) -> None:
    """Puts copies of files into the cache, under names that they get back when extracted.

    Nothing is kept of what is too large, or where the cache cannot be written.
    """
    folder = cache.artifacts()
    try:
        if sum(path.stat().st_size for path in files.values()) > most_bytes():
            return
        if not cache.made(folder):
            return
        with temporary_file(folder, cache.FILE_MODE) as (file, temporary):
            with open(file, "wb", closefd=False) as target:
                _write(target, files, facts)
            temporary.replace(folder / key)
        sweep(folder.parent)
        cache.trim(folder, cache.limit_bytes() // 2, keep=key)
    except OSError:
        return


def _write(target: BinaryIO, files: Mapping[str, Path], facts: Mapping[str, object]) -> None:
    stored = []
    place = 0
    for name, path in files.items():
        with path.open("rb") as source:
            status = os.fstat(source.fileno())
            span = Span(source.fileno(), 0, status.st_size)
            digest = copied(span, (target.fileno(), place))
        stored.append((name, bool(status.st_mode & S_IXUSR), place, span.bytes, digest.hex()))
        place += span.bytes
    text = json.dumps({"files": stored, "facts": facts}).encode()
    target.seek(place)
    target.write(text + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest())


def _read(file: BinaryIO, path: Path) -> Archive | None:
    end = file.seek(0, os.SEEK_END)
    if end < TAIL_BYTES:
        return None
    file.seek(end - TAIL_BYTES)
    tail = file.read(TAIL_BYTES)
    length = int.from_bytes(tail[:8], "little")
    if length > min(end - TAIL_BYTES, FACTS_LIMIT_BYTES):
        return None
    file.seek(end - TAIL_BYTES - length)
    text = file.read(length)
    if hashlib.sha256(text).digest() != tail[8:]:
        return None
    try:
        about = json.loads(text)
        facts = about["facts"]
        files = tuple(Stored(*stored) for stored in about["files"])
        whole = isinstance(facts, dict) and _follow(files, end - TAIL_BYTES - length)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return Archive(file, path, files, facts) if whole else None


def _follow(files: tuple[Stored, ...], size: int) -> bool:
    """Whether files with plain names lie one after the other in so many bytes."""
    place = 0
    for file in files:
        # What is no name of a file in a folder leads out of it.
        if Path(file.name).name != file.name or "\0" in file.name or file.name in ("", ".."):
            return False
        if type(file.start) is not int or type(file.bytes) is not int or file.bytes < 0:
            return False
        if file.start != place:
            return False
        place += file.bytes
    return place == size and len({file.name for file in files}) == len(files)
