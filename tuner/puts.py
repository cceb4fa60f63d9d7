"""The schedule of scatters: which loops may change places, and which becomes the vector."""

from __future__ import annotations

from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Reorder, Schedule, Step
from rutc.tensor_ir.steps.step import check_independent
from rutc.tuner.access import Shape
from rutc.tuner.choice import shared_out
from rutc.tuner.pointwise import copies_of_body, vectorised


def puts(kernel: Kernel, shape: Shape, machine: Machine) -> Schedule:
    """Loops that keep to elements of their own outside, or as the vector."""
    apart, ordered, vector = _put_order(kernel, shape)
    order = [*apart, *ordered, *([vector] if vector is not None else [])]
    steps: list[Step] = []
    if len(order) > 1 and order != [x.var for x in shape.shared]:
        steps.append(Reorder(tuple(order)))
    steps += shared_out(apart, shape, machine, len(shape.touches))
    if vector is not None:
        steps += vectorised(vector, shape.sizes[vector], machine, copies_of_body(kernel.body))
    return tuple(steps)


def _put_order(kernel: Kernel, shape: Shape) -> tuple[list[str], list[str], str | None]:
    """(apart, ordered, vector): loops from the outermost; `vector`, if any, is the innermost.

    Iterations of a loop in `apart` put to places of their own, so these loops may be carried out
    in any order; `ordered` loops keep theirs, for the last value put to a place is the one to stay.
    """
    apart: list[str] = []
    ordered: list[str] = []
    for loop in shape.shared:
        try:
            check_independent(kernel, loop)
        except NotApplicable:
            ordered.append(loop.var)
        else:
            apart.append(loop.var)
    stores = [t for t in shape.touches if t.is_store]
    lanes = [
        x.var
        for x in shape.shared
        if x.var in apart and shape.extents[x.var] > 1 and all(t.unit(x.var) for t in stores)
    ]
    vector = max(lanes, key=lambda v: shape.extents[v], default=None)
    if vector is not None:
        apart.remove(vector)
    return apart, ordered, vector
