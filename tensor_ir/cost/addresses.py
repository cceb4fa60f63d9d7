"""Where a kernel's statements are, and where in memory: regions, registers, addresses, touches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import ceil

from rutc.base.record import record
from rutc.tensor_ir.cost.frames import Frame, Frames, Role, Space, executions
from rutc.tensor_ir.cost.strides import Step, steps_of
from rutc.tensor_ir.cost.work import Tally
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    COMPARE,
    Apply,
    Coord,
    Expr,
    IndexValue,
    Lit,
    Read,
    index_names,
    reads,
)
from rutc.tensor_ir.indices.affine import Index, typical
from rutc.tensor_ir.indices.comparing import compared
from rutc.tensor_ir.kernel import Buffer, Kernel
from rutc.tensor_ir.machine import QUAD, Machine

MOST_DISTINCT = 4096
"""Places of an unrolled load that are told apart one by one."""
HALF = 0.5
"""Bytes of an element in nibbles."""

MOST_COPIES = 256
"""Copies that choices are told apart of."""

END = -1
"""In place of a frame's number: what follows the sums of a region."""

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
    chosen: tuple[Step, ...] | None = None
    """By which steps data move it: those of whole dims; None where their places have no steps."""


class Around:
    """What is known of the frames around a statement, which are held so long."""

    def __init__(self, frames: Frames) -> None:
        """Nothing is known but what the frames themselves say."""
        self.frames = frames
        self.region = region_of(frames)
        self.lanes = tuple(f for f in frames if f.role is Role.LANES)
        self.tallies: dict[int | None, Tally] = {}
        """The regions of the frames up to one of them; None: of all."""
        self.homes: dict[Names, tuple[int, float]] = {}
        """See `Places.home`."""
        self.steps: dict[tuple[object, float], tuple[tuple[Step, ...] | None, ...]] = {}
        """By the terms of a place and the bytes of its elements: what the frames move it by."""
        self.taken: dict[Expr, float | None] = {}
        """In what share of the copies conditions hold."""


class Places:
    """The regions of a kernel and what each of its statements touches."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        """Start with nothing counted."""
        self.machine = machine
        self.space = Space(kernel, machine)
        self.buffers = {b.name: b for b in (*kernel.args, *kernel.locals)}
        self.tallies: dict[tuple[int, ...], Tally] = {}
        self.summing: set[tuple[int, ...]] = set()
        """The regions whose code takes elements into states itself, in no loop inside of them."""
        self.registers: dict[str, Names] = {}
        """What the registers depend on that were written last."""
        self._around: dict[int, Around] = {}
        """By the identities of frames, which are those of many statements and reads."""
        self.touches: list[Touch] = []
        self.share = 1.0
        """The share of an unrolled loop's copies that compute what is counted."""
        self.least = machine.least_part
        """The part of a register's work that the smallest operation is."""

    def around(self, frames: Frames) -> Around:
        """What is known of these frames."""
        found = self._around.get(id(frames))
        if found is None:
            found = self._around[id(frames)] = Around(frames)
        return found

    def tally(self, frames: Frames, at: int | None = None) -> Tally:
        """The region of the innermost loop or arm of the frames, those up to one of them."""
        tallies = self.around(frames).tallies
        found = tallies.get(at)
        if found is None:
            found = tallies[at] = self._tally(frames if at is None else frames[: at + 1])
        return found

    def _tally(self, frames: Frames) -> Tally:
        key = region_of(frames)
        if key not in self.tallies:
            own = [f for f in frames if f.role in (Role.LOOP, Role.ARM)]
            names = "/".join(f.var or "arm" for f in own)
            last = max((i for i, f in enumerate(frames) if f.number in key), default=-1)
            times = executions(frames[: last + 1])
            trip = own[-1].times if own and own[-1].role is Role.LOOP else 1.0
            self.tallies[key] = Tally(names, times, times / trip if trip else 0.0)
        return self.tallies[key]

    def follow(self, stored: Tally, frames: Frames) -> None:
        """Add what is stored by itself to the region of the frames, or to one that follows it.

        What sums of the same straight-line code are stored as waits for them, all at once: no more
        than `hidden_stores` are hidden behind arithmetic. Where the sums are a loop, none are: it
        is another region.
        """
        own, region = self.tally(frames), self.around(frames).region
        count = stored.work.get("stores", 0.0) + stored.work.get("scattered", 0.0)
        most = self.machine.hidden_stores * own.times
        hidden = most / count if region in self.summing and count > most else 1.0
        for kind, n in stored.work.items():
            own.add(kind, n * hidden)
        if hidden < 1:
            end = self.tallies.setdefault((*region, END), Tally(f"{own.name}/end", own.times, 0.0))
            for kind, n in stored.work.items():
                end.add(kind, n * (1 - hidden))

    def home(self, names: Names, frames: Frames) -> tuple[int, float]:
        """The frame that code which depends on these names cannot leave, and how often it is done.

        Copies and registers inside of that frame count if they differ.
        """
        homes = self.around(frames).homes
        found = homes.get(names)
        if found is None:
            found = homes[names] = _home(names, frames)
        return found[0], found[1] * self.share

    def lanes(self, names: Names, frames: Frames) -> Frame | None:
        """The loop over lanes that something depends on, if there is one."""
        for f in self.around(frames).lanes:
            if f.var in names:
                return f
        return None

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

    def taken(self, condition: Expr, frames: Frames) -> float | None:
        """In what share of the copies a comparison with an index holds; None: the run tells."""
        known = self.around(frames).taken
        if condition not in known:
            known[condition] = self._taken(condition, frames)
        return known[condition]

    def _taken(self, condition: Expr, frames: Frames) -> float | None:
        match condition:
            case Apply(op=op, args=(IndexValue(index), Lit(value))) if op in COMPARE:
                pass
            case _:
                return None
        copies = [f for f in frames if f.role is Role.COPIES and f.var in index.names()]
        ranges = self.space.ranges
        found: list[bool] = []
        for values in product(
            *(range(low, high + 1) for low, high in (ranges[f.var] for f in copies))
        ):
            own = {f.var: (v, v) for f, v in zip(copies, values, strict=True)}
            bounds = index.bounds({**ranges, **own})
            known = None if bounds is None else compared(op, bounds, int(value))
            if known is None or len(found) >= MOST_COPIES:
                return None
            found.append(known)
        return sum(found) / len(found) if found else None

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
        around = self.around(frames)
        steps, chosen = self._steps(buffer, coords, address, size, around)
        start = int(self.space.value(address) * size)
        self.touches.append(
            Touch(
                buffer.name,
                size,
                is_store,
                frames,
                steps,
                start,
                around.region,
                chosen,
            )
        )

    def _steps(
        self,
        buffer: Buffer,
        coords: tuple[tuple[str, Coord], ...],
        address: Index,
        size: float,
        around: Around,
    ) -> tuple[tuple[tuple[Step, ...] | None, ...], tuple[Step, ...] | None]:
        """By which bytes each frame moves an access, and data do; see `Touch`.

        Accesses that are a number of elements apart, as taps of a window, are moved alike.
        """
        if all(isinstance(c, Index) for _, c in coords):
            key = address.terms, size
            found = around.steps.get(key)
            if found is None:
                moved = (steps_of(address, f, self.space) for f in around.frames)
                found = tuple(tuple((step * size, n) for step, n in own) for own in moved)
                around.steps[key] = found
            return found, ()
        gradual = dict(self._gradual(buffer, coords))
        chosen = {d: c for d, c in coords if not isinstance(c, Index) and d not in gradual}
        random = NONE.union(*[self._telling(c) for c in chosen.values()])
        steps: list[tuple[Step, ...] | None] = []
        for f in around.frames:
            if f.var in random:
                steps.append(None)
                continue
            own = [*steps_of(address, f, self.space)]
            for place, share in gradual.values():
                own += [(share * step, n) for step, n in steps_of(place, f, self.space)]
            steps.append(tuple((step * size, n) for step, n in own))
        return tuple(steps), self._reached(buffer, chosen, size)

    def _reached(self, buffer: Buffer, dims: Iterable[str], size: float) -> tuple[Step, ...] | None:
        """The steps by which data move an access along whole dims, if they are numbers."""
        extents = dict(buffer.layout.extents)
        found: list[Step] = []
        for d in dims:
            stride = buffer.layout.stride(d)
            if not isinstance(stride, int):
                return None
            found.append((stride * size, typical(extents[d], self.space.symbols)))
        return tuple(found)

    def _telling(self, place: Expr) -> Names:
        """The loops that move a place which data tell: registers hold what theirs wrote."""
        held = (self.registers.get(r.value, NONE) for r in reads(place))
        return index_names(place).union(*held)

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


def _home(names: Names, frames: Frames) -> tuple[int, float]:
    """See `Places.home`, where all copies compute what is counted."""
    at = -1
    for i, f in enumerate(frames):
        if f.role is Role.ARM or (f.role is Role.LOOP and f.open and f.var in names):
            at = i
    count = executions(frames[: at + 1])
    for f in frames[at + 1 :]:
        if f.role in (Role.COPIES, Role.LANES) and f.var in names:
            count *= f.times
    return at, count


def union(found: Iterable[Names]) -> Names:
    """All of some names: one of the sets itself where it has those of the others."""
    names = NONE
    for own in found:
        if not own <= names:
            names = own if names <= own else names | own
    return names


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
