"""The order of a scatter's loops: which may change places, and which becomes the vector."""

from __future__ import annotations

from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.steps.base import NotApplicable, check_independent
from rutc.tuner.access import Shape


def put_order(kernel: Kernel, shape: Shape) -> tuple[list[str], list[str], str | None]:
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
