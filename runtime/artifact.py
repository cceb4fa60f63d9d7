"""What a library's file tells without being loaded: its processor, manifest, if it is whole.

The dynamic loader maps a file without looking whether all of it is there, and a process that reads
what is missing is ended by the system; damaged code may do anything. So a file is looked at before
it is loaded.

    bytes of the library .. | seal in .note.rutc | .. | .rutc_outline | .. | .rutc_weights | ..
    seal                = digest, checksum
    digest              = SHA-256 of all bytes but the seal, which count as zeros, and the weights'
    checksum            = CRC-32 of what is loaded but the weights and the seal, which counts as
                          zeros: that is little, and is compared whenever a library is loaded
    weights_sha256      = SHA-256 of the weights, in the manifest

Weights that are in a file beside the library have that digest behind them (`weights_file.py`).
"""

import json
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from rutc.runtime.errors import ModelError
from rutc.runtime.weights_file import DIGEST_BYTES, Given, weights_path

if TYPE_CHECKING:
    import hashlib

ELF_MACHINES: Final[Mapping[int, str]] = {62: "x86_64", 183: "aarch64"}
"""The names that the operating system has for the values of `e_machine` (ELF-64, System V ABI)."""

MANIFEST_SECTION: Final = ".rutc_manifest"
OUTLINE_SECTION: Final = ".rutc_outline"
WEIGHTS_SECTION: Final = ".rutc_weights"
NOTE_SECTION: Final = ".note.rutc"
CHECKSUM: Final = struct.Struct("<I")
SEAL_BYTES: Final = DIGEST_BYTES + CHECKSUM.size
NOTE_HEADER: Final = struct.pack("<III8s", 5, SEAL_BYTES, 1, b"rutc")
"""What the seal follows in the note: lengths of name and seal, a kind, the name."""

_ADVICE: Final = {
    ".onnx": "; compile the model first",
    ".h": "; give the library that it was written with",
}
_IDENT: Final = b"\x7fELF\x02\x01"
_SHARED: Final = 3
_HEADER: Final = struct.Struct("<16xHH12xQQ6xHHHHH")
_SEGMENT: Final = struct.Struct("<II6Q")
_LOADED: Final = struct.Struct("<II4Q")
"""What the checksum is of in a row of the table of segments: all but places in the file."""
_LOAD: Final = 1
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_NOBITS: Final = 8
_BLOCK_BYTES: Final = 1 << 22
_MOST_OUTLINE: Final = 1 << 28
"""Bytes of an outline: those of a model of 100,000 kernels are fewer."""

Span = tuple[int, int]
"""Where bytes of a file begin and end."""


@dataclass(frozen=True)
class ArtifactFile:
    """A whole library that is open for reading: its path, size, processor, segments and sections.

    The table of segments ends at `tables_end`.
    """

    path: Path
    file: BinaryIO
    size: int
    machine: str
    tables_end: int
    segments: Sequence[tuple[int, ...]]
    sections: Mapping[str, Span]

    def manifest(self) -> Mapping[str, object]:
        """Returns what the model says of itself.

        Raises:
            ModelError: the library holds none, or a damaged one.
        """
        return parsed_manifest(self.path, self._section(MANIFEST_SECTION).partition(b"\0")[0])

    def outline(self) -> Mapping[str, object] | None:
        """Returns what the model's plans do step by step; None where the library holds none.

        Raises:
            ModelError: it is damaged.
        """
        if OUTLINE_SECTION not in self.sections:
            return None
        try:
            text = zlib.decompressobj().decompress(self._section(OUTLINE_SECTION), _MOST_OUTLINE)
        except zlib.error as error:
            raise ModelError(f"the outline in {self.path} is damaged: {error}") from error
        return _parsed(self.path, "outline", text)

    def check_code(self) -> None:
        """Compares what is loaded, but the weights, with its checksum.

        Raises:
            ModelError: it is not what it was when the model was compiled.
        """
        seal = self._seal()
        weights_at, _ = self.sections.get(WEIGHTS_SECTION, (self.size, self.size))
        found = 0
        for kind, flags, _, address, _, count, memory, alignment in self.segments:
            row = _LOADED.pack(kind, flags, address, count, memory, alignment)
            found = zlib.crc32(row, found)
        for kind, _, offset, _, _, count, *_ in self.segments:
            if kind == _LOAD and offset != weights_at:
                for block in self._unsealed(max(offset, self.tables_end), offset + count):
                    found = zlib.crc32(block, found)
        if CHECKSUM.pack(found) != seal[DIGEST_BYTES:]:
            raise ModelError(_damaged(self.path, "CRC-32"))

    def check_integrity(self, given: Given | None = None) -> None:
        """Compares all bytes, and those of its weights elsewhere, with their digests.

        Those are in the file beside it, or given.

        Raises:
            ModelError: they are not what they were when the model was compiled.
        """
        seal = self._seal()
        weights = self.sections.get(WEIGHTS_SECTION)
        after, last = weights or (self.size, self.size)
        parts = chain(self._unsealed(0, after), self._unsealed(last, self.size))
        if _digest(parts) != seal[:DIGEST_BYTES]:
            raise ModelError(_damaged(self.path))
        manifest = self.manifest()
        if weights is not None:
            if _digest(blocks(self.file, weights)).hex() != manifest.get("weights_sha256"):
                raise ModelError(_damaged(self.path))
        elif _file_bytes(manifest) is not None:
            _check_weights(self._beside(manifest) if given is None else given, manifest)

    def check_weights_file(self) -> Path | None:
        """Returns the file of weights beside it, None if it needs none, after a look at its end.

        Raises:
            ModelError: it is missing, cut off, or belongs to another library.
        """
        manifest = self.manifest()
        expected = _file_bytes(manifest)
        if expected is None:
            return None
        path = self._beside(manifest)
        file, size = _opened(path)
        with file:
            stored = b"".join(blocks(file, (max(size - DIGEST_BYTES, 0), size)))
        if size != expected or stored.hex() != manifest.get("weights_sha256"):
            raise ModelError(f"the weights file {path} does not belong to {self.path}")
        return path

    def _beside(self, manifest: Mapping[str, object]) -> Path:
        """The path of the file of weights that the library reads, which is there.

        Raises:
            ModelError: it is missing.
        """
        path = weights_path(self.path)
        if os.path.lexists(path):
            return path
        about = manifest.get("weights_file")
        named = about.get("name") if isinstance(about, Mapping) else None
        first = f" ({named} when it was compiled)" if named not in (None, path.name) else ""
        raise ModelError(
            f"cannot load {path}: No such file or directory; the weights of {self.path.name} lie "
            f"beside it in a file of its name{first}: rename and move both together"
        )

    def _section(self, name: str) -> bytes:
        if name not in self.sections:
            raise ModelError(
                f"{self.path} is a shared library, but no model compiled by this version of rutc"
            )
        begin, end = self.sections[name]
        return b"".join(blocks(self.file, (begin, end)))

    def _seal(self) -> bytes:
        """The digest and the checksum that the library holds.

        Raises:
            ModelError: it holds none.
        """
        note = self._section(NOTE_SECTION)
        if not note.startswith(NOTE_HEADER) or len(note) != len(NOTE_HEADER) + SEAL_BYTES:
            raise ModelError(f"{self.path} holds no digest of its bytes: compile the model again")
        return note[len(NOTE_HEADER) :]

    def _unsealed(self, begin: int, end: int) -> Iterator[bytes]:
        """Yields the bytes of a span, zeros in the place of the seal."""
        _, last = self.sections[NOTE_SECTION]
        first = last - SEAL_BYTES
        if not begin <= first < end:
            yield from blocks(self.file, (begin, end))
            return
        yield from blocks(self.file, (begin, first))
        yield bytes(SEAL_BYTES)
        yield from blocks(self.file, (last, end))


def open_artifact(path: Path) -> ArtifactFile:
    """Returns a library whose headers and parts are all there; close its `file` when done.

    Raises:
        ModelError: the file is missing, no shared library, or only a part of one.
    """
    file, size = _opened(path)
    try:
        return _whole(path, file, size)
    except BaseException:
        file.close()
        raise


def parsed_manifest(path: Path, text: bytes) -> Mapping[str, object]:
    """Returns the manifest that a library holds as JSON.

    Raises:
        ModelError: it is damaged.
    """
    return _parsed(path, "manifest", text)


def _parsed(path: Path, what: str, text: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the {what} in {path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"the {what} in {path} is damaged: it is no JSON object")
    return found


def programs_of(manifest: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Returns a manifest for each target of a library, as of the only one, the best first."""
    others = manifest.get("fallbacks")
    alone = {**manifest, "fallbacks": []}
    facts = [x for x in others if isinstance(x, dict)] if isinstance(others, list) else []
    return [alone, *({**alone, **own} for own in facts)]


def blocks(file: BinaryIO, span: Span) -> Iterator[bytes]:
    """Yields the bytes of a span, as far as the file has them."""
    begin, end = span
    file.seek(begin)
    while begin < end:
        block = file.read(min(end - begin, _BLOCK_BYTES))
        if not block:
            return
        yield block
        begin += len(block)


def _opened(path: Path) -> tuple[BinaryIO, int]:
    """A regular file and its size; what is none is not waited for."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        shown = str(path) if str(path).isprintable() else repr(str(path))
        raise ModelError(f"cannot load {shown}: {why}") from error
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode):
        os.close(number)
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ModelError(f"cannot load {path}: it is {kind}")
    return os.fdopen(number, "rb"), status.st_size


def _whole(path: Path, file: BinaryIO, size: int) -> ArtifactFile:
    header = b"".join(blocks(file, (0, 64)))
    if not header.startswith(_IDENT) or len(header) < 64:
        what = "ELF file as `rutc compile` writes them"
        advice = _ADVICE.get(path.suffix, "")
        raise ModelError(f"cannot load {path}: it is no {what}{advice}")
    kind, machine, segments_at, sections_at, *counts = _HEADER.unpack_from(header)
    segment_bytes, segments, section_bytes, sections, names = counts
    if kind != _SHARED or segment_bytes != _SEGMENT.size:
        raise ModelError(f"cannot load {path}: it is no shared library")
    if sections and section_bytes != _SECTION.size:
        raise ModelError(f"cannot load {path}: its table of sections is damaged")
    tables = (segments_at, segments * _SEGMENT.size), (sections_at, sections * _SECTION.size)
    _check_extents(path, size, tables)
    every = _table(file, _SEGMENT, segments_at, segments)
    # Offset and size in the file.
    _check_extents(path, size, [(s[2], s[5]) for s in every])
    found = _table(file, _SECTION, sections_at, sections)
    _check_extents(path, size, [(s[4], s[5]) for s in found if s[1] != _NOBITS])
    return ArtifactFile(
        path,
        file,
        size,
        ELF_MACHINES.get(machine, f"other ({machine})"),
        segments_at + segments * _SEGMENT.size,
        every,
        _named(file, found, names),
    )


def _table(file: BinaryIO, row: struct.Struct, at: int, count: int) -> list[tuple[int, ...]]:
    return list(row.iter_unpack(b"".join(blocks(file, (at, at + count * row.size)))))


def _check_extents(path: Path, size: int, parts: Sequence[Span]) -> None:
    """Raises ModelError where a part, given by its offset and bytes, is not in the file."""
    needed = max((offset + count for offset, count in parts if count), default=0)
    if needed > size:
        raise ModelError(
            f"cannot load {path}: it is cut off or damaged: it has {size} bytes and needs "
            f"{needed}; copy it again, or compile the model again"
        )


def _named(file: BinaryIO, sections: Sequence[tuple[int, ...]], names: int) -> Mapping[str, Span]:
    """The sections that have bytes in the file, by name."""
    if names >= len(sections):
        return {}
    _, _, _, _, offset, count, *_ = sections[names]
    text = b"".join(blocks(file, (offset, offset + count)))
    return {
        text[s[0] :].partition(b"\0")[0].decode(errors="replace"): (s[4], s[4] + s[5])
        for s in sections
        if s[1] != _NOBITS
    }


def _digest(parts: Iterable[bytes]) -> bytes:
    """The SHA-256 of bytes that come in parts."""
    digest = _sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _sha256() -> "hashlib._Hash":
    # Not at the top of the file: it loads OpenSSL, a tenth of what the runtime's import takes, and
    # bytes are compared with digests on request only.
    import hashlib

    return hashlib.sha256()


def _check_weights(weights: Given, manifest: Mapping[str, object]) -> None:
    """Compares weights that their digest follows with the manifest's, unless their size differs."""
    expected = _file_bytes(manifest) or 0
    end = max(expected - DIGEST_BYTES, 0)
    digest = _sha256()
    stored = b""
    if isinstance(weights, Path):
        file, size = _opened(weights)
        with file:
            if size == expected:
                for block in blocks(file, (0, end)):
                    digest.update(block)
                stored = b"".join(blocks(file, (end, size)))
    elif len(weights) == expected:
        digest.update(weights[:end])
        stored = bytes(weights[end:])
    if not digest.hexdigest() == stored.hex() == manifest.get("weights_sha256"):
        raise ModelError(_damaged(weights if isinstance(weights, Path) else "what weights holds"))


def _file_bytes(manifest: Mapping[str, object]) -> int | None:
    """The size of the file of weights; None: the library has them."""
    about = manifest.get("weights_file")
    found = about.get("bytes") if isinstance(about, Mapping) else None
    return found if isinstance(found, int) else None


def _damaged(what: object, told_by: str = "SHA-256") -> str:
    return (
        f"{what} has changed since it was compiled: its {told_by} differs; copy it again, or "
        "compile the model again"
    )
