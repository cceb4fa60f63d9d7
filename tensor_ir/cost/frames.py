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
from rutc.tensor_ir.affine import Index, Range
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Merge, Stmt
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.narrow_ends import end_lanes, has_narrow_ends
from rutc.tensor_ir.ranges import common_sizes
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


Frames = tuple[Frame, ...]
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

    def frame(self, loop: Loop, around: Frames) -> Frame:
        """The frame that a loop is."""
        low, high = loop.lo.bounds(self.ranges), loop.hi.bounds(self.ranges)
        if low is None or high is None:
            first, last = 0, max(self.value(loop.hi) - 1, 0)
        else:
            first, last = low[0], max(high[1] - 1, low[0])
        trip = self._trip(loop, around)
        self.ranges[loop.var] = first, last
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
        share = self._share(s, around)
        arms = ((s.then, share), (s.orelse, 1 - share))
        return [(body, (*around, self._arm(part)), {}) for body, part in arms if part > 0]

    def _arm(self, share: float, split: Frame | None = None) -> Frame:
        self.made += 1
        number = 0 if split is None else split.number
        return Frame(self.made, "", Role.ARM, 1.0, share, split=number)

    def _trip(self, loop: Loop, around: Frames) -> float:
        size = loop.hi - loop.lo
        if size.is_const:
            return float(max(size.const, 0))
        return sum(max(n, 0) for n in self._sampled(size, around)) / SAMPLES

    def _share(self, s: Branch, around: Frames) -> float:
        return sum(n < 0 for n in self._sampled(s.left - s.right, around)) / SAMPLES

    def _sampled(self, x: Index, around: Frames) -> list[int]:
        """The values of an expression as the loops around it go on, all at their own pace."""
        moving = [f for f in around if f.var in x.names()]
        if not moving:
            return [self.value(x)] * SAMPLES
        # Ends of blocks are long formulas of sizes, of which all samples have the same numbers.
        still = x.names() - {f.var for f in moving}
        try:
            x = x.subs({n: Index.of(self.middle[n]) for n in still})
        except ZeroDivisionError:
            return [0] * SAMPLES
        env = {f.var: 0 for f in moving}
        found = []
        for k in range(SAMPLES):
            for n, f in enumerate(moving):
                low = self.ranges[f.var][0]
                # Places that differ from loop to loop: a multiple of an odd number.
                place = (k * (2 * n + 1) + n) % SAMPLES
                env[f.var] = low + int(place * f.trip / SAMPLES)
            found.append(self.value(x, env))
        return found
