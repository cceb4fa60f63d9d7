"""Discrete Fourier transforms as contractions with a table of cosines and sines."""

from __future__ import annotations

from math import log

import numpy as np

from rutc.importer.builder import Builder, OperatorError, computing, lit
from rutc.importer.ops.operands import array, axis_of, ints, static
from rutc.importer.proto import dtype_of
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast


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
    at = axis_of(int(array(axis, "the axis").reshape(-1)[0]) if axis is not None else -2, x.rank)
    parts = static(x.shape[-1], "the number of parts")
    half_given = bool(inverse and onesided)
    have = static(x.shape[at], "the transformed extent")
    n = ints(dft_length, "dft_length")[0] if dft_length is not None else None
    length = n or (2 * (have - 1) if half_given else have)
    size = length // 2 + 1 if onesided and not inverse else length
    real_only = half_given
    shape = (*x.shape[:at], Index.of(size), *x.shape[at + 1 : -1], Index.of(1 if real_only else 2))
    used = min(have, length // 2 + 1 if half_given else length)
    table = _table(length, size, used, inverse=bool(inverse), folded=half_given)
    wide = computing(x.dtype)
    cosines, sines = (b.constant(t.astype(wide.numpy)) for t in table)
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
    return total if wide is x.dtype else b.map(lambda e: cast(e, x.dtype), total)


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
        twice = np.arange(used)
        scale = scale * np.where((twice == 0) | (2 * twice == length), 1.0, 2.0)
    sign = 1.0 if inverse else -1.0
    return np.cos(angle) * scale, sign * np.sin(angle) * scale


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
    """The transforms {batch, frame, k, part} of windows that slide over a signal."""
    step = ints(frame_step, "frame_step")[0]
    if frame_length is not None:
        length = ints(frame_length, "frame_length")[0]
    elif window is not None:
        length = static(window.shape[0], "the window's extent")
    else:
        raise OperatorError("neither a window nor a frame length is given")
    samples = static(signal.shape[1], "the signal's extent")
    frames = (samples - length) // step + 1
    shape = (signal.shape[0], Index.of(frames), Index.of(length), signal.shape[2])
    framed = b.view(signal, shape, lambda i, f, t, p: [i, f * step + t, p])
    if window is not None:
        weights = b.reshaped(window, (*window.axes, b.axis(1)))
        framed = b.map(lambda e, w: apply("mul", e, w), framed, weights)
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
    bins = ints(num_mel_bins, "num_mel_bins")[0]
    length = ints(dft_length, "dft_length")[0]
    edges = _mel_edges(b, bins, length, sample_rate, lower_edge_hertz, upper_edge_hertz)
    axes = b.axes((length // 2 + 1, bins), ("f", "mel"))
    at = cast(IndexValue(axes[0].index), DType.F64)
    low, peak, high = (b.read(edges, [axes[1].index + i]) for i in range(3))
    zero = lit(0, DType.F64)

    def within(first: Expr, last: Expr, value: Expr) -> Expr:
        inside = apply("and", apply("ge", at, first), apply("le", at, last))
        return apply("select", inside, value, zero)

    rise, fall = apply("sub", peak, low), apply("sub", high, peak)
    rising = within(low, peak, apply("div", apply("sub", at, low), rise))
    flat = within(peak, peak, lit(1, DType.F64))
    y: Expr = apply("select", apply("eq", rise, zero), flat, rising)
    falls = apply(
        "and", apply("gt", fall, zero), apply("and", apply("ge", at, peak), apply("lt", at, high))
    )
    y = apply("select", falls, apply("div", apply("sub", high, at), fall), y)
    return b.nest(axes, cast(y, kind))


def _mel_edges(
    b: Builder, bins: int, length: int, rate: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """{bins + 2}: the edges as numbers of spectrogram bins.

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
    step = times(apply("sub", mel(real(upper)), low), 1 / (bins + 2))
    at = apply("add", apply("mul", cast(IndexValue(axes[0].index), DType.F64), step), low)
    hertz = times(plus(apply("exp", times(at, 1 / scale)), -1), 700)
    return b.nest(axes, apply("floor", apply("div", times(hertz, length + 1), real(rate))))
