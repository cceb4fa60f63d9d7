"""What loads and stores become: whole registers, broadcasts, transposed blocks, or single lanes."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from rutc.base.record import record
from rutc.tensor_ir.cost.addresses import Names, Places
from rutc.tensor_ir.cost.frames import Frame, Frames, Role, executions
from rutc.tensor_ir.cost.operations import DIVIDED, JOINED
from rutc.tensor_ir.cost.work import Tally
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Cast, Read, reads_plainly
from rutc.tensor_ir.facts.lane_runs import divided_along, shuffled_runs, spread_parts
from rutc.tensor_ir.indices.affine import Index, Var
from rutc.tensor_ir.kernel import Access, Buffer, Kernel, Space
from rutc.tensor_ir.machine import FEWEST_LANES, NEAR_STRIDES, QUAD, Machine


@record
class Load:
    """A load at an address: one element for all lanes, or one for each of those of a loop.

    Of a `chosen` one only the run knows which lanes are where; lanes of those `apart`, as chosen
    ones are, cannot share loads.
    """

    buffer: Buffer
    address: Index
    lanes: Frame | None
    frames: Frames
    apart: bool
    chosen: bool


class Accesses(Places):
    """Counts loads and stores."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        """Start with nothing counted."""
        super().__init__(kernel, machine)
        self._known_places: dict[tuple[Index, tuple[int, ...]], list[list[int] | None]] = {}

    def times_converted(self, e: Cast, names: Names, frames: Frames) -> float | None:
        """How often what is loaded is converted: equal loads once; None of anything else."""
        types, arg = [e.dtype], e.arg
        while isinstance(arg, Cast):
            types.append(arg.dtype)
            arg = arg.arg
        if not isinstance(arg, Read) or not reads_plainly(arg):
            return None
        buffer = self.buffers[arg.value]
        if buffer.space is Space.REGISTER:
            return None
        at, _ = self.home(names, frames)
        seen, address = self.tally(frames, at).seen, self.address(buffer, arg.coords, frames)
        key = *types, buffer.name, address, arg.fill, self.around(frames).region
        if key in seen:
            return 0.0
        seen.add(key)
        return self.distinct(address, frames, at, names)

    def load(self, x: Load, tally: Tally, count: float) -> None:
        """Count so many loads."""
        nibbles, lanes = x.buffer.layout.nibbles, x.lanes
        if nibbles:
            # A half of each byte is taken, or halves of fewer bytes are put in turn.
            tally.add("arithmetic" if lanes is None else "conversions", count)
        group = next((f for f in x.frames if f.role is Role.GROUP), None)
        if lanes is None:
            if group is not None and x.address.coefficient(group.var) not in (0, 1):
                count = self._one_by_one(tally, count * group.trip)
            tally.add("broadcasts", count)
            return
        size, step = x.buffer.dtype.bytes, x.address.coefficient(lanes.var)
        if nibbles and step == 2:
            # Both halves of bytes are taken of one load.
            step, count = 1, count / 2
        if group is not None:
            members = min(int(group.trip), QUAD)
            count *= ceil(group.trip / QUAD)
            together = x.address.coefficient(group.var) == 1
            if together and step == members:
                size, step = size * members, 1
            elif not (together and step == 0):
                count = self._one_by_one(tally, count * members)
            if step == 0:
                tally.add("broadcasts", count)
                return
        if x.buffer.singly and step not in (0, 1):
            tally.add("gathered", count * lanes.lanes)
        else:
            self._load_lanes(x, lanes, self._usual_step(x, lanes, step), size, tally, count)

    def _usual_step(self, x: Load, lanes: Frame, step: int | None) -> int | None:
        """How far lanes are from each other in all vectors but few; None where that differs."""
        if x.chosen:
            return 1 if step == 1 else None
        if step is not None:
            return step
        # A size of 0 or 1 moves neighbours: they are loaded, or one for all. Or they are neighbours
        # but for a seam.
        near = x.address.factor(lanes.var) is not None or divided_along(
            x.address, lanes.var, lanes.lanes, self.space.ranges
        )
        return 1 if near else None

    def _load_lanes(
        self, x: Load, lanes: Frame, step: int | None, size: int, tally: Tally, count: float
    ) -> None:
        """Count loads of vectors whose lanes, of so many bytes, are a `step` from each other."""
        part = self.part_of(lanes, size)
        if step == 1:
            tally.add("loads", count * part)
            if not self.aligned(x.address, lanes, x.buffer):
                self._crosses(tally, lanes, size, count)
        elif step in (0, -1):
            tally.add("loads" if step else "broadcasts", count * part)
            tally.add("shuffles", count * part * abs(step))
        elif (
            step is not None
            and step in NEAR_STRIDES
            and (not x.apart or self._is_window(x.address, step, x.frames))
        ):
            tally.add("loads", count * part * step)
            tally.add("shuffles", count * part * (step - 1))
        elif not x.apart and self._block(x.address, lanes, x.frames) is not None:
            self._transposed(tally, "loads", x.address, lanes, x.frames, count * part)
        else:
            own = [0] if x.apart else self.runs(x.address, lanes, x.frames)
            for runs in own:
                each = count / len(own)
                tally.add("loads", each * part * runs)
                tally.add("shuffles", each * part * max(runs - 1, 1) if runs else 0.0)
                tally.add("gathered", 0.0 if runs else each * lanes.lanes)

    def _one_by_one(self, tally: Tally, count: float) -> float:
        """The loads of so many members of groups, each by itself, which are put together."""
        tally.add("arithmetic", count * JOINED)
        return count

    def runs(self, address: Index, lanes: Frame, frames: Frames) -> list[int]:
        """How many loads have all lanes of each register between them; 0 where each has its own."""
        each = self._places(address, lanes, frames)
        return [0 if x is None else len(shuffled_runs(x, lanes.lanes)) for x in each]

    def parts(self, buffer: Buffer, address: Index, lanes: Frame, frames: Frames) -> list[int]:
        """How many stores have all lanes of each register between them; 0 where each has its own.

        Without registers for masks each has.
        """
        if not self.machine.has_masks:
            return [0]
        width = self.machine.vector_bits // (8 * buffer.dtype.bytes)
        each = self._places(address, lanes, frames)
        return [0 if x is None else len(spread_parts(x, width)) for x in each]

    def _places(self, address: Index, lanes: Frame, frames: Frames) -> list[list[int] | None]:
        """How far the lanes of each register are from the first one; None where a run tells it.

        Looked at are the first copies of loops that are unrolled.
        """
        key = address, tuple(f.number for f in frames)
        if key not in self._known_places:
            self._known_places[key] = list(self._find_places(address, lanes, frames)) or [None]
        return self._known_places[key]

    def _find_places(
        self, address: Index, lanes: Frame, frames: Frames
    ) -> Iterator[list[int] | None]:
        ranges = self.space.ranges
        low, high = ranges[lanes.var]
        first = {f.var: Index.of(ranges[f.var][0]) for f in frames if f.role is Role.COPIES}
        address = address.subs(first)
        step = address.coefficient(lanes.var)
        for base in range(low, high + 1, lanes.lanes):
            last = min(base + lanes.lanes - 1, high)
            if step is not None:
                yield [step * i for i in range(last + 1 - base)]
                continue
            known = {**ranges, lanes.var: (base, last)}
            own = [address.subs({lanes.var: Index.of(i)}) for i in range(base, last + 1)]
            places = [(x - own[0]).simplify(known) for x in own]
            yield [x.const for x in places] if all(x.is_const for x in places) else None

    def first_lane(self, address: Index, frames: Frames) -> Index:
        """The place of a vector whose lanes lie where code knows it: it has no quotients of them.

        Of others, it is the place itself.
        """
        lanes = self.lanes(address.names(), frames)
        if lanes is None or address.factor(lanes.var) is not None:
            return address
        if not all(self.runs(address, lanes, frames)):
            return address
        return address.subs({lanes.var: Index.of(self.space.ranges[lanes.var][0])})

    def quotients(self, place: Index, frames: Frames) -> None:
        """Count the quotients and remainders in a place, each once where its loops tell it."""
        for mono, _ in place.terms:
            for atom in mono:
                if isinstance(atom, Var):
                    continue
                for operand in atom.operands:
                    self.quotients(operand, frames)
                names = atom.names
                at, times = self.home(names, frames)
                tally = self.tally(frames, at)
                if (key := ("quotient", atom)) in tally.seen:
                    continue
                tally.seen.add(key)
                count = times * DIVIDED
                if self.lanes(names, frames) is None:
                    tally.add("scalar", count)
                else:
                    tally.add("arithmetic", count * self.part(DType.I64, names, frames))

    def load_permuted(
        self, buffer: Buffer, lanes: Frame, tally: Tally, count: float, shuffles: int
    ) -> None:
        """Count loads of registers whose lanes so many `shuffles` put into another order."""
        part = self.part_of(lanes, buffer.dtype.bytes)
        tally.add("loads", count * part)
        tally.add("shuffles", count * part * shuffles)
        self._crosses(tally, lanes, buffer.dtype.bytes, count)

    def part_of(self, lanes: Frame, size: int) -> float:
        """How many registers a vector of elements of so many bytes takes."""
        return max(lanes.lanes * size * 8 / self.machine.vector_bits, self.least)

    def _crosses(self, tally: Tally, lanes: Frame, size: int, count: float) -> None:
        """Count vectors that may lie in two lines."""
        bytes_ = lanes.lanes * size
        tally.add("crossing", count * min(1.0, bytes_ / self.machine.line_bytes))

    def hold(self, address: Index, frames: Frames, at: int, names: Names) -> None:
        """Note the registers that keep what is loaded before the innermost loop."""
        inner = max(
            (i for i, f in enumerate(frames) if f.role in (Role.LOOP, Role.ARM)), default=-1
        )
        if inner > at and frames[inner].role is Role.LOOP and frames[inner].trip > 1:
            each = self.distinct(address, frames, inner, names) / executions(frames[: inner + 1])
            self.tally(frames, inner).kept += each

    def _is_window(self, address: Index, step: int, frames: Frames) -> bool:
        """Whether another copy's lanes lie between those of a vector."""
        own = [address.coefficient(f.var) for f in frames if f.role is Role.COPIES]
        return any(c is not None and 0 < abs(c) < step for c in own)

    def store(self, buffer: Buffer, target: Access, frames: Frames) -> None:
        """Count the stores of a statement."""
        stored = Tally("", 1.0, 1.0)
        self._stores(buffer, target, frames, stored)
        self.follow(stored, frames)

    def _stores(self, buffer: Buffer, target: Access, frames: Frames, tally: Tally) -> None:
        times = executions(frames)
        address = self.address(buffer, target.coords)
        names = address.names()
        lanes = self.lanes(names, frames)
        self.touch(buffer, target.coords, frames, is_store=True, address=address)
        if lanes is None:
            tally.add("stores", times * self.least)
            return
        size = buffer.dtype.bytes
        part = self.part_of(lanes, size)
        step = address.coefficient(lanes.var)
        block = self._block(address, lanes, frames)
        if step == 1:
            tally.add("stores", times * part)
            if lanes.ragged:
                tally.add("masked", times / max(lanes.times, 1.0))
            if not self.aligned(address, lanes, buffer):
                self._crosses(tally, lanes, size, times)
        elif buffer.singly:
            tally.add("scattered", times * lanes.lanes)
        elif (
            step is not None
            and step in NEAR_STRIDES
            and any(
                f.role is Role.COPIES and f.trip == step and address.coefficient(f.var) == 1
                for f in frames
            )
        ):
            tally.add("stores", times * part)
            tally.add("shuffles", times * part * (step - 1))
        elif block is not None:
            self._transposed(tally, "stores", address, lanes, frames, times * part)
        else:
            known = all(isinstance(c, Index) for _, c in target.coords)
            own = self.parts(buffer, address, lanes, frames) if known else [0]
            for parts in own:
                each = times / len(own)
                for kind in ("stores", "masked", "shuffles"):
                    tally.add(kind, each * parts)
                tally.add("scattered", 0.0 if parts else each * lanes.lanes)

    def _block(self, address: Index, lanes: Frame, frames: Frames) -> float | None:
        """The vectors that an unrolled loop along memory gives a block, where there is one."""
        for f in frames:
            if f.role is Role.COPIES and f.trip >= FEWEST_LANES and address.coefficient(f.var) == 1:
                return min(f.trip, float(lanes.lanes))
        return None

    def _transposed(
        self,
        tally: Tally,
        kind: str,
        address: Index,
        lanes: Frame,
        frames: Frames,
        count: float,
    ) -> None:
        """Count the loads or stores of rows of blocks, and what transposes them in registers."""
        block = self._block(address, lanes, frames) or 1.0
        rows = count / block * lanes.lanes
        tally.add(kind, rows * max(self.least, block / lanes.lanes))
        tally.add("shuffles", rows * (lanes.lanes.bit_length() - 1))
        if block < lanes.lanes and kind == "stores":
            tally.add("masked", rows)
