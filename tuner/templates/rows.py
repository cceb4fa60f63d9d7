"""The schedule of reductions along contiguous memory: softmax, normalisation, dot products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import ceil

from rutc.base.record import record
from rutc.tensor_ir.expr import operations
from rutc.tensor_ir.kernel import Kernel, Kind, Loop
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops, walk_stmts
from rutc.tensor_ir.steps import Lanes, Mark, NotApplicable, Pack, Reorder, Step
from rutc.tuner.access import Shape, Touch
from rutc.tuner.choice import Choice, shared_counts, shared_out, shared_text, worth_sharing
from rutc.tuner.space import Axis, Default, Template
from rutc.tuner.tiles.packing import dim_of_loop, packed
from rutc.tuner.vectors import MOST_AT_ONCE, copies_of_body, vectorised

MOST_WRITTEN_OUT = 16
"""Vectors of a reduction that is unrolled."""
VECTORS = (1, 2, 4, 8)
COPIES = (0, 1, 2, 4)
MOST_PERMUTED = 3


@record
class Lane:
    """Lanes of partial states: `vectors` registers along a loop, which may be written out."""

    loop: str
    vectors: int
    unroll: bool = False

    def __str__(self) -> str:
        return f"{self.loop} x {self.vectors}" + (" unrolled" if self.unroll else "")


@record
class Rows:
    """The parameters of a schedule of rows: any that fit the kernel compute the same.

    Each reduction has its `lanes`; None computes one state in the order of the loops. Of the loops
    `beside` the reductions (loop, vectors) an iteration computes so many vectors, none with 0. The
    loops around all of them are taken in this `order`, and threads share the first `parallel` ones,
    or all.
    """

    order: tuple[str, ...] = ()
    lanes: tuple[Lane | None, ...] = ()
    beside: tuple[tuple[str, int], ...] = ()
    parallel: int | None = 0

    def __str__(self) -> str:
        """What it has: `lanes n x 4, n.1 x 4; vectors n.2 x 2; all loops shared`."""
        lanes = ", ".join("one state" if x is None else str(x) for x in self.lanes)
        beside = ", ".join(f"{v} x {n}" for v, n in self.beside if n)
        said = [
            f"lanes {lanes}" if lanes else "",
            f"vectors {beside}" if beside else "",
            f"in {' '.join(self.order)}" if len(self.order) > 1 else "",
            shared_text(self.parallel),
        ]
        return "; ".join(filter(None, said)) or "loops as they are"


def rows(kernel: Kernel, shape: Shape, point: Rows, machine: Machine) -> Choice:
    """Reductions by lanes of partial states; the loops beside them by vectors.

    Raises:
        NotApplicable: the parameters do not fit the kernel.
    """
    steps: list[Step] = []
    packs: dict[str, Pack] = {}
    own = [x.var for x in shape.shared]
    if sorted(point.order) != sorted(own):
        raise NotApplicable(f"the loops around are {', '.join(own) or 'none'}")
    if list(point.order) != own:
        steps.append(Reorder(point.order))
    steps += shared_out(point.order, point.parallel)
    for r, lane in zip(shape.reductions, point.lanes, strict=True):
        if lane is None:
            continue
        width = machine.width * lane.vectors
        steps.append(Lanes(lane.loop, width, r.bound[0].var))
        if lane.unroll:
            if lane.loop in shape.symbolic or shape.extents[lane.loop] > MOST_WRITTEN_OUT * width:
                raise NotApplicable(f"{lane.loop} is too long to be written out")
            steps.append(Mark(f"{lane.loop}.o", Kind.UNROLL))
        for t in r.reads:
            if t.packable:
                of_loop = dim_of_loop(kernel, t.buffer)
                last = of_loop.get(lane.loop)
                if last is not None:
                    dims = [d for d, _ in kernel.buffer(t.buffer).layout.extents]
                    packs[t.buffer] = Pack(t.buffer, _in_rows(dims, of_loop, last))
    for v, vectors in point.beside:
        if vectors:
            steps += vectorised(v, shape.sizes[v], machine, vectors)
    return packed(packs, steps)


def _in_rows(dims: Sequence[str], of_loop: Mapping[str, str], last: str) -> tuple[str, ...]:
    """The order of a constant's dims in which the rows along `last` that loops read lie together.

    A dim of which one index is read, as data choose an expert's weights, is outermost.
    """
    walked = set(of_loop.values())
    return (*sorted((d for d in dims if d != last), key=lambda d: d in walked), last)


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Rows]:
    """Lanes along memory: one vector of a short loop, else several; written out if they are few."""
    order = tuple(x.var for x in shape.shared)
    lanes: list[Lane | None] = []
    for r in shape.reductions:
        lane = _best_lane([x.var for x in r.bound], r.reads, shape)
        if lane is None:
            lanes.append(None)
            continue
        several = machine.vectors_at_once
        long = shape.extents[lane] >= several * machine.width or lane in shape.symbolic
        blocks = ceil(shape.extents[lane] / (several * machine.width))
        done = blocks * several * max(sum(map(operations, r.update.elements)), 1)
        few = blocks <= MOST_WRITTEN_OUT and done <= MOST_AT_ONCE and lane not in shape.symbolic
        lanes.append(Lane(lane, several if long else 1, unroll=few or not long))
    beside: list[tuple[str, int]] = []
    for v, holds_loops in _beside(shape):
        own = [t for t in shape.touches if v in t.loops]
        body = tuple(s for s in walk_loops(shape.body) if s.var == v)
        along = not holds_loops and any(t.unit(v) for t in own)
        beside.append((v, copies_of_body(body, machine) if along else 0))
    parallel = None if worth_sharing(shape, machine) else 0
    return Default(Rows(order, tuple(lanes), tuple(beside), parallel))


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter; each reduction, and each loop beside them, has its own."""
    own = [x.var for x in shape.shared]
    orders = permutations(own) if len(own) <= MOST_PERMUTED else [tuple(own)]
    found: dict[str, Axis] = {"order": tuple(orders)}
    for number, r in enumerate(shape.reductions):
        loops = [x.var for x in r.bound if shape.extents[x.var] > 1]
        lanes = [Lane(v, n, u) for v in loops for n in VECTORS for u in (False, True)]
        found[f"lanes.{number}"] = (None, *lanes)
    for number, (v, holds_loops) in enumerate(_beside(shape)):
        found[f"beside.{number}"] = tuple((v, n) for n in ((0,) if holds_loops else COPIES))
    return {**found, "parallel": shared_counts(len(own), machine)}


def _beside(shape: Shape) -> Iterator[tuple[str, bool]]:
    """The loops beside reductions, and whether they hold others."""
    for v in shape.private:
        yield (
            v,
            any(
                isinstance(s, Loop) and s.var == v and any(isinstance(i, Loop) for i in s.body)
                for s in walk_stmts(shape.body)
            ),
        )


def _best_lane(bound: list[str], reads: tuple[Touch, ...], shape: Shape) -> str | None:
    best = max(
        bound,
        key=lambda v: (sum(t.unit(v) for t in reads if t.depends(v)), shape.extents[v]),
        default=None,
    )
    return best if best is not None and shape.extents[best] > 1 else None


ROWS = Template("rows", Rows, axes, default, rows)
