"""The image of a model's weights: one run of bytes that all of its programs read from."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from rutc.base.record import record
from rutc.emit.program import Program, WeightData

PAGE_BYTES = 4096


@record
class WeightImage:
    """How many bytes there are, their SHA-256, and where the weights of each program begin."""

    byte_count: int
    sha256: bytes
    offsets: tuple[int, ...]
    kept: tuple[tuple[int, Program], ...]
    """Bytes of zeros before the weights of a program, and that program."""

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yields the bytes, in order."""
        return _image(self.kept)


def weight_image(programs: Sequence[Program]) -> WeightImage:
    """Returns the image of the weights of all programs, one after the other, equal ones once."""
    places: dict[bytes, int] = {}
    offsets = []
    kept: list[tuple[int, Program]] = []
    position = 0
    for program in programs:
        # Of a single program there is nothing that could be equal.
        key = _digest(program) if len(programs) > 1 else b""
        if key not in places:
            places[key] = position + -position % PAGE_BYTES
            kept.append((places[key] - position, program))
            position = places[key] + program.weight_bytes
        offsets.append(places[key])
    image = hashlib.sha256()
    for part in _image(kept):
        image.update(part)
    return WeightImage(position, image.digest(), tuple(offsets), tuple(kept))


def _image(kept: Sequence[tuple[int, Program]]) -> Iterator[bytes | memoryview]:
    for padding, program in kept:
        yield bytes(padding)
        yield from _parts(program)


def _digest(program: Program) -> bytes:
    digest = hashlib.sha256()
    for part in _parts(program):
        digest.update(part)
    return digest.digest()


def _parts(program: Program) -> Iterator[bytes | memoryview]:
    """Yields the program's weights in the order of their offsets, gaps filled with zeros."""
    position = 0
    for offset, data in sorted(program.weights, key=lambda weight: weight[0]):
        yield bytes(max(0, offset - position))
        view = _byte_view(data)
        yield view
        position = offset + len(view)
    yield bytes(program.weight_bytes - position)


def _byte_view(data: WeightData) -> memoryview:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")
