"""Det: elimination with partial pivoting, one column a trip."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.builder import Builder, OperatorError, computing, lit
from rutc.importer.ops.loops import scanned
from rutc.importer.ops.operands import static
from rutc.importer.registry import operator
from rutc.importer.tensor import Axis, Tensor
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast, reducer


@operator("Det")
def det(b: Builder, x: Tensor) -> Tensor:
    """The determinants of the square matrices in the last two axes."""
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise OperatorError(f"{x} does not hold square matrices")
    n = static(x.shape[-1], "the matrices' extent")
    kind = computing(x.dtype)
    batch = x.shape[:-2]
    one = b.nest(b.axes(batch), lit(1, kind))
    if n == 0:
        return b.map(lambda e: cast(e, x.dtype), one)
    wide = b.map(lambda e: cast(e, kind), x)

    def step(t: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        matrices, total = states
        return _eliminated(b, matrices, total, n, t), ()

    (_, result), _ = scanned(b, Index.of(n), (wide, one), step)
    return b.map(lambda e: cast(e, x.dtype), result)


def _eliminated(b: Builder, a: Tensor, total: Tensor, n: int, t: Index) -> tuple[Tensor, Tensor]:
    """The matrices with column t eliminated below its pivot, and the product of all pivots."""
    kind = a.dtype
    zero = lit(0, kind)
    here = IndexValue(t)

    def at(stack: Sequence[Axis], row: Expr | Index, column: Index) -> Expr:
        return b.read(a, [*(s.index for s in stack), row, column])

    stack, i = b.axes(a.shape[:-2]), b.axis(n, "i")
    size = apply("abs", at(stack, i.index, t))
    open_ = apply("ge", IndexValue(i.index), here)
    size = apply("select", open_, size, lit(-1, kind))
    if n == 1:
        pivot = b.nest(stack, lit(0, DType.I64))
    else:
        how = reducer("argmax", kind, DType.I64)
        pivot = b.multi(stack, (size, IndexValue(i.index)), (i,), how)[1]

    stack = b.axes(a.shape[:-2])
    row = b.spread(pivot, stack)
    head = at(stack, row, t)
    even = apply("eq", row, here)
    sign = apply("select", even, lit(1, kind), lit(-1, kind))
    product = b.nest(stack, apply("mul", b.spread(total, stack), apply("mul", sign, head)))

    stack, i, j = b.axes(a.shape[:-2]), b.axis(n, "i"), b.axis(n, "j")
    row = b.spread(pivot, stack)
    # Rows t and `row` change places.
    mine: Expr = IndexValue(i.index)
    swapped = apply("select", apply("eq", mine, row), here, mine)
    swapped = apply("select", apply("eq", mine, here), row, swapped)
    head = at(stack, row, t)
    nothing = apply("eq", head, zero)
    divisor = apply("select", nothing, lit(1, kind), head)
    factor = apply("div", at(stack, swapped, t), divisor)
    rest = apply("sub", at(stack, swapped, j.index), apply("mul", factor, at(stack, row, j.index)))
    below = apply("gt", mine, here)
    after = b.nest((*stack, i, j), apply("select", below, rest, at(stack, swapped, j.index)))
    return after, product
