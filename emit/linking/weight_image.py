"""The image of a model's weights: one run of bytes that all of its programs read from.

    | weights of the first program, as it has them | what only the second has | ... |

Of a further program it holds the weights that none before has, each at a place of its own.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter

from rutc.base.record import record
from rutc.emit.host_program.program import Program, padded
from rutc.emit.linking.weight_data import Late, WeightData, byte_count, byte_view
from rutc.errors import InternalError
from rutc.tensor_ir.indices.affine import Size

PAGE_BYTES = 4096
UNKNOWN = hashlib.sha256(b"weights that are not written yet").digest()
"""Stands for their digest, which is known once they are."""


@record
class Placed:
    """Where the weights of a program lie in the image.

    `moved` are pairs (offset in the program, place in the image) in order; None: nothing is moved.
    `byte_count` bytes of the image hold all of them.
    """

    byte_count: int
    moved: tuple[tuple[int, int], ...] | None = None

    def place(self, offset: Size) -> Size:
        """The place of what a program has at an offset.

        Raises:
            InternalError: it has no weights there.
        """
        if self.moved is None:
            return offset
        number = -1
        if isinstance(offset, int):
            number = bisect_right(self.moved, offset, key=itemgetter(0)) - 1
        if number < 0:
            raise InternalError(f"weights at {offset} are shared, and none begin there")
        own, place = self.moved[number]
        return place + offset - own


@record
class WeightImage:
    """How many bytes there are, and where the weights of each program lie."""

    byte_count: int
    placed: tuple[Placed, ...]
    kept: tuple[tuple[int, WeightData], ...]
    """Places in order, and what begins there; there are zeros between."""

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yields the bytes, in order."""
        return _parts(self.kept, self.byte_count)


def weight_image(programs: Sequence[Program]) -> WeightImage:
    """Returns the image of the weights of all programs, equal ones once."""
    first, *others = programs
    kept = sorted(first.weights, key=itemgetter(0))
    placed = [Placed(first.weight_bytes)]
    size = first.weight_bytes
    # Of a single program there is nothing that could be equal.
    places = {_digest(data): place for place, data in reversed(kept)} if others else {}
    for program in others:
        moved = []
        size, end = size + -size % PAGE_BYTES, size
        begin = size
        for offset, data in sorted(program.weights, key=itemgetter(0)):
            key = _digest(data)
            if key not in places:
                places[key] = size
                kept.append((size, data))
                size += padded(max(byte_count(data), 1))
            moved.append((offset, places[key]))
        size = size if size > begin else end
        placed.append(Placed(size, tuple(moved)))
    return WeightImage(size, tuple(placed), tuple(kept))


def _digest(data: WeightData) -> bytes:
    found = hashlib.sha256(byte_view(data)).digest()
    if isinstance(data, Late):
        data.forget()
    return found


def _parts(kept: Sequence[tuple[int, WeightData]], end: int) -> Iterator[bytes | memoryview]:
    """Yields weights in the order of their places, gaps filled with zeros."""
    position = 0
    for place, data in kept:
        yield bytes(max(0, place - position))
        yield byte_view(data)
        if isinstance(data, Late):
            data.forget()
        position = place + byte_count(data)
    yield bytes(end - position)
