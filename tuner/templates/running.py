"""The schedule of running reductions: states that go on from one iteration to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import inf, prod

from rutc.base.record import record
from rutc.tensor_ir.expr import operations
from rutc.tensor_ir.indices.affine import Size
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import FEWEST_LANES, Machine
from rutc.tensor_ir.statements import exprs, walk_stmts
from rutc.tensor_ir.steps import NotApplicable, Peel, Reorder, Running, Split, Step, Tile
from rutc.tensor_ir.steps.running import prefix_of, running_parts
from rutc.tuner.access import Shape, memory_order
from rutc.tuner.choice import Choice, pays, shared_counts, shared_out, shared_text
from rutc.tuner.collapse import fuse_innermost
from rutc.tuner.lengths import leaves_rest
from rutc.tuner.space import Axis, Default, Template
from rutc.tuner.tiles.tile_registers import state_registers
from rutc.tuner.vectors import MOST_AT_ONCE

VECTORS = (0, 1, 2, 4, 8, 16)
ROWS = (1, 2, 4, 8, 16)
MOST_PERMUTED = 3


@record
class Onward:
    """The parameters of a schedule of running reductions: any that fit compute the same.

    The states of so many iterations of the last loop around, `order` says which, go on together:
    of so many `vectors`, or with 0 of so many `rows`. Up to `fused` loops around the last one
    become one with it. Threads share the first `parallel` ones of these loops, or all.
    """

    order: tuple[str, ...] = ()
    vectors: int = 0
    rows: int = 1
    fused: int = 0
    parallel: int | None = 0

    def __str__(self) -> str:
        """What it has: `i j x 4 vectors; 1 fused; all loops shared`."""
        many = f"{self.vectors} vectors" if self.vectors else f"{self.rows} rows"
        loops = f"{' '.join(self.order)} x {many}" if self.order else "no loops"
        fused = f"{self.fused} fused" if self.fused else ""
        return "; ".join(filter(None, (loops, fused, shared_text(self.parallel))))


def onward(kernel: Kernel, shape: Shape, point: Onward, machine: Machine) -> Choice:
    """The loop that states go along innermost, around it states that go on together.

    Raises:
        NotApplicable: the parameters do not fit the kernel.
    """
    along, own = running_along(kernel, shape), [x.var for x in shape.shared]
    if along is None or sorted((*point.order, along)) != sorted(own):
        raise NotApplicable("these are not the loops around a running reduction")
    steps: list[Step] = []
    if [*point.order, along] != own:
        steps.append(Reorder((*point.order, along)))
    order: tuple[str, ...] = point.order
    size: Size = 1
    if order:
        long = fuse_innermost(order, shape.sizes, shape.touches, point.fused)
        steps += long.steps
        order, size = long.loops, long.size
    steps.append(Running(along))
    together = point.vectors * machine.width or point.rows
    if not order or together == 1:
        return Choice((*steps, *shared_out(order, point.parallel)))
    *outer, v = order
    kind = Kind.VECTOR if point.vectors else Kind.UNROLL
    if isinstance(size, int) and size <= together:
        return Choice((*steps, *shared_out(outer, point.parallel), Tile((v,), (kind,))))
    steps.append(Split(v, together))
    steps += shared_out([*outer, f"{v}.o"], point.parallel)
    if leaves_rest(size, together):
        steps.append(Peel(f"{v}.o"))
    return Choice((*steps, Tile((f"{v}.i",), (kind,))))


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Onward] | None:
    """Vectors of a loop along memory, if there is one beside; else rows of the longest loop.

    Registers hold as many vectors as go on together: what follows in memory is read and written
    together, however far the next row is.
    """
    along = running_along(kernel, shape)
    if along is None:
        return None
    around = memory_order((x.var for x in shape.shared if x.var != along), shape)
    cycles = prod(shape.shared_extents[x.var] for x in shape.shared) * len(shape.touches)
    beside = [v for v in around if shape.extents[v] >= FEWEST_LANES]
    lane = next((v for v in beside if all(t.near(v) for t in shape.touches)), None)
    last = lane or max(around, key=lambda v: shape.extents[v], default=None)
    order = (*(v for v in around if v != last), *([last] if last is not None else []))
    if lane is not None:
        cycles //= machine.width
    parallel = None if pays(cycles, machine) else 0
    vectors = fused = 0
    if lane is not None:
        long = fuse_innermost(order, shape.sizes, shape.touches)
        fused = len(order) - len(long.loops)
        vectors = _together(order, fused, parallel, shape, machine)
    rows = 1 if vectors or last is None else machine.vectors_at_once
    # Short ones are summed by themselves, in vectors of several.
    liked = lane is not None or shape.extents[along] > FEWEST_LANES
    return Default(Onward(order, vectors, rows, fused, parallel), liked)


def _together(
    order: Sequence[str], fused: int, parallel: int | None, shape: Shape, machine: Machine
) -> int:
    """The vectors of a tile: as many as registers hold, and long bodies keep a processor busy with.

    Fewer where the loop has no more, or threads would have no tile each.
    """
    states = sum(map(state_registers, shape.reductions))
    done = sum(operations(e) for s in walk_stmts(shape.body) for e in exprs(s))
    most = min(machine.registers // states, MOST_AT_ONCE // max(done, 1))
    extents = [shape.extents[v] for v in order]
    size, tiles = prod(extents[-1 - fused :]), prod(extents) if parallel is None else inf
    return max(
        n
        for n in VECTORS
        if n <= max(most, 1)
        and n // 2 * machine.width < size
        and (n == 1 or n * machine.width * machine.cores <= tiles)
    )


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter."""
    along = running_along(kernel, shape)
    around = [x.var for x in shape.shared if x.var != along]
    orders = permutations(around) if len(around) <= MOST_PERMUTED else [tuple(around)]
    return {
        "order": () if along is None else tuple(orders),
        "vectors": VECTORS,
        "rows": ROWS,
        "fused": tuple(range(max(len(around), 1))),
        "parallel": shared_counts(len(around), machine),
    }


def running_along(kernel: Kernel, shape: Shape) -> str | None:
    """The loop that the kernel's only reduction is a running one along; None if there is none."""
    try:
        _, update, _ = running_parts(shape.body)
        own = [x.var for x in shape.shared]
        found = prefix_of(kernel, update, shape.body[1], own)
    except NotApplicable:
        return None
    return None if found is None else found.along


RUNNING = Template("running", Onward, axes, default, onward)
