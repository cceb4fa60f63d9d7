"""Discrete Fourier transforms as contractions with tables of cosines and sines."""

from __future__ import annotations

from math import log

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import mul
from rutc.importer.ops.fourier_stages import factors_of, staged
from rutc.importer.ops.operands import array, axis_of, static
from rutc.importer.ops.reshape import linear
from rutc.importer.ops.run_time_axes import one_axis
from rutc.importer.ops.size_operands import sizes
from rutc.importer.reading.proto import dtype_of
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import floordiv, maximum, minimum, mod


@operator("DFT")
def dft(
    b: Builder,
    x: Tensor,
    dft_length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """The transform along one axis; the last axis holds real and imaginary parts.

    out[k] = sum{j} x[j] * exp(-2 pi i j k / n), or for the inverse with the other sign, over n.
    """
    if axis is not None and axis.known is None:
        outer = x.shape[:-1]
        found = one_axis(b, axis, outer, x.rank)
        folded = linear(b, x, (*found.parts, x.shape[-1]))
        fixed = b.constant(np.array(1))
        y = dft(b, folded, dft_length, fixed, inverse=inverse, onesided=onesided)
        return linear(b, y, (*found.replaced(outer, y.shape[1]), y.shape[-1]))
    at = axis_of(int(array(axis, "the axis").reshape(-1)[0]) if axis is not None else -2, x.rank)
    parts = static(x.shape[-1], "the number of parts")
    half_given = bool(inverse and onesided)
    have = x.shape[at]
    length = (have - 1) * 2 if half_given else have
    if dft_length is not None:
        (length,) = sizes(b, dft_length, "dft_length", 1, 1)
    half = floordiv(length, Index.of(2), b.ranges) + 1
    size = half if onesided and not inverse else length
    real_only = half_given
    shown = 1 if real_only else 2
    shape = (*x.shape[:at], size, *x.shape[at + 1 : -1], Index.of(shown))
    used = minimum(have, half if half_given else length, b.ranges)
    if length.is_const and size.is_const and length.const > 0:
        factors = factors_of(length.const, parts, size.const * shown / (2 * length.const))
        if len(factors) > 1 and (not half_given or (have.is_const and have.const <= half.const)):
            if half_given:
                x = _both_halves(b, x, at, length.const)
            return staged(b, x, at, factors, (size.const, shown), inverse=bool(inverse))
    wide = x.dtype.computing
    if length.is_const and used.is_const:
        table = _table(
            length.const, size.const, used.const, inverse=bool(inverse), folded=half_given
        )
        cosines, sines = (b.constant(t.astype(wide.numpy)) for t in table)
    else:
        cosines, sines = _computed_table(
            b, length, size, used, wide, inverse=bool(inverse), folded=half_given
        )
    axes = b.axes(shape)
    j = b.axis(used, "j")
    k = axes[at].index

    def term(part: int) -> Expr:
        inner = [a.index for a in axes]
        inner[at], inner[-1] = j.index, Index.of(part)
        return cast(b.read(x, inner), wide)

    c, s = (b.read(t, [k, j.index]) for t in (cosines, sines))
    real, imaginary = apply("mul", term(0), c), apply("mul", term(0), s)
    if parts == 2:
        real = apply("sub", real, apply("mul", term(1), s))
        imaginary = apply("add", imaginary, apply("mul", term(1), c))
    if real_only:
        return b.nest(axes, cast(real, x.dtype), (j,))
    which = apply("eq", IndexValue(axes[-1].index), lit(0, DType.I64))
    total = b.nest(axes, apply("select", which, real, imaginary), (j,))
    return b.as_type(total, x.dtype)


def _table(
    length: int, size: int, used: int, *, inverse: bool, folded: bool
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of 2 pi j k / length {k, j} with the transform's sign and scale.

    `folded` doubles what a one-sided spectrum leaves out.
    """
    turns = np.outer(np.arange(size), np.arange(used)) % length
    angle = 2 * np.pi * turns / length
    scale = np.full(used, 1 / length if inverse else 1.0)
    if folded:
        scale = scale * _times(length, used)
    sign = 1.0 if inverse else -1.0
    return np.cos(angle) * scale, sign * np.sin(angle) * scale


def _times(length: int, used: int) -> np.ndarray:
    """How often the whole spectrum has the numbers {used} of a one-sided one: once or twice."""
    at = np.arange(used)
    return np.where((at == 0) | (2 * at == length), 1.0, 2.0)


def _both_halves(b: Builder, x: Tensor, at: int, length: int) -> Tensor:
    """A one-sided spectrum whose transform's real part is that of the whole one's."""
    times = _times(length, x.shape[at].const).astype(x.dtype.computing.numpy)
    weights = b.constant(times.reshape(-1, *[1] * (x.rank - 1 - at)))
    return b.wide(mul, x, weights, onto=True)


def _computed_table(
    b: Builder, length: Index, size: Index, used: Index, kind: DType, *, inverse: bool, folded: bool
) -> tuple[Tensor, Tensor]:
    """`_table` of lengths that the run tells."""
    made: list[Tensor] = []
    for op, sign in (("cos", 1.0), ("sin", 1.0 if inverse else -1.0)):
        k, j = axes = b.axes((size, used), ("k", "j"))
        turns = cast(IndexValue(mod(k.index * j.index, length, b.ranges)), DType.F64)
        n = cast(IndexValue(length), DType.F64)
        angle = apply("div", apply("mul", turns, lit(2 * np.pi, DType.F64)), n)
        value: Expr = apply("mul", apply(op, angle), lit(sign, DType.F64))
        if inverse:
            value = apply("div", value, n)
        if folded:
            first = apply("eq", IndexValue(j.index), lit(0, DType.I64))
            middle = apply("eq", IndexValue(j.index * 2 - length), lit(0, DType.I64))
            alone = apply("or", first, middle)
            twice = apply("mul", value, lit(2, DType.F64))
            value = apply("select", alone, value, twice)
        made.append(b.nest(axes, cast(value, kind)))
    return made[0], made[1]


@operator("STFT")
def stft(
    b: Builder,
    signal: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """The transforms {batch, frame, k, part} of windows that slide over a signal.

    The signal is {batch, t, part}, or {batch, t} of real numbers, which the standard does not have
    and PyTorch exports.
    """
    if signal.rank == 2:
        signal = b.reshaped(signal, (*signal.axes, b.axis(1)))
    elif signal.rank != 3:
        raise OperatorError(f"the signal {signal} has not the axes batch, time and part")
    (step,) = sizes(b, frame_step, "frame_step", 1, 1)
    if window is not None:
        length = window.shape[0]
        if frame_length is not None:
            length = b.same(length, sizes(b, frame_length, "frame_length", 1, 1)[0])
    elif frame_length is not None:
        (length,) = sizes(b, frame_length, "frame_length", 1, 1)
    else:
        raise OperatorError("neither a window nor a frame length is given")
    frames = floordiv(signal.shape[1] - length, step, b.ranges) + 1
    shape = (signal.shape[0], maximum(frames, 0, b.ranges), length, signal.shape[2])
    framed = b.view(signal, shape, lambda i, f, t, p: [i, f * step + t, p])
    if window is not None:
        weights = b.reshaped(window, (*window.axes, b.axis(1)))
        framed = b.map(mul, framed, weights, onto=True)
    axis = b.constant(np.array(2))
    return dft(b, framed, None, axis, onesided=onesided)


@operator("MelWeightMatrix")
def mel_weight_matrix(
    b: Builder,
    num_mel_bins: Tensor,
    dft_length: Tensor,
    sample_rate: Tensor,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
    *,
    output_datatype: int = 1,
) -> Tensor:
    """{spectrogram bin, mel bin}: triangles, even and overlapping by half on the mel scale.

    Triangle i rises from edge i to edge i + 1 and falls to edge i + 2; an edge is a number of
    spectrogram bins, rounded down. A triangle that does not rise is 1 at its peak.
    """
    kind = dtype_of(output_datatype)
    (bins,) = sizes(b, num_mel_bins, "num_mel_bins", 1, 1)
    (length,) = sizes(b, dft_length, "dft_length", 1, 1)
    edges = _mel_edges(b, bins, length, sample_rate, lower_edge_hertz, upper_edge_hertz)
    axes = b.axes((floordiv(length, Index.of(2), b.ranges) + 1, bins), ("f", "mel"))
    at = cast(IndexValue(axes[0].index), DType.I32)
    low, peak, high = (b.read(edges, [axes[1].index + i]) for i in range(3))
    falls = apply("and", apply("ge", at, peak), apply("lt", at, high))
    rises = apply("and", apply("ge", at, low), apply("le", at, peak))
    # A quotient takes long: the two sides share one.
    quotient = DType.F64 if kind is DType.F64 else DType.F32
    way = apply("select", falls, apply("sub", high, at), apply("sub", at, low))
    whole = apply("select", falls, apply("sub", high, peak), apply("sub", peak, low))
    flat = apply("eq", whole, lit(0, DType.I32))
    y = apply("div", cast(way, quotient), cast(whole, quotient))
    y = apply("select", flat, lit(1, quotient), y)
    y = apply("select", apply("or", falls, rises), y, lit(0, quotient))
    return b.nest(axes, cast(y, kind))


def _mel_edges(
    b: Builder, bins: Index, length: Index, rate: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """{bins + 2}: the edges as numbers of spectrogram bins, whose differences are numbers of i32.

    mel = 2595 * log10(1 + hertz / 700).
    """
    scale = 2595 / log(10)

    def real(t: Tensor) -> Expr:
        return cast(b.read(t, [0] * t.rank), DType.F64)

    def times(e: Expr, k: float) -> Expr:
        return apply("mul", e, lit(k, DType.F64))

    def plus(e: Expr, k: float) -> Expr:
        return apply("add", e, lit(k, DType.F64))

    def mel(hertz: Expr) -> Expr:
        return times(apply("log", plus(times(hertz, 1 / 700), 1)), scale)

    axes = b.axes((bins + 2,))
    low = mel(real(lower))
    step = apply("div", apply("sub", mel(real(upper)), low), cast(IndexValue(bins + 2), DType.F64))
    at = apply("add", apply("mul", cast(IndexValue(axes[0].index), DType.F64), step), low)
    hertz = times(plus(apply("exp", times(at, 1 / scale)), -1), 700)
    wide = apply("mul", hertz, cast(IndexValue(length + 1), DType.F64))
    edge = apply("floor", apply("div", wide, real(rate)))
    last = (1 << 30) - 1
    edge = apply("max", apply("min", edge, lit(last, DType.F64)), lit(-last, DType.F64))
    return b.nest(axes, cast(edge, DType.I32))
