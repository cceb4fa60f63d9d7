"""Sums of products: MatMul, Gemm, Einsum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import KnownSizesError, OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, apply, cast


def sum_products(
    b: Builder, axes: Sequence[Axis], bound: Sequence[Axis], factors: Sequence[Expr], kind: DType
) -> Tensor:
    """sum{bound} of the product of the factors, accumulated wide, as `kind`."""
    wide = kind.computing
    body = cast(factors[0], wide)
    for f in factors[1:]:
        body = apply("mul", body, cast(f, wide))
    return b.as_type(b.nest(axes, body, bound), kind)


def matmul_of(b: Builder, x: Tensor, y: Tensor, kind: DType | None = None) -> Tensor:
    """The product of (stacks of) matrices as numpy's `matmul` defines it, summed as `kind`."""
    if x.rank == 0 or y.rank == 0:
        raise OperatorError(f"matrices are expected, not {x} and {y}")
    inner, other = x.shape[-1], y.shape[max(0, y.rank - 2)]
    if inner != other and inner.is_const and other.is_const:
        raise KnownSizesError(f"{x} and {y} cannot be multiplied")
    inner = b.same(inner, other)
    batch = b.axes(
        b.broadcast([x.shape[:-2], y.shape[:-2]]), ("b",) if max(x.rank, y.rank) == 3 else ()
    )
    rows = b.axes(x.shape[-2:-1] if x.rank > 1 else (), ("m",))
    columns = b.axes(y.shape[-1:] if y.rank > 1 else (), ("n",))
    k = b.axis(inner, "k")

    def stacked(t: Tensor) -> list[Index]:
        own = t.axes[:-2]
        return [b.along(o, a) for o, a in zip(own, batch[len(batch) - len(own) :], strict=True)]

    left = b.read(x, [*stacked(x), *(a.index for a in rows), k.index])
    right = b.read(y, [*stacked(y), k.index, *(a.index for a in columns)])
    return sum_products(b, (*batch, *rows, *columns), (k,), (left, right), kind or x.dtype)


@operator("MatMul")
def matmul(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """The product of (stacks of) matrices."""
    return matmul_of(b, x, y)


@operator("MatMulInteger")
def matmul_integer(
    b: Builder,
    x: Tensor,
    y: Tensor,
    x_zero: Tensor | None = None,
    y_zero: Tensor | None = None,
) -> Tensor:
    """The i32 product of 8-bit matrices, their zero points subtracted."""
    return matmul_of(b, centered(b, x, x_zero, rows=True), centered(b, y, y_zero, rows=False))


def centered(b: Builder, t: Tensor, zero: Tensor | None, *, rows: bool) -> Tensor:
    """A quantised matrix less its zero point, as i32; there may be one for every row or column."""
    if zero is None:
        return b.map(lambda e: cast(e, DType.I32), t)
    if zero.rank == 1 and rows and t.rank > 1:
        zero = b.reshaped(zero, (*zero.axes, b.axis(1)))
    return b.map(lambda e, z: apply("sub", cast(e, DType.I32), cast(z, DType.I32)), t, zero)


@operator("Gemm")
def gemm(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:
    """`alpha` * x' @ y' + beta * c, where ' may transpose."""
    if x.rank != 2 or y.rank != 2:
        raise OperatorError(f"matrices are expected, not {x} and {y}")
    m, k = reversed(x.shape) if transA else x.shape
    k2, n = reversed(y.shape) if transB else y.shape
    if k != k2 and k.is_const and k2.is_const:
        raise KnownSizesError(
            f"{x} and {y} cannot be multiplied (transA={transA}, transB={transB})"
        )
    rows, columns, inner = b.axis(m, "m"), b.axis(n, "n"), b.axis(b.same(k, k2), "k")
    left, right = [rows.index, inner.index], [inner.index, columns.index]
    factors = (
        b.read(x, left[::-1] if transA else left),
        b.read(y, right[::-1] if transB else right),
    )
    wide = x.dtype.computing
    if wide.is_int and not (float(alpha).is_integer() and float(beta).is_integer()):
        wide = DType.F64
    total = sum_products(b, (rows, columns), (inner,), factors, wide)

    def finish(e: Expr, *added: Expr) -> Expr:
        y = _times(e, alpha)
        for z in added:
            y = apply("add", y, _times(cast(z, wide), beta))
        return cast(y, x.dtype)

    if alpha == 1.0 and c is None and wide is x.dtype:
        return total
    addends = () if c is None or beta == 0.0 else (c,)
    return b.map(finish, total, *addends, onto=True)


def _times(e: Expr, factor: float) -> Expr:
    return e if factor == 1.0 else apply("mul", e, lit(factor, e.dtype))


@operator("Einsum")
def einsum(b: Builder, *operands: Tensor, equation: str) -> Tensor:
    """Einstein's summation; a letter that occurs twice in a term takes the diagonal."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise OperatorError(f"equation {equation!r} has {len(terms)} terms, not {len(operands)}")
    wild = max(
        (
            t.rank - len(s.replace("...", ""))
            for s, t in zip(terms, operands, strict=True)
            if "..." in s
        ),
        default=0,
    )
    spelled = [
        _letters(s, t.rank - len(s.replace("...", "")), wild)
        for s, t in zip(terms, operands, strict=True)
    ]
    if arrow:
        result = _letters(right, wild, wild)
    else:
        every = [c for s in spelled for c in s]
        once = sorted({c for c in every if len(c) == 1 and every.count(c) == 1})
        result = [*(f"...{i}" for i in range(wild)), *once]
    sizes: dict[str, list[Index]] = {}
    for s, t in zip(spelled, operands, strict=True):
        if len(s) != t.rank:
            raise OperatorError(f"equation {equation!r} does not fit an operand {t}")
        for c, extent in zip(s, t.shape, strict=True):
            sizes.setdefault(c, []).append(extent)
    axes: dict[str, Axis] = {}
    for c, extents in sizes.items():
        (extent,) = b.broadcast([(e,) for e in extents])
        axes[c] = b.axis(extent, c if len(c) == 1 else "")
    if any(c not in axes for c in result):
        raise OperatorError(f"equation {equation!r} has an output letter that no operand has")
    kind = operands[0].dtype
    parts = list(zip(spelled, operands, strict=True))
    while len(parts) > 2:
        # Two at a time: all at once would run over all letters together.
        later = {c for s, _ in parts[2:] for c in s} | set(result)
        kept = [c for c in axes if c in later and any(c in s for s, _ in parts[:2])]
        parts[:2] = [(kept, _contracted(b, parts[:2], kept, axes, kind.computing))]
    return _contracted(b, parts, result, axes, kind)


def _contracted(
    b: Builder,
    parts: Sequence[tuple[Sequence[str], Tensor]],
    kept: Sequence[str],
    extents: Mapping[str, Axis],
    kind: DType,
) -> Tensor:
    """The product of tensors, whose axes have letters, summed over all letters but the kept."""
    used = [c for c in extents if any(c in s for s, _ in parts)]
    axes = {c: b.axis(extents[c].extent, c if len(c) == 1 else "") for c in used}
    factors = [
        b.read(t, [b.along(a, axes[c]) for c, a in zip(s, t.axes, strict=True)]) for s, t in parts
    ]
    bound = [a for c, a in axes.items() if c not in kept]
    return sum_products(b, [axes[c] for c in kept], bound, factors, kind)


def _letters(term: str, own: int, wild: int) -> list[str]:
    """A term's letters; the ellipsis stands for its last `own` of the `wild` broadcast axes."""
    head, dots, tail = term.partition("...")
    middle = [f"...{i}" for i in range(wild - own, wild)] if dots else []
    return [*head, *middle, *tail]
