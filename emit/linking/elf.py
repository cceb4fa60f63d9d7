"""Adds a read-only segment to a linked library, so that large data need not pass through a linker.

    headers | linked segments | .. linked sections' table ..
 -> headers | linked segments | ..                         | data | names | sections' table

The segment takes the place of a note in the table of segments, the library's own (see
`NOTE_SOURCE`), and a section of its name tells tools that the bytes belong to the library.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import replace
from io import FileIO
from pathlib import Path

from rutc.base.files import ELF
from rutc.base.record import record
from rutc.errors import InternalError

NOTE_SOURCE = """\
    .section .note.rutc,"a",%note
    .balign 4
    .long 5, 36, 1
    .asciz "rutc"
    .balign 4
    .zero 36
"""
"""Assembly of a note for the library's digest and checksum (see `seal`).

Its place in the table goes to the new segment.
"""
NOTE_SECTION = b".note.rutc\0"
DIGEST_BYTES = 32
"""Of a SHA-256: of the library, or at the end of a file of weights."""
CHECKSUM = struct.Struct("<I")
"""A CRC-32."""
SEAL_BYTES = DIGEST_BYTES + CHECKSUM.size
LOADED = struct.Struct("<II4Q")
"""What the checksum is of in a row of the table of segments: all but places in the file."""

HUGE_PAGE_BYTES = 2 << 20
"""What one entry of the second-level page table maps."""
HUGE_PAGES = 2
"""Segments of so many huge pages begin at one."""
SECTION = b".rutc_weights\0"
LOAD, NOTE = 1, 4
READABLE = 4
PROGBITS, NOBITS, ALLOCATED = 1, 8, 2
HEADER_BYTES = 64
IDENT = ELF + b"\x02\x01"
"""64 bits, little-endian."""


@record
class _Header:
    """What is read and written of the file's header."""

    segments_at: int
    sections_at: int
    segments: int
    sections: int
    names: int

    FORMAT = struct.Struct("<32xQQ8xHHHH")

    @staticmethod
    def read(data: bytes) -> _Header:
        segments_at, sections_at, segments, _, sections, names = _Header.FORMAT.unpack_from(data)
        return _Header(segments_at, sections_at, segments, sections, names)


@record
class _Segment:
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    size: int
    alignment: int

    FORMAT = struct.Struct("<IIQQQQQQ")

    @staticmethod
    def read(data: bytes, at: int) -> _Segment:
        return _Segment(*_Segment.FORMAT.unpack_from(data, at))

    def packed(self) -> bytes:
        return self.FORMAT.pack(
            self.kind,
            self.flags,
            self.offset,
            self.address,
            self.physical,
            self.file_size,
            self.size,
            self.alignment,
        )


@record
class _Section:
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    FORMAT = struct.Struct("<IIQQQQIIQQ")

    @staticmethod
    def read(data: bytes, at: int) -> _Section:
        return _Section(*_Section.FORMAT.unpack_from(data, at))

    def packed(self) -> bytes:
        return self.FORMAT.pack(
            self.name,
            self.kind,
            self.flags,
            self.address,
            self.offset,
            self.size,
            self.link,
            self.info,
            self.alignment,
            self.entry_size,
        )


def append_segment(library: Path, parts: Iterable[bytes | memoryview], size: int) -> None:
    """Appends a read-only segment of `size` bytes, which `parts` make up, to a library.

    It is the last in memory, begins at a page, and is mapped, not read, when the library is loaded.
    A large one begins at a huge page, in memory and in the file, and is written so that the system
    may keep huge pages of it: kernels that stream it then miss the translation buffer less.

    Raises:
        InternalError: the file is no library of 64 bits, or has no note.
    """
    data = library.read_bytes()
    if not data.startswith(IDENT):
        raise InternalError(f"{library} is no 64-bit little-endian ELF file")
    header = _Header.read(data)
    segments = _segments(data, header.segments_at, header.segments)
    loads = [s for s in segments if s.kind == LOAD]
    notes = [n for n, s in enumerate(segments) if s.kind == NOTE]
    if not loads or not notes:
        raise InternalError(f"{library} has no segment that could be replaced")
    alignment = max(s.alignment for s in loads)
    if size >= HUGE_PAGES * HUGE_PAGE_BYTES:
        alignment = max(alignment, HUGE_PAGE_BYTES)
    offset = _up(len(data), alignment)
    address = _up(max(s.address + s.size for s in loads), alignment)
    added = _Segment(LOAD, READABLE, offset, address, address, size, size, alignment)
    del segments[notes[-1]]
    # Segments to load stand in the order of their addresses.
    segments.insert(1 + max(n for n, s in enumerate(segments) if s.kind == LOAD), added)
    names, sections = _sections(data, header, added)
    names_at = offset + size
    sections_at = _up(names_at + len(names), 8)
    sections[header.names] = replace(sections[header.names], offset=names_at, size=len(names))
    with FileIO(library, "r+") as file:
        file.seek(header.segments_at)
        _write(file, b"".join(s.packed() for s in segments))
        file.seek(offset)
        write_chunks(file, parts)
        if file.tell() != names_at:
            raise InternalError(f"{file.tell() - offset} bytes for a segment of {size}")
        _write(file, names)
        file.seek(sections_at)
        _write(file, b"".join(s.packed() for s in sections))
        file.seek(40)
        _write(file, struct.pack("<Q", sections_at))
        file.seek(60)
        _write(file, struct.pack("<H", len(sections)))


def _segments(data: bytes, begin: int, count: int) -> list[_Segment]:
    """A table of so many segments."""
    return [_Segment.read(data, begin + n * _Segment.FORMAT.size) for n in range(count)]


def seal(library: Path) -> None:
    """Writes digest and checksum of a library into its note, so that a changed byte is noticed.

    The digest is the SHA-256 of all bytes but those of both, which count as zeros, and those of the
    appended segment, whose digest is the manifest's. The checksum, the CRC-32 of what is loaded
    (see `_checksum`), is quick enough to be compared in every process, and `strip` keeps it.

    Raises:
        InternalError: the library has no note.
    """
    with FileIO(library, "r+") as file:
        spans = _spans(file)
        if NOTE_SECTION not in spans:
            raise InternalError(f"{library} has no note for its digest")
        _, note_end = spans[NOTE_SECTION]
        end = file.seek(0, os.SEEK_END)
        skipped, resumed = spans.get(SECTION, (end, end))
        file.seek(note_end - SEAL_BYTES)
        _write(file, bytes(SEAL_BYTES))
        digest = hashlib.sha256()
        for begin, last in ((0, skipped), (resumed, end)):
            file.seek(begin)
            while file.tell() < last:
                digest.update(file.read(min(last - file.tell(), HUGE_PAGE_BYTES)))
        checksum = _checksum(file, skipped)
        file.seek(note_end - SEAL_BYTES)
        _write(file, digest.digest() + checksum)


def _checksum(file: FileIO, weights_at: int) -> bytes:
    """The CRC-32 of the segments to load, after a row of LOADED for each segment.

    It is of no tables at the file's begin, nor of the segment that begins at `weights_at`.
    """
    header = _Header.read(_read(file, 0, HEADER_BYTES))
    table = _read(file, header.segments_at, header.segments * _Segment.FORMAT.size)
    segments = _segments(table, 0, header.segments)
    found = 0
    for s in segments:
        row = LOADED.pack(s.kind, s.flags, s.address, s.file_size, s.size, s.alignment)
        found = zlib.crc32(row, found)
    for s in segments:
        if s.kind == LOAD and s.offset != weights_at:
            begin = max(s.offset, header.segments_at + len(table))
            found = zlib.crc32(_read(file, begin, s.offset + s.file_size - begin), found)
    return CHECKSUM.pack(found)


def replace_bytes(library: Path, old: bytes, new: bytes) -> None:
    """Writes other bytes, as many, wherever a library has some, its appended segment aside.

    Raises:
        InternalError: it has them nowhere.
    """
    with FileIO(library, "r+") as file:
        end, _ = _spans(file).get(SECTION, (file.seek(0, os.SEEK_END), 0))
        data = _read(file, 0, end)
        at = data.find(old)
        if at < 0:
            raise InternalError(f"{library} lacks the bytes that are to be replaced")
        while at >= 0:
            file.seek(at)
            _write(file, new)
            at = data.find(old, at + len(old))


def _spans(file: FileIO) -> dict[bytes, tuple[int, int]]:
    """Where the sections of a library begin and end in the file, by name."""
    header = _Header.read(_read(file, 0, HEADER_BYTES))
    step = _Section.FORMAT.size
    table = _read(file, header.sections_at, header.sections * step)
    sections = [_Section.read(table, n * step) for n in range(header.sections)]
    own = sections[header.names]
    names = _read(file, own.offset, own.size)
    return {
        names[s.name : names.index(b"\0", s.name) + 1]: (s.offset, s.offset + s.size)
        for s in sections
    }


def _read(file: FileIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def is_object(data: bytes) -> bool:
    """Whether data are an object file, all sections of which are there."""
    if not data.startswith(IDENT) or len(data) < HEADER_BYTES:
        return False
    header = _Header.read(data)
    step = _Section.FORMAT.size
    if header.sections_at + header.sections * step > len(data):
        return False
    sections = [_Section.read(data, header.sections_at + n * step) for n in range(header.sections)]
    return all(s.kind == NOBITS or s.offset + s.size <= len(data) for s in sections)


def write_chunks(file: FileIO, parts: Iterable[bytes | memoryview]) -> None:
    """Writes the parts in chunks of huge pages: file systems keep as one what is written as one."""
    size = HUGE_PAGES * HUGE_PAGE_BYTES
    pending = bytearray()
    for part in parts:
        view = memoryview(part)
        while len(view) > 0:
            if not pending and len(view) >= size:
                whole = len(view) // size * size
                _write(file, view[:whole])
                view = view[whole:]
                continue
            taken = size - len(pending)
            pending += view[:taken]
            view = view[taken:]
            if len(pending) == size:
                _write(file, pending)
                pending = bytearray()
        # The memory of one part is free while the next one is made.
        del part, view
    _write(file, pending)


def _write(file: FileIO, data: bytes | bytearray | memoryview) -> None:
    """Writes all of the data, of which the system may take a part at a time."""
    rest = memoryview(data)
    while len(rest) > 0:
        rest = rest[file.write(rest) :]


def _sections(data: bytes, header: _Header, added: _Segment) -> tuple[bytes, list[_Section]]:
    """The sections' names and their table, with one more for the new segment."""
    step = _Section.FORMAT.size
    sections = [_Section.read(data, header.sections_at + n * step) for n in range(header.sections)]
    own = sections[header.names]
    names = data[own.offset : own.offset + own.size] + SECTION
    sections.append(
        _Section(
            own.size,
            PROGBITS,
            ALLOCATED,
            added.address,
            added.offset,
            added.size,
            0,
            0,
            added.alignment,
            0,
        )
    )
    return names, sections


def _up(x: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-x // step) * step
