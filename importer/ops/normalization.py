"""Normalisations and softmax, each as a chain of small nests."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor, is_const
from rutc.importer.ops.activations import mul, shifted, squared
from rutc.importer.ops.operands import axis_of, static
from rutc.importer.ops.reductions import place_of_extreme, reduced
from rutc.importer.ops.reshape import reshape
from rutc.importer.reading.proto import dtype_of
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ZERO, floordiv


def widened(b: Builder, x: Tensor) -> Tensor:
    """`x` in a type wide enough to sum in."""
    return b.as_type(x, x.dtype.computing)


def softmax_over(b: Builder, x: Tensor, axis: int) -> Tensor:
    """exp(x - max) / sum of exp(x - max) along one axis."""
    if x.shape[axis] == ZERO:
        return x
    peak = reduced(b, x, (axis,), "max", keepdims=True)
    raised = b.map(lambda e, m: apply("exp", apply("sub", e, m)), x, peak)
    total = reduced(b, raised, (axis,), "sum", keepdims=True)
    return b.map(lambda e, s: apply("div", e, s), raised, total)


@operator("Softmax")
def softmax(b: Builder, x: Tensor, *, axis: int = -1) -> Tensor:
    """exp(x - max) / sum of exp(x - max) along an axis."""
    return b.as_type(softmax_over(b, widened(b, x), axis_of(axis, x.rank)), x.dtype)


@operator("LogSoftmax")
def log_softmax(b: Builder, x: Tensor, *, axis: int = -1) -> Tensor:
    """(x - max) - log of the sum of exp(x - max) along an axis."""
    at = (axis_of(axis, x.rank),)
    wide = widened(b, x)
    peak = reduced(b, wide, at, "max", keepdims=True)
    lowered = b.map(lambda e, m: apply("sub", e, m), wide, peak)
    total = reduced(b, lowered, at, "sum", keepdims=True, lift=lambda e: apply("exp", e))
    y = b.map(lambda e, s: apply("sub", e, apply("log", s)), lowered, total)
    return b.as_type(y, x.dtype)


@operator("Hardmax")
def hardmax(b: Builder, x: Tensor, *, axis: int = -1) -> Tensor:
    """1 at the first maximum along an axis, else 0."""
    at = axis_of(axis, x.rank)
    space = b.axes(x.shape)
    kept = [a for i, a in enumerate(space) if i != at]
    if space[at].dim is None:
        return b.nest(space, lit(1, x.dtype))
    found = place_of_extreme(b, kept, b.spread(x, space), space[at])
    axes = b.axes(x.shape)
    best = b.read(found, [a.index for i, a in enumerate(axes) if i != at])
    hit = apply("eq", best, IndexValue(axes[at].index))
    return b.nest(axes, apply("select", hit, lit(1, x.dtype), lit(0, x.dtype)))


@operator("BatchNormalization")
def batch_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    """(`x` - mean) * s + shift with s = scale / sqrt(variance + epsilon).

    In training, mean and variance are those of x; then the given ones, moved towards them, follow.
    """
    kind = variance.dtype.computing
    if not training_mode:
        return (batch_affine(b, x, scale, shift, mean, variance, epsilon, kind),)
    at = tuple(i for i in range(x.rank) if i != 1)
    wide = b.as_type(x, kind if kind.bits > x.dtype.computing.bits else x.dtype.computing)
    found = reduced(b, wide, at, "mean", keepdims=False)
    spread = b.reshaped(found, (*found.axes, *b.axes((1,) * (x.rank - 2))))
    centered = b.map(lambda e, m: apply("sub", e, m), wide, spread)
    square = reduced(b, centered, at, "mean", keepdims=False, lift=squared)

    def moved(old: Expr, new: Expr) -> Expr:
        kept = apply("mul", old, lit(momentum, old.dtype))
        return apply("add", kept, apply("mul", cast(new, old.dtype), lit(1 - momentum, old.dtype)))

    y = batch_affine(b, x, scale, shift, found, square, epsilon, wide.dtype)
    return y, b.wide(moved, mean, found), b.wide(moved, variance, square)


def batch_affine(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float,
    kind: DType,
) -> Tensor:
    """(`x` - mean) * (scale / sqrt(variance + epsilon)) + shift, by channel or element."""
    factor = b.map(
        lambda g, v: apply("div", cast(g, kind), apply("sqrt", shifted(cast(v, kind), epsilon))),
        scale,
        variance,
    )
    units = b.axes((1,) * (x.rank - 1 - factor.rank))
    center, factor, offset = (
        b.reshaped(t, (*t.axes, *units)) for t in (b.as_type(mean, kind), factor, shift)
    )

    def fn(e: Expr, m: Expr, s: Expr, t: Expr) -> Expr:
        centered = apply("sub", cast(e, kind), m)
        return cast(apply("add", apply("mul", centered, s), cast(t, kind)), x.dtype)

    return b.map(fn, x, center, factor, offset)


def centered_and_scaled(
    b: Builder, x: Tensor, axes: Sequence[int], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(mean square + epsilon), the mean, and 1 / sqrt(mean square + epsilon)."""
    mean = reduced(b, x, axes, "mean", keepdims=True)
    centered = b.map(lambda e, m: apply("sub", e, m), x, mean)
    y, inverse = scaled_to_unit(b, centered, axes, epsilon)
    return y, mean, inverse


def scaled_to_unit(
    b: Builder, x: Tensor, axes: Sequence[int], epsilon: float
) -> tuple[Tensor, Tensor]:
    """`x` / sqrt(mean square + epsilon), and 1 / sqrt(mean square + epsilon)."""
    square = reduced(b, x, axes, "mean", keepdims=True, lift=squared)
    inverse = b.map(
        lambda v: apply("div", lit(1, v.dtype), apply("sqrt", shifted(v, epsilon))), square
    )
    return b.map(mul, x, inverse), inverse


@operator("LayerNormalization")
@operator("LayerNormalization", "com.microsoft")
def layer_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, ...]:
    """The last axes from `axis` on normalised, scaled and shifted; mean and 1 / deviation.

    The result has the type of scale, which was a type of its own before opset 17.
    """
    at = tuple(range(axis_of(axis, x.rank), x.rank))
    stash = dtype_of(stash_type)
    y, mean, inverse = centered_and_scaled(b, widened(b, x), at, epsilon)
    made = affine(b, y, scale, shift, scale.dtype)
    return made, b.as_type(mean, stash), b.as_type(inverse, stash)


@operator("RMSNormalization")
def rms_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    """`x` / sqrt(mean square + epsilon) * scale over the last axes from `axis` on, in its type."""
    at = tuple(range(axis_of(axis, x.rank), x.rank))
    y, _ = scaled_to_unit(b, widened(b, x), at, epsilon)
    return affine(b, y, scale, None, scale.dtype)


def affine(b: Builder, y: Tensor, scale: Tensor, shift: Tensor | None, kind: DType) -> Tensor:
    """`y` * scale + shift as `kind`."""
    wide = y.dtype

    def fn(e: Expr, s: Expr, *t: Expr) -> Expr:
        total: Expr = apply("mul", e, cast(s, wide))
        if t:
            total = apply("add", total, cast(t[0], wide))
        return cast(total, kind)

    return b.map(fn, y, scale, *([] if shift is None else [shift]))


@operator("InstanceNormalization")
def instance_normalization(
    b: Builder, x: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    """Every channel of every image normalised, scaled and shifted."""
    y, _, _ = centered_and_scaled(b, widened(b, x), tuple(range(2, x.rank)), epsilon)
    units = b.axes((1,) * (x.rank - 2))
    by, plus = (b.reshaped(t, (*t.axes, *units)) for t in (scale, shift))
    return affine(b, y, by, plus, x.dtype)


@operator("GroupNormalization")
def group_normalization(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
) -> Tensor:
    """Groups of channels normalised, then every channel scaled and shifted.

    Models before opset 21 give one scale and one shift a group.
    """
    channels = static(x.shape[1], "the number of channels")
    if channels % num_groups:
        raise OperatorError(f"{channels} channels do not fall into {num_groups} groups")
    grouped_shape = (
        x.shape[0],
        Index.of(num_groups),
        Index.of(channels // num_groups),
        *x.shape[2:],
    )
    grouped = reshape(b, widened(b, x), grouped_shape)
    y, _, _ = centered_and_scaled(b, grouped, tuple(range(2, grouped.rank)), epsilon)
    share = channels // num_groups
    by, plus = (_each_channel(b, t, num_groups, share, x.rank - 2) for t in (scale, shift))
    return affine(b, reshape(b, y, x.shape), by, plus, x.dtype)


def _each_channel(b: Builder, t: Tensor, groups: int, share: int, spatial: int) -> Tensor:
    """`t` with one element for each channel, `share` of which make a group, and units behind."""
    if share > 1 and t.rank == 1 and is_const(t.shape[0], groups):
        each = Index.of(share)
        t = b.view(t, (groups * share,), lambda c: [floordiv(c, each, b.ranges)])
    return b.reshaped(t, (*t.axes, *b.axes((1,) * spatial)))


@operator("MeanVarianceNormalization")
def mean_variance_normalization(
    b: Builder, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)
) -> Tensor:
    """(x - mean) / (deviation + 1e-9) over the named axes."""
    at = tuple(axis_of(a, x.rank) for a in axes)
    wide = widened(b, x)
    mean = reduced(b, wide, at, "mean", keepdims=True)
    centered = b.map(lambda e, m: apply("sub", e, m), wide, mean)
    square = reduced(b, centered, at, "mean", keepdims=True, lift=squared)
    y = b.map(lambda e, v: apply("div", e, shifted(apply("sqrt", v), 1e-9)), centered, square)
    return b.as_type(y, x.dtype)


@operator("LpNormalization")
def lp_normalization(b: Builder, x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """`x` divided by its norm along an axis; 0 where the norm is 0."""
    at = (axis_of(axis, x.rank),)
    wide = widened(b, x)
    if p == 1:
        norm = reduced(b, wide, at, "sum", keepdims=True, lift=lambda e: apply("abs", e))
    elif p == 2:
        square = reduced(b, wide, at, "sum", keepdims=True, lift=squared)
        norm = b.map(lambda e: apply("sqrt", e), square)
    else:
        raise OperatorError(f"p is {p}; the standard knows 1 and 2")

    def fn(e: Expr, s: Expr) -> Expr:
        none = apply("eq", s, lit(0, s.dtype))
        quotient = apply("select", none, lit(0, s.dtype), apply("div", cast(e, s.dtype), s))
        return cast(quotient, x.dtype)

    return b.map(fn, x, norm)


@operator("LRN")
def lrn(
    b: Builder,
    x: Tensor,
    *,
    alpha: float = 0.0001,
    beta: float = 0.75,
    bias: float = 1.0,
    size: int,
) -> Tensor:
    """`x` / (bias + alpha / size * sum of squares over `size` neighbouring channels) ** beta."""
    axes = b.axes(x.shape, ("n", "c"))
    k = b.axis(size, "k")
    at = [a.index for a in axes]
    at[1] = at[1] + k.index - (size - 1) // 2
    element = cast(b.read(x, at, lit(0, x.dtype)), x.dtype.computing)
    total = b.nest(axes, apply("mul", element, element), (k,))

    def fn(e: Expr, s: Expr) -> Expr:
        base = shifted(apply("mul", s, lit(alpha / size, s.dtype)), bias)
        return apply("div", e, apply("pow", base, lit(beta, e.dtype)))

    return b.wide(fn, x, total)
