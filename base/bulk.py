"""Large files, of which several threads read a piece each: their digests, and copies of them.

    digest = SHA-256 of the SHA-256s of the pieces, one after the other

Files are written in blocks of huge pages: file systems keep as one what is written as one.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rutc.base.record import record

PIECE_BYTES = 16 << 20
BLOCK_BYTES = 4 << 20
THREADS = 4
"""The most threads that work on one file."""


@record
class Span:
    """A run of bytes of an open file."""

    file: int
    start: int
    bytes: int


def digest_of(path: Path, threads: int = THREADS) -> bytes:
    """The digest of a file. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        span = Span(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        return copied(span, threads=threads)


def copied(source: Span, target: tuple[int, int] | None = None, *, threads: int = THREADS) -> bytes:
    """The digest of bytes of a file, which are copied to an open file and a place in it, if given.

    At most `threads` threads and no more than there are CPUs do it.

    Raises:
        OSError: they cannot be read or written, or the file ends before they do.
    """
    starts = range(0, source.bytes, PIECE_BYTES)

    def piece(start: int) -> bytes:
        return _piece(source, start, target)

    threads = min(threads, len(os.sched_getaffinity(0)), len(starts))
    if threads < 2:
        digests = [piece(start) for start in starts]
    else:
        with ThreadPoolExecutor(threads) as pool:
            digests = list(pool.map(piece, starts))
    return hashlib.sha256(b"".join(digests)).digest()


def _piece(source: Span, start: int, target: tuple[int, int] | None) -> bytes:
    digest = hashlib.sha256()
    end = min(start + PIECE_BYTES, source.bytes)
    buffer = memoryview(bytearray(min(BLOCK_BYTES, end - start)))
    while start < end:
        count = os.preadv(source.file, [buffer[: end - start]], source.start + start)
        if count == 0:
            raise OSError("the file ends before its bytes do")
        digest.update(buffer[:count])
        if target is not None:
            file, place = target
            _write(file, buffer[:count], place + start)
        start += count
    return digest.digest()


def _write(file: int, data: memoryview, at: int) -> None:
    """Writes all of the data, of which the system may take a part at a time."""
    while len(data) > 0:
        count = os.pwrite(file, data, at)
        data, at = data[count:], at + count
