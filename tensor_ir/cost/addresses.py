"""Where a kernel's statements are, and where in memory: regions, registers, addresses, touches."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from rutc.base.record import record
from rutc.tensor_ir.affine import Index, typical
from rutc.tensor_ir.cost.frames import Frame, Frames, Role, Space, executions
from rutc.tensor_ir.cost.strides import Step, steps_of
from rutc.tensor_ir.cost.work import Tally
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Coord, Read, index_names
from rutc.tensor_ir.kernel import Buffer, Kernel
from rutc.tensor_ir.machine import QUAD, Machine

MOST_DISTINCT = 4096
"""Places of an unrolled load that are told apart one by one."""
HALF = 0.5
"""Bytes of an element in nibbles."""

Names = frozenset[str]
NONE: Names = frozenset()


@record
class Touch:
    """One access to memory: by which steps each loop around it moves it.

    Where they depend on data, it is None. A loop whose place is a quotient and a remainder goes by
    several: those within a remainder, and those from quotient to quotient.
    """

    buffer: str
    bytes: float
    is_store: bool
    frames: Frames
    steps: tuple[tuple[Step, ...] | None, ...]
    start: int
    home: tuple[int, ...]
    """The region that it belongs to."""


class Places:
    """The regions of a kernel and what each of its statements touches."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        """Start with nothing counted."""
        self.machine = machine
        self.space = Space(kernel, machine)
        self.buffers = {b.name: b for b in (*kernel.args, *kernel.locals)}
        self.tallies: dict[tuple[int, ...], Tally] = {}
        self.touches: list[Touch] = []
        self.share = 1.0
        """The share of an unrolled loop's copies that compute what is counted."""
        self.least = machine.least_part
        """The part of a register's work that the smallest operation is."""

    def tally(self, frames: Frames) -> Tally:
        """The region of the innermost loop or arm of the frames."""
        key = region_of(frames)
        if key not in self.tallies:
            own = [f for f in frames if f.role in (Role.LOOP, Role.ARM)]
            names = "/".join(f.var or "arm" for f in own)
            last = max((i for i, f in enumerate(frames) if f.number in key), default=-1)
            times = executions(frames[: last + 1])
            trip = own[-1].times if own and own[-1].role is Role.LOOP else 1.0
            self.tallies[key] = Tally(names, times, times / trip if trip else 0.0)
        return self.tallies[key]

    def home(self, names: Names, frames: Frames) -> tuple[int, float]:
        """The frame that code which depends on these names cannot leave, and how often it is done.

        Copies and registers inside of that frame count if they differ.
        """
        at = -1
        for i, f in enumerate(frames):
            if f.role is Role.ARM or (f.role is Role.LOOP and f.open and f.var in names):
                at = i
        count = executions(frames[: at + 1])
        for f in frames[at + 1 :]:
            if f.role in (Role.COPIES, Role.LANES) and f.var in names:
                count *= f.times
        return at, count * self.share

    def lanes(self, names: Names, frames: Frames) -> Frame | None:
        """The loop over lanes that something depends on, if there is one."""
        return next((f for f in frames if f.role is Role.LANES and f.var in names), None)

    def part(self, dtype: DType, names: Names, frames: Frames) -> float:
        """How much of a register's work an operation is."""
        lanes = self.lanes(names, frames)
        bits = dtype.bytes * 8 * (lanes.lanes if lanes is not None else 1)
        return max(bits / self.machine.vector_bits, self.least)

    def distinct(self, address: Index, frames: Frames, at: int, names: Names) -> float:
        """How many places are loaded, where several copies may read one."""
        count = executions(frames[: at + 1])
        moving: list[tuple[int, int]] = []
        spare = 1.0
        for f in frames[at + 1 :]:
            if f.role not in (Role.COPIES, Role.LANES):
                continue
            if f.var not in names:
                spare *= f.times
                continue
            step = address.coefficient(f.var)
            if step is None:
                count *= f.times
            else:
                lanes = f.lanes if f.role is Role.LANES else 1
                whole = ceil(f.trip / lanes)
                # The last register may be narrower.
                narrow = f.role is Role.LANES and f.times < whole
                count *= f.times / whole if narrow else 1.0
                moving.append((whole if narrow else round(f.times), step * lanes))
        # One of the copies that need a place is enough for it to be loaded.
        return count * _places(moving) * min(1.0, spare * self.share)

    def aligned(self, address: Index, lanes: Frame, buffer: Buffer) -> bool:
        """Whether the registers' places are multiples of a register's bytes."""
        whole = min(lanes.lanes * buffer.dtype.bytes, self.machine.line_bytes)
        size = buffer.dtype.bytes
        moves = all(
            c * size % whole == 0
            for mono, c in address.terms
            if not (len(mono) == 1 and mono[0].names == {lanes.var})
        )
        return moves and address.const * size % whole == 0

    def address(
        self, buffer: Buffer, coords: tuple[tuple[str, Coord], ...], frames: Frames = ()
    ) -> Index:
        """The element number; data are taken for 0. Of a long group in `frames`, the first four."""
        ranges = self.space.ranges
        long = [f.var for f in frames if f.role is Role.GROUP and f.trip > QUAD]
        if long:
            ranges = {**ranges, **dict.fromkeys(long, (0, QUAD - 1))}
        plain = {d: c if isinstance(c, Index) else Index.of(0) for d, c in coords}
        return buffer.layout.address(plain, ranges)

    def outside(self, r: Read, buffer: Buffer) -> list[Index]:
        """The coordinates of a read that may lie outside of what its buffer holds."""
        extents = dict(buffer.layout.extents)
        found: list[Index] = []
        for d, c in r.coords:
            place = c if isinstance(c, Index) else Index.of("")
            bounds = place.bounds(self.space.ranges)
            before, after = buffer.layout.room(d, r.fill)
            extent = typical(extents[d], self.space.symbols)
            if bounds is None or bounds[0] < -before or bounds[1] >= extent + after:
                found.append(place)
        return found

    def touch(
        self,
        buffer: Buffer,
        coords: tuple[tuple[str, Coord], ...],
        frames: Frames,
        *,
        is_store: bool,
        address: Index | None = None,
    ) -> None:
        """Note an access."""
        address = address or self.address(buffer, coords)
        size = HALF if buffer.layout.nibbles else buffer.dtype.bytes
        gradual = dict(self._gradual(buffer, coords))
        chosen = [c for d, c in coords if not isinstance(c, Index) and d not in gradual]
        random = NONE.union(*[index_names(c) for c in chosen])
        steps: list[tuple[Step, ...] | None] = []
        for f in frames:
            if f.var in random:
                steps.append(None)
                continue
            own = [*steps_of(address, f, self.space)]
            for place, share in gradual.values():
                own += [(share * step, n) for step, n in steps_of(place, f, self.space)]
            steps.append(tuple((step * size, n) for step, n in own))
        start = int(self.space.value(address) * size)
        self.touches.append(
            Touch(
                buffer.name,
                size,
                is_store,
                frames,
                tuple(steps),
                start,
                region_of(frames),
            )
        )

    def _gradual(
        self, buffer: Buffer, coords: tuple[tuple[str, Coord], ...]
    ) -> Iterator[tuple[str, tuple[Index, float]]]:
        """Dims along which gradual tables tell places: how far these move with the tables' own.

        That is, where tables lead by one element each time, and what share of their elements do.
        """
        for d, c in coords:
            stride = buffer.layout.stride(d)
            if not isinstance(c, Read) or not isinstance(stride, int) or len(c.coords) != 1:
                continue
            table = self.buffers[c.value]
            ((e, place),) = c.coords
            if e in table.gradual and isinstance(place, Index):
                symbols = self.space.symbols
                extent = typical(dict(buffer.layout.extents)[d], symbols)
                places = typical(dict(table.layout.extents)[e], symbols)
                yield d, (place * stride, min(1.0, extent / max(places, 1)))


def region_of(frames: Frames) -> tuple[int, ...]:
    """What tells the region of the innermost loop or arm of the frames from others."""
    return tuple(f.number for f in frames if f.role in (Role.LOOP, Role.ARM))


def _places(moving: list[tuple[int, int]]) -> float:
    """The different sums of multiples of steps, each up to its count."""
    moving = sorted(((n, abs(step)) for n, step in moving if n > 1 and step), key=lambda x: x[1])
    count, reach = 1, 0
    overlaps = False
    for n, step in moving:
        overlaps |= step <= reach
        reach += (n - 1) * step
        count *= n
    if not overlaps or count > MOST_DISTINCT:
        return float(count)
    places = {0}
    for n, step in moving:
        places = {p + i * step for p in places for i in range(n)}
    return float(len(places))
