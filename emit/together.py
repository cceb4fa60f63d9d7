"""How many registers' lanes are computed in one vector, which LLVM takes apart where it has to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import ELEMENTARY, Apply, Coord, Read, coord_names, walk
from rutc.tensor_ir.facts.gradual import row_chosen
from rutc.tensor_ir.indices.affine import ZERO, Index, Range
from rutc.tensor_ir.kernel import Assign, Buffer, Loop, Space
from rutc.tensor_ir.machine import Machine

LANE_BYTES = 4
"""The size of the elements that `Machine.width` counts."""


def together(
    loop: Loop, buffers: Mapping[str, Buffer], ranges: Mapping[str, Range], machine: Machine
) -> int:
    """Returns how many registers of 32-bit lanes of a vector loop are computed in one vector.

    Steps of one elementary function fill the waits of others: as many are computed step by step as
    the loop's iterations are made for. One after the other they fill a core's queues with what
    waits. Coefficients that registers have no room for are read from memory. Where instructions put
    registers together as one of narrower elements, rather than make one smaller, as many are
    computed as fill one of the narrowest elements that are moved: bytes are copied 32 at a time
    with AVX2, and four registers of numbers of 32 bits become one of bytes. So they are where bytes
    are picked from a row in registers. `ranges` are those of all variables.
    """
    functions = False
    for s in loop.body:
        if not isinstance(s, Assign) or _is_register(buffers[s.target.buffer]):
            return 1
        for x in walk(s.value):
            if isinstance(x, Read) and _is_register(buffers[x.value]) and x.coords:
                return 1
            if isinstance(x, Apply):
                functions |= x.op in ELEMENTARY and x.dtype is DType.F32
    number = 1 << machine.vectors_at_once.bit_length() - 1 if functions else 1
    places = [(b, c) for b, c in _places(loop, buffers) if not _is_picked(b, c, machine)]
    picked = len(places) < sum(1 for _ in _places(loop, buffers))
    if picked or (machine.packs and not machine.saturates):
        steps = [(b, _step(b, coords, loop.var, ranges)) for b, coords in places]
        # Lanes that are moved one by one, or across registers, are those of a register.
        if all(step in (0, 1) and not b.layout.nibbles for b, step in steps):
            narrowest = min((b.dtype.bytes for b, step in steps if step), default=LANE_BYTES)
            number = max(number, LANE_BYTES // narrowest)
    return number


def _is_register(buffer: Buffer) -> bool:
    return buffer.space is Space.REGISTER


def _is_picked(buffer: Buffer, coords: tuple[tuple[str, Coord], ...], machine: Machine) -> bool:
    """Whether data choose bytes of a row, which lanes pick from registers."""
    row = row_chosen(coords, buffer.layout) if buffer.dtype.bytes == 1 else None
    lanes = LANE_BYTES * machine.width
    return row is not None and machine.picks(1, row[1], lanes) > 0


def _places(
    loop: Loop, buffers: Mapping[str, Buffer]
) -> Iterator[tuple[Buffer, tuple[tuple[str, Coord], ...]]]:
    """The places in memory that a loop's statements write and read."""
    for s in loop.body:
        if isinstance(s, Assign):
            yield buffers[s.target.buffer], s.target.coords
            for x in walk(s.value):
                if isinstance(x, Read) and not _is_register(buffers[x.value]):
                    yield buffers[x.value], x.coords


def _step(
    buffer: Buffer,
    coords: tuple[tuple[str, Coord], ...],
    var: str,
    ranges: Mapping[str, Range],
) -> int | None:
    """How far apart neighbouring lanes are in memory; None where that differs, or data tell."""
    known = {d: c if isinstance(c, Index) else ZERO for d, c in coords}
    if any(var in coord_names(c) for _, c in coords if not isinstance(c, Index)):
        return None
    address = buffer.layout.address(known, ranges)
    step = address.coefficient(var)
    if step is None or var in (address - Index.of(var) * step).names():
        return None
    return step
