"""The schedule of scatters: which loops may change places, and which becomes the vector."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Reorder, Step
from rutc.tensor_ir.steps.step import check_independent, find_loops
from rutc.tuner.access import Shape
from rutc.tuner.choice import Choice, shared_counts, shared_out, shared_text, worth_sharing
from rutc.tuner.space import Axis, Default, Template
from rutc.tuner.vectors import copies_of_body, vectorised

COPIES = (0, 1, 2, 4, 8)
MOST_PERMUTED = 4


@record
class Puts:
    """The parameters of a scatter's schedule: any that fit the kernel compute the same.

    Loops are taken in this `order`, the outermost first: those whose iterations may put to one
    place keep theirs, for the last value put there is the one to stay. Of the last one an iteration
    computes so many `vectors`, none with 0. Threads share the first `parallel` ones of the others,
    or all.
    """

    order: tuple[str, ...] = ()
    vectors: int = 0
    parallel: int | None = 0

    def __str__(self) -> str:
        """What it has: `i j x 4; 1 loop shared`."""
        loops = " ".join(self.order) or "no loops"
        return "; ".join(filter(None, (f"{loops} x {self.vectors}", shared_text(self.parallel))))


def scatter(kernel: Kernel, shape: Shape, point: Puts, machine: Machine) -> Choice:
    """Loops that keep to elements of their own outside, or as the vector.

    Raises:
        NotApplicable: the parameters do not fit the kernel.
    """
    own = [x.var for x in shape.shared]
    apart = _apart(kernel, shape)
    if sorted(point.order) != sorted(own):
        raise NotApplicable(f"the loops are {', '.join(own) or 'none'}")
    if [v for v in point.order if v not in apart] != [v for v in own if v not in apart]:
        raise NotApplicable("loops that may put to one place change theirs")
    if point.vectors and point.order[-1:] not in [(v,) for v in _lanes(shape, apart)]:
        raise NotApplicable("elements do not lie along the innermost loop")
    steps: list[Step] = []
    if len(own) > 1 and list(point.order) != own:
        steps.append(Reorder(point.order))
    if point.vectors:
        *outer, vector = point.order
        steps += shared_out(outer, point.parallel)
        steps += vectorised(vector, shape.sizes[vector], machine, point.vectors)
    else:
        steps += shared_out(point.order, point.parallel)
    return Choice(tuple(steps))


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Puts]:
    """Loops that threads may share outermost; the vector is the longest along memory."""
    apart = _apart(kernel, shape)
    ordered = [x.var for x in shape.shared if x.var not in apart]
    vector = max(_lanes(shape, apart), key=lambda v: shape.extents[v], default=None)
    if vector is not None:
        apart.remove(vector)
    return Default(
        Puts(
            (*apart, *ordered, *([vector] if vector is not None else [])),
            0 if vector is None else copies_of_body(kernel.body, machine),
            len(apart) if worth_sharing(shape, machine, len(shape.touches)) else 0,
        )
    )


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter."""
    own = [x.var for x in shape.shared]
    apart = _apart(kernel, shape)
    orders = permutations(own) if len(own) <= MOST_PERMUTED else [tuple(own)]
    kept = [v for v in own if v not in apart]
    return {
        "order": tuple(o for o in orders if [v for v in o if v not in apart] == kept),
        "vectors": COPIES,
        "parallel": shared_counts(len(own), machine),
    }


def _lanes(shape: Shape, apart: list[str]) -> list[str]:
    """The loops that may be the vector: memory lies along them."""
    stores = [t for t in shape.touches if t.is_store]
    return [v for v in apart if shape.extents[v] > 1 and all(t.unit(v) for t in stores)]


def _apart(kernel: Kernel, shape: Shape) -> list[str]:
    """Loops whose iterations put to places of their own, so that they may take any order.

    They do so outside of all other loops: of the sums of two indices, each is another one while the
    other index stays.
    """
    own = [x.var for x in shape.shared]
    found: list[str] = []
    for v in own:
        try:
            first = Reorder((v, *(w for w in own if w != v))).apply(kernel) if own[1:] else kernel
            for loop in find_loops(first, v):
                check_independent(first, loop)
        except NotApplicable:
            continue
        found.append(v)
    return found


SCATTER = Template("scatter", Puts, axes, default, scatter)
