"""The loops around a statement, as what is counted sees them.

Loops over tasks and over iterations are alike. A vector loop counts by registers, and an arm of a
branch is a frame as well: code is not moved out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import Enum
from math import ceil, prod

from rutc.base.record import record
from rutc.tensor_ir.facts.matrix_blocks import operand_registers
from rutc.tensor_ir.facts.narrow_ends import end_lanes, has_narrow_ends
from rutc.tensor_ir.indices.affine import Index, Range
from rutc.tensor_ir.indices.ranges import common_sizes
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Merge, Stmt
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_stmts

SAMPLES = 16
"""Values of an outer loop that are looked at where the number of iterations depends on it."""


class Role(Enum):
    """What a frame is in the machine code."""

    LOOP = "loop"
    COPIES = "copies"
    LANES = "lanes"
    GROUP = "group"
    """Iterations that one instruction does: those of dot and matrix loops."""
    ARM = "arm"


@record
class Frame:
    """A loop, or an arm of a branch, around a statement.

    `trip` counts iterations as memory sees them, and `times` what of the code around the statement
    is done: iterations of a loop, copies, registers full of lanes, or the share of an arm. `lanes`
    are those of a register; a `ragged` loop over lanes has some that are idle.
    """

    number: int
    var: str
    role: Role
    trip: float
    times: float
    lanes: int = 1
    ragged: bool = False
    open: bool = True
    """Whether its loop may be left: of a single iteration, there is none in the code."""
    split: int = 0
    """Of an arm that has some of a loop's iterations, and others the rest: that loop's number."""

    def shortened(self, trip: float) -> Frame:
        """The loop where only so many of its iterations come by."""
        share = trip / self.trip if self.trip else 0.0
        return replace(self, trip=trip, times=self.times * share)


@record
class Sample:
    """Iterations that loops are in at the same time: the number and weight, and their variables."""

    number: int
    weight: float
    places: dict[str, int]


Frames = tuple[Frame, ...]
Samples = list[Sample]
Narrowed = dict[str, Range]


def executions(frames: Sequence[Frame]) -> float:
    """How often code is done that stands in all of the frames."""
    return prod(f.times for f in frames)


def copies_held(names: AbstractSet[str], frames: Sequence[Frame]) -> float:
    """Registers that keep what depends on these names while the copies in the frames take turns.

    That is its copies inside of the outermost loop for which it is the same; 0 where there is none.
    """
    own = [f for f in frames if f.role in (Role.COPIES, Role.LANES) and f.times > 1]
    same = next((i for i, f in enumerate(own) if f.var not in names), None)
    return 0.0 if same is None else prod(f.times for f in own[same:] if f.var in names)


def block_loads(names: AbstractSet[str], sums: AbstractSet[str], frames: Sequence[Frame]) -> float:
    """How often matrix registers load a block of an operand while copies take turns.

    The operand depends on `names`, the sums of products on `sums`. It is once, unless there are
    more blocks of it that take turns than registers beside those of sums.
    """
    own = [f for f in frames if f.role is Role.COPIES and f.var in sums]
    _, column, *_ = (f.var for f in frames if f.role is Role.GROUP)
    room = operand_registers(ceil(executions(own)))[column in names]
    once = copies_held(names, own) <= room
    return 1.0 if once else prod(f.times for f in own if f.var not in names)


class Space:
    """The ranges and common values of all variables of a kernel."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        """Take them from the kernel's loops and symbols."""
        self.machine = machine
        self.symbols = dict(kernel.symbols)
        self.merged = {s.var: s.extent for s in walk_stmts(kernel.body) if isinstance(s, Merge)}
        self.narrow_ends = has_narrow_ends(kernel, machine)
        self.ranges: dict[str, Range] = dict(kernel.symbols)
        self.middle: dict[str, int] = common_sizes(self.symbols)
        """A common value of every variable."""
        self.made = 0
        self.loops: dict[str, tuple[Loop, float]] = {}
        """The loop over each variable, with its iterations."""
        self.told: dict[int, Samples] = {}
        """The samples that come into an arm, by its number."""

    def frame(self, loop: Loop, around: Frames) -> Frame:
        """The frame that a loop is."""
        low, high = loop.lo.bounds(self.ranges), loop.hi.bounds(self.ranges)
        if low is None or high is None:
            first, last = 0, max(self.value(loop.hi) - 1, 0)
        else:
            first, last = low[0], max(high[1] - 1, low[0])
        trip = self._trip(loop, around)
        self.ranges[loop.var] = first, last
        self.loops[loop.var] = loop, trip
        start = self.value(loop.lo)
        self.middle[loop.var] = start
        self.made += 1
        match loop.kind:
            case Kind.VECTOR:
                most = last - first + 1
                if most == 1 and loop.var not in self.merged:
                    return Frame(self.made, loop.var, Role.COPIES, trip, min(trip, 1.0))
                lanes = self.machine.lanes(self.merged.get(loop.var, most))
                if not loop.hi.is_const:
                    registers = trip / lanes + 0.5
                    return Frame(self.made, loop.var, Role.LANES, trip, registers, lanes, True)
                end = end_lanes(self.machine, most, lanes) if self.narrow_ends else lanes
                part = 1.0 if end == lanes else self.machine.part_of_register(end)
                registers, ragged = ceil(trip / lanes) - 1 + part, most % end > 0
                return Frame(self.made, loop.var, Role.LANES, trip, registers, lanes, ragged)
            case Kind.UNROLL:
                return Frame(self.made, loop.var, Role.COPIES, trip, trip)
            case Kind.DOT | Kind.MATRIX:
                return Frame(self.made, loop.var, Role.GROUP, trip, 1.0)
            case Kind.SERIAL | Kind.PARALLEL:
                single = loop.lo.is_const and loop.hi == loop.lo + 1
                return Frame(self.made, loop.var, Role.LOOP, trip, trip, open=not single)

    def value(self, x: Index, env: Mapping[str, int] | None = None) -> int:
        """An expression's value at common ones of its variables, or at others.

        It is 0 where a divisor is: a model may not run at sizes that are taken as common.
        """
        try:
            return int(x.evaluate(self.middle if env is None else env))
        except ZeroDivisionError:
            return 0

    def arms(self, s: Branch, around: Frames) -> list[tuple[tuple[Stmt, ...], Frames, Narrowed]]:
        """The arms that may be taken, each with its frames and the range that it tells."""
        difference = (s.left - s.right).bounds(self.ranges)
        if difference is not None and difference[1] < 0:
            return [(s.then, around, {})]
        if difference is not None and difference[0] >= 0:
            return [(s.orelse, around, {})]
        name = s.left.as_var
        for at, f in enumerate(around):
            if f.var == name and f.role in (Role.LOOP, Role.COPIES):
                low, high = self.ranges[f.var]
                edge = min(max(self.value(s.right), low), low + int(f.trip))
                parts = (
                    (s.then, edge - low, (low, max(edge - 1, low))),
                    (s.orelse, f.trip - (edge - low), (min(edge, high), high)),
                )
                return [
                    (
                        body,
                        (*around[:at], f.shortened(n), *around[at + 1 :], self._arm(1.0, f)),
                        {f.var: own},
                    )
                    for body, n, own in parts
                    if n > 0
                ]
        tested = s.left - s.right
        samples = self._samples(tested.names(), around)
        found = self._values(tested, samples)
        arms: list[tuple[tuple[Stmt, ...], Frames, Narrowed]] = []
        for body, taken in ((s.then, True), (s.orelse, False)):
            own = [x for x, n in zip(samples, found, strict=True) if (n < 0) == taken]
            part = sum(x.weight for x in own) / sum(x.weight for x in samples)
            if part > 0:
                arm = self._arm(part)
                self.told[arm.number] = own
                arms.append((body, (*around, arm), {}))
        return arms

    def _arm(self, share: float, split: Frame | None = None) -> Frame:
        self.made += 1
        number = 0 if split is None else split.number
        return Frame(self.made, "", Role.ARM, 1.0, share, split=number)

    def _trip(self, loop: Loop, around: Frames) -> float:
        size = loop.hi - loop.lo
        if size.is_const:
            return float(max(size.const, 0))
        samples = self._samples(size.names(), around)
        found = zip(self._values(size, samples), samples, strict=True)
        return sum(max(n, 0) * x.weight for n, x in found) / sum(x.weight for x in samples)

    def _values(self, x: Index, samples: Samples) -> list[int]:
        """The values of an expression in samples that hold all of its variables that move."""
        # Ends of blocks are long formulas of sizes, of which all samples have the same numbers.
        still = x.names() - samples[0].places.keys()
        try:
            x = x.subs({n: Index.of(self.middle[n]) for n in still})
        except ZeroDivisionError:
            return [0] * len(samples)
        if x.is_const:
            return [x.const] * len(samples)
        return [self.value(x, s.places) for s in samples]

    def _samples(self, names: AbstractSet[str], around: Frames) -> Samples:
        """What the loops around a statement do at the same time, all at their own pace.

        They are those that change what is `names`, in iterations that come into the arms around it.
        """
        needed = self._moving(names, around)
        arms = (self.told.get(f.number, []) for f in reversed(around) if f.role is Role.ARM)
        before = next((s for s in arms if s and s[0].places.keys() & needed), None)
        if before is not None:
            needed = self._moving(needed | before[0].places.keys(), around)
        moving = [f for f in around if f.var in needed and f.role is not Role.ARM]
        if before is None:
            before = [Sample(k, 1.0, {}) for k in range(SAMPLES)]
        found = [x for s in before if (x := self._sample(s, moving)).weight > 0]
        return found or [Sample(0, 1.0, {f.var: self.ranges[f.var][0] for f in moving})]

    def _moving(self, names: AbstractSet[str], around: Frames) -> AbstractSet[str]:
        """The variables of loops that change what is `names`, or how far those loops go."""
        needed = set(names) & {f.var for f in around}
        for f in reversed(around):
            if f.var in needed:
                loop, _ = self.loops[f.var]
                needed |= (loop.lo.names() | loop.hi.names()) & {g.var for g in around}
        return needed

    def _sample(self, before: Sample, moving: Sequence[Frame]) -> Sample:
        """A sample with all loops that move, outer ones first, as often as these iterations come.

        Its weight is 0 where one of them has no such iteration.
        """
        places, weight = dict(before.places), before.weight
        for n, f in enumerate(moving):
            low, high = self.ranges[f.var]
            if f.var in places:
                weight *= low <= places[f.var] <= high
                continue
            loop, trip = self.loops[f.var]
            count = f.trip
            if places.keys() & (loop.lo.names() | loop.hi.names()):
                env = {**self.middle, **places}
                count *= max(self.value(loop.hi - loop.lo, env), 0) / trip if trip else 0.0
                low = max(low, self.value(loop.lo, env))
                weight *= count / f.trip if f.trip else 0.0
            # Places that differ from loop to loop: a multiple of an odd number.
            place = (before.number * (2 * n + 1) + n) % SAMPLES
            places[f.var] = low + int(place * count / SAMPLES)
        return Sample(before.number, weight, places)
