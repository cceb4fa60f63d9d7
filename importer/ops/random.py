"""Random numbers: a routine makes uniform ones, nests the rest.

A node without a seed has one of its own, made of its name, so that artifacts are reproducible; the
numbers of a session's runs differ all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import pi

import ml_dtypes

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Shape, Tensor
from rutc.importer.ops.prefix import running
from rutc.importer.reading.proto import dtype_of
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, Lit, apply, cast
from rutc.tensor_ir.indices.affine import ONE
from rutc.tensor_ir.interpreter.routines.random import LONG_BITS, SHORT_BITS

SEED_BYTES = 7


@operator("RandomUniform")
def random_uniform(
    b: Builder,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """Numbers uniform in [low, high)."""
    return _scaled(b, _drawn, _extents(shape), dtype_of(dtype), high - low, low, seed)


@operator("RandomUniformLike")
def random_uniform_like(
    b: Builder,
    x: Tensor,
    *,
    dtype: int = 0,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """Numbers uniform in [low, high), as many as the operand has."""
    kind = dtype_of(dtype) if dtype else x.dtype
    return _scaled(b, _drawn, x.shape, kind, high - low, low, seed)


@operator("RandomNormal")
def random_normal(
    b: Builder,
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """Numbers of the normal distribution."""
    return _scaled(b, _normal, _extents(shape), dtype_of(dtype), scale, mean, seed)


@operator("RandomNormalLike")
def random_normal_like(
    b: Builder,
    x: Tensor,
    *,
    dtype: int = 0,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    """Numbers of the normal distribution, as many as the operand has."""
    kind = dtype_of(dtype) if dtype else x.dtype
    return _scaled(b, _normal, x.shape, kind, scale, mean, seed)


@operator("Bernoulli")
def bernoulli(b: Builder, x: Tensor, *, dtype: int = 0, seed: float | None = None) -> Tensor:
    """1 with the probability that the operand gives, else 0."""
    kind = dtype_of(dtype) if dtype else x.dtype
    drawn = _drawn(b, x.shape, seed)

    def hit(u: Expr, p: Expr) -> Expr:
        return cast(apply("lt", u, cast(p, DType.F64)), kind)

    return b.map(hit, drawn, x)


@operator("Multinomial")
def multinomial(
    b: Builder, x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Tensor:
    """Classes drawn by unnormalised log-probabilities {batch, class}.

    u ~ uniform[0, 1);  y = number of classes c with  sum_(c' <= c) exp(x[c']) <= u * sum exp(x)
    """
    if x.rank != 2:
        raise OperatorError(f"the operand must have two axes, not {x}")
    if sample_size < 1:
        raise OperatorError(f"a sample size of {sample_size}")
    batch, classes = x.axes[0], x.axes[1]
    wide = b.map(lambda e: cast(e, DType.F64), x)
    top = b.nest((batch,), b.read(wide, [batch.index, classes.index]), (classes,), "max")
    axes = b.axes(x.shape)
    shifted = apply("sub", b.spread(wide, axes), b.read(top, [axes[0].index]))
    sums = running(b, b.nest(axes, apply("exp", shifted)), 1, "sum")
    drawn = _drawn(b, (x.shape[0], Index.of(sample_size)), seed)
    rows, samples = b.axes(drawn.shape)
    last = classes.extent - 1
    # The last class takes what rounding leaves, so it is not counted.
    passed = b.axis(last, "c")
    limit = apply(
        "mul", b.read(drawn, [rows.index, samples.index]), b.read(sums, [rows.index, last])
    )
    one = cast(apply("le", b.read(sums, [rows.index, passed.index]), limit), DType.I64)
    if last.is_const and last.const < 1:
        return b.nest((rows, samples), lit(0, dtype_of(dtype)))
    if passed.extent == ONE:
        return b.nest((rows, samples), cast(one, dtype_of(dtype)))
    found = b.nest((rows, samples), one, (passed,))
    return b.map(lambda e: cast(e, dtype_of(dtype)), found)


@operator("Dropout")
def dropout(
    b: Builder,
    x: Tensor,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
) -> tuple[Tensor, ...]:
    """The operand and a mask of ones; in training, elements dropped and the others scaled.

    mask = u >= ratio;  y = x / (1 - ratio) where mask, else 0

    With a seed, u are the numbers that numpy draws with it, the same in every run.
    """
    if training_mode is None or (training_mode.array is not None and not training_mode.array.any()):
        if len(b.outputs) == 1:
            return (x,)
        return x, b.nest(b.axes(x.shape), lit(1, DType.BOOL))
    if seed is None:
        drawn = _drawn(b, x.shape, None)
    else:
        axes = b.full_axes(x.shape)
        (drawn,) = b.call("numpy_uniform", (), [(DType.F64, axes)], seed=seed & 0xFFFFFFFF)

    def scalar(t: Tensor | None, default: Lit) -> Expr:
        return default if t is None else b.read(t, [0] * t.rank)

    training = scalar(training_mode, Lit(True, DType.BOOL))
    share = cast(scalar(ratio, Lit(0.5, DType.F32)), DType.F64)
    kept = apply("ge", b.spread(drawn, axes := b.axes(x.shape)), share)
    mask = b.nest(axes, apply("or", kept, apply("not", training)))
    axes = b.axes(x.shape)
    wide = DType.F64 if x.dtype is DType.F64 else DType.F32
    factor = cast(apply("div", lit(1, DType.F64), apply("sub", lit(1, DType.F64), share)), wide)
    element = b.spread(x, axes)
    scaled = cast(apply("mul", cast(element, wide), factor), x.dtype)
    dropped = apply("select", b.spread(mask, axes), scaled, lit(0, x.dtype))
    return b.nest(axes, apply("select", training, dropped, element)), mask


def _extents(shape: Sequence[int]) -> Shape:
    return tuple(Index.of(n) for n in shape)


def _scaled(
    b: Builder,
    draw: Callable[[Builder, Shape, float | None, int], Tensor],
    shape: Shape,
    kind: DType,
    scale: float,
    offset: float,
    seed: float | None,
) -> Tensor:
    """offset + scale * (drawn numbers), of a type."""
    bits = ml_dtypes.finfo(kind.numpy).nmant + 1  # type: ignore[no-untyped-call]
    drawn = draw(b, shape, seed, int(bits))

    def body(u: Expr) -> Expr:
        return cast(apply("add", apply("mul", u, lit(scale, u.dtype)), lit(offset, u.dtype)), kind)

    return b.map(body, drawn)


def _drawn(b: Builder, shape: Shape, seed: float | None, bits: int = LONG_BITS) -> Tensor:
    """f64 numbers uniform in [0, 1), under a seed, or under one made of the node's name.

    They have so many bits: with those of a narrower type they are below 1 in that type, too.
    """
    what = repr(("seed", seed) if seed is not None else ("node", b.origin, len(b.nodes)))
    number = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=SEED_BYTES).digest())
    return b.call("uniform", (), [(DType.F64, b.full_axes(shape))], seed=number, bits=bits)[0]


def _normal(b: Builder, shape: Shape, seed: float | None, bits: int) -> Tensor:
    """f64 numbers of the standard normal distribution, of two uniform ones each [Box & Muller].

    sqrt(-2 * log(1 - u0)) * cos(2 * pi * u1), where 1 - u0 is exact, and tells by its bits how far
    from the mean numbers may be: up to 6.5 deviations with 31 bits, 8.5 with 53.
    """
    bits = LONG_BITS if bits == LONG_BITS else SHORT_BITS
    drawn = _drawn(b, (Index.of(2), *shape), seed, bits)
    axes = b.axes(shape)
    u0, u1 = (b.read(drawn, [n, *(a.index for a in axes)]) for n in range(2))

    def number(x: float) -> Lit:
        return lit(x, DType.F64)

    squared = apply("mul", number(-2.0), apply("log", apply("sub", number(1.0), u0)))
    angle = apply("mul", number(2 * pi), u1)
    return b.nest(axes, apply("mul", apply("sqrt", squared), apply("cos", angle)))
