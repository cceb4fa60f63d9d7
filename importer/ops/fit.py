"""Operands whose shapes must fit those of others: what the sizes do not tell, the run does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor, shape_text
from rutc.importer.free_sizes.open_sizes import must_equal
from rutc.importer.free_sizes.overflow import differ
from rutc.importer.ops.control import unless
from rutc.tensor_ir import Index, apply


def of_shape(b: Builder, t: Tensor, shape: Sequence[Index], role: str) -> Tensor:
    """`t`; a run in which it has another shape ends. `role` says what `t` does.

    Raises OperatorError where it has another one in every run.
    """
    told = f"{t} {role}: its shape should be {shape_text(shape)}"
    if t.rank != len(shape):
        raise OperatorError(told)
    pairs = [(e, n) for e, n in zip(t.shape, shape, strict=True) if e != n]
    if any((e - n).is_const for e, n in pairs):
        raise OperatorError(told)
    if not pairs:
        return t
    for e, n in pairs:
        must_equal(b, e, n)
    wrong = [differ(e, n, b.ranges) for e, n in pairs]
    other = b.nest((), reduce(partial(apply, "or"), wrong))
    return unless(b, other, t, f"{', '.join(b.origin)}: {told}")
