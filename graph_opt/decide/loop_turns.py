"""Loops of which a thread does all trips for some rows, and waits for no other one in between.

    repeat t:  run a over all rows, run b over all rows

      ->       for some rows each:  repeat t:  run a over these, run b over these

A recurrence computes each example of a batch from that one alone. Threads that share its kernels
meet at each of them, in every trip; here they do so once. Each reads all constants then, which have
to stay near.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from rutc.base.record import record
from rutc.graph_opt.assignment import Turning
from rutc.graph_opt.decide.chains import leader
from rutc.graph_opt.decide.slice_sizes import FEWEST_SLICES
from rutc.graph_opt.decide.turns import Turns
from rutc.graph_opt.plan import Illegal, InTurn, PlanStep, Repeat, Run
from rutc.tensor_ir.graph import Const
from rutc.tensor_ir.indices.affine import Size, typical
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.lower import Group, Slice
from rutc.tensor_ir.machine import FEWEST_LANES
from rutc.tensor_ir.textual.text import value_name


@record
class LoopTurns:
    """Finds the loops of a step list whose rows are computed apart from each other."""

    turns: Turns
    constants: Mapping[str, Const]

    def chosen(self, steps: tuple[PlanStep, ...]) -> tuple[Turning, ...]:
        """Every loop for which that pays."""
        return tuple(t for s in steps if isinstance(s, Repeat) for t in self._chosen(s))

    def arranged(
        self, steps: tuple[PlanStep, ...], given: tuple[Turning, ...]
    ) -> tuple[tuple[PlanStep, ...], tuple[Turning, ...]]:
        """The steps with such loops, and what is given that is of none.

        Raises:
            Illegal: A loop is none; the message says why.
        """
        left = list(given)
        found: list[PlanStep] = []
        for s in steps:
            first = s.steps[0] if isinstance(s, Repeat) and s.steps else None
            name = leader(first.group) if isinstance(first, Run) else None
            own = next((t for t in left if t.kernels[:1] == (name,)), None)
            if own is not None and isinstance(s, Repeat):
                left.remove(own)
                s = self._in_turn(s, own)
            found.append(s)
        return tuple(found), tuple(left)

    def _chosen(self, loop: Repeat) -> Iterator[Turning]:
        """How a loop is to be done, if that pays."""
        dims = self._dims(loop)
        if isinstance(dims, str) or not self._stays_near(loop):
            return
        rows = self.turns.slicer.extents[dims[0]]
        assert isinstance(rows, int)
        size = self._block(rows)
        if size is not None and self._is_long(loop):
            yield Turning(tuple(leader(g) for g in _groups(loop)), dims, size)

    def _block(self, rows: int) -> int | None:
        """Rows of a block: a tile's at least, and few enough for all threads to have some."""
        cores = self.turns.slicer.machine.cores
        sizes = [n for n in range(FEWEST_LANES, rows) if rows % n == 0 and rows // n >= cores]
        many = [n for n in sizes if rows // n >= FEWEST_SLICES]
        return max(many) if many else min(sizes, default=None)

    def _is_long(self, loop: Repeat) -> bool:
        """Whether all trips take longer than to start threads, as kernels do that these share."""
        slicer = self.turns.slicer
        machine, symbols = slicer.machine, dict(slicer.symbols)
        points = sum(
            prod(typical(slicer.extents[d], symbols) for d in (*n.dims, *n.bound))
            for g in _groups(loop)
            for n in g.stages
        )
        cycles = points * typical(loop.trips, symbols) / (machine.width * machine.fma_per_cycle)
        return cycles >= machine.coefficients.sharing.launches * machine.launch_cycles

    def _stays_near(self, loop: Repeat) -> bool:
        """Whether the constants that each trip reads again stay in a thread's second cache."""
        slicer = self.turns.slicer
        read = {r.value for g in _groups(loop) for r in g.reads} & self.constants.keys()
        size = sum(self.constants[v].data.array.nbytes for v in read)
        return size <= slicer.near(slicer.coefficients.again)

    def _dims(self, loop: Repeat) -> tuple[str, ...] | str:
        """The dim of the rows of each kernel in a loop, or why that has no such rows."""
        layouts, extents = self.turns.slicer.layouts, self.turns.slicer.extents
        groups = _groups(loop)
        if loop.parts or not groups or len(groups) < len(loop.steps):
            return "it does more than to run kernels"
        own: dict[str, str] = {}
        rows: Size | None = None
        for c in loop.carries:
            d = _outermost(layouts[c.param.name])
            if d is None or _outermost(layouts[c.next]) != d:
                return f"{value_name(c.param.name)} does not lie row by row"
            rows = extents[d] if rows is None else rows
            own[c.param.name] = d
        if not isinstance(rows, int):
            return "it has no known number of rows"
        found: list[str] = []
        for g in groups:
            d = self.turns.dim(g, rows, own)
            if d is None:
                return f"the kernel of {value_name(leader(g))} is not the same for every row"
            found.append(d)
            own |= dict.fromkeys(g.stored, d)
        if any(extents[d] != rows for d in own.values()):
            return "what it carries has not the same rows"
        kept = [(c.param.name, c.next) for c in loop.carries]
        for goal, v in (*kept, *((out, source) for source, out in loop.collect)):
            if own.get(v) is None or own[v] != own.get(goal, own[v]):
                return f"{value_name(v)} is not computed row by row"
        return tuple(found)

    def _in_turn(self, loop: Repeat, given: Turning) -> InTurn:
        """The loop as it is assigned. Raises Illegal."""
        groups = _groups(loop)
        dims = self._dims(loop)
        if isinstance(dims, str):
            raise Illegal(f"`{given}`: {dims}")
        rows = self.turns.slicer.extents[dims[0]]
        assert isinstance(rows, int)
        if tuple(map(leader, groups)) != given.kernels or dims != given.dims:
            raise Illegal(f"`{given}`: a loop's kernels take turns together, along their rows")
        if given.size < 1 or rows % given.size or rows == given.size:
            raise Illegal(f"`{given}`: {rows} rows are not several blocks")
        symbol, trips = f"{groups[0].name}.turn", rows // given.size
        steps: list[PlanStep] = []
        for g, d in zip(groups, dims, strict=True):
            part = replace(g, slices=(Slice(d, symbol, given.size), *g.slices))
            origin = tuple(dict.fromkeys(o for n in g.stages for o in n.origin))
            steps.append(Repeat(symbol, trips, (), (), (Run(part),), (), origin, g.stored))
        inside = replace(loop, steps=tuple(steps))
        return InTurn(symbol, trips, (inside,), (), 0)


def _groups(loop: Repeat) -> tuple[Group, ...]:
    """The groups of a loop's kernels."""
    return tuple(s.group for s in loop.steps if isinstance(s, Run))


def _outermost(layout: Layout) -> str | None:
    """The dim that is outermost in memory, and nowhere else; None without one."""
    first, *others = layout.axes or (None,)
    if first is None or layout.halo or any(a.dim == first.dim for a in others if a is not None):
        return None
    return first.dim
