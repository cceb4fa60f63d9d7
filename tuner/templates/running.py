"""The schedule of running reductions: states that go on from one iteration to the next."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Peel, Reorder, Running, Split, Step, Tile
from rutc.tensor_ir.steps.running import prefix_of, running_parts
from rutc.tuner.access import Shape, memory_order
from rutc.tuner.choice import Choice, pays, shared_counts, shared_out, shared_text
from rutc.tuner.lengths import leaves_rest
from rutc.tuner.space import Axis, Default, Template

VECTORS = (0, 1, 2, 4, 8, 16)
ROWS = (1, 2, 4, 8, 16)
MOST_PERMUTED = 3


@record
class Onward:
    """The parameters of a schedule of running reductions: any that fit compute the same.

    The states of so many iterations of the last loop around, `order` says which, go on together:
    of so many `vectors`, or with 0 of so many `rows`. Threads share the first `parallel` ones of
    these loops, or all.
    """

    order: tuple[str, ...] = ()
    vectors: int = 0
    rows: int = 1
    parallel: int | None = 0

    def __str__(self) -> str:
        """What it has: `i j x 4 vectors; all loops shared`."""
        many = f"{self.vectors} vectors" if self.vectors else f"{self.rows} rows"
        loops = f"{' '.join(self.order)} x {many}" if self.order else "no loops"
        return "; ".join(filter(None, (loops, shared_text(self.parallel))))


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
    steps.append(Running(along))
    together = point.vectors * machine.width or point.rows
    if not point.order or together == 1:
        return Choice((*steps, *shared_out(point.order, point.parallel)))
    *outer, v = point.order
    kind = Kind.VECTOR if point.vectors else Kind.UNROLL
    size = shape.sizes[v]
    if isinstance(size, int) and size <= together:
        return Choice((*steps, *shared_out(outer, point.parallel), Tile((v,), (kind,))))
    steps.append(Split(v, together))
    steps += shared_out([*outer, f"{v}.o"], point.parallel)
    if leaves_rest(size, together):
        steps.append(Peel(f"{v}.o"))
    return Choice((*steps, Tile((f"{v}.i",), (kind,))))


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Onward] | None:
    """Vectors of a loop along memory, if there is one beside; else rows of the longest loop."""
    along = running_along(kernel, shape)
    if along is None:
        return None
    around = memory_order((x.var for x in shape.shared if x.var != along), shape)
    own = machine.coefficients.vectors
    cycles = prod(shape.shared_extents[x.var] for x in shape.shared) * len(shape.touches)
    beside = [v for v in around if shape.extents[v] >= own.shortest]
    lane = next((v for v in beside if all(t.near(v) for t in shape.touches)), None)
    last = lane or max(around, key=lambda v: shape.extents[v], default=None)
    order = (*(v for v in around if v != last), *([last] if last is not None else []))
    if lane is not None:
        cycles //= machine.width
    parallel = None if pays(cycles, machine) else 0
    vectors = 0 if lane is None else own.copies
    rows = 1 if vectors or last is None else own.copies
    # Short ones are summed by themselves, in vectors of several.
    liked = lane is not None or shape.extents[along] > own.shortest
    return Default(Onward(order, vectors, rows, parallel), liked)


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter."""
    along = running_along(kernel, shape)
    around = [x.var for x in shape.shared if x.var != along]
    orders = permutations(around) if len(around) <= MOST_PERMUTED else [tuple(around)]
    return {
        "order": () if along is None else tuple(orders),
        "vectors": VECTORS,
        "rows": ROWS,
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
