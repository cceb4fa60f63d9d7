"""The image of a model's weights: one run of bytes that all of its programs read from."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rutc.emit.program import Program, WeightData

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class WeightImage:
    """What was written: its bytes, their SHA-256, and where the weights of each program begin."""

    byte_count: int
    sha256: bytes
    offsets: tuple[int, ...]


def write_weights(path: Path, programs: Sequence[Program]) -> WeightImage:
    """Writes the weights of all programs one after the other, equal ones once."""
    places: dict[bytes, int] = {}
    offsets = []
    image = hashlib.sha256()
    position = 0
    with path.open("wb") as stream:
        for program in programs:
            key = _digest(program)
            if key not in places:
                padding = bytes(-position % PAGE_BYTES)
                places[key] = position + len(padding)
                for part in (padding, *_parts(program)):
                    image.update(part)
                    stream.write(part)
                    position += len(part)
            offsets.append(places[key])
    return WeightImage(position, image.digest(), tuple(offsets))


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
