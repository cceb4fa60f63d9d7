"""Operators of models of early opsets: what ONNX dropped, and ONNX Runtime still runs.

`first_opsets` puts them into the domain EARLY, some with a meaning that is its own (`Align`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import scaled, shifted, softplus_of, thresholded_relu
from rutc.importer.ops.cuts import slice_of
from rutc.importer.ops.cuts import split as split_of
from rutc.importer.ops.normalization import batch_affine
from rutc.importer.ops.normalization import mean_variance_normalization as normalized
from rutc.importer.ops.operands import array, axis_of, ints
from rutc.importer.ops.reductions import reduced
from rutc.importer.registry import EARLY, operator
from rutc.tensor_ir import Index, apply
from rutc.tensor_ir.indices.affine import mod


@operator("Align", EARLY)
def align(b: Builder, x: Tensor, y: Tensor, *, axis: int) -> Tensor:
    """`y` with units behind its axes, so that they are those of `x` from `axis` on.

    They are its last axes where `y` has too many for that, as a single element may.
    """
    units = x.rank - axis_of(axis, x.rank) - y.rank
    return b.reshaped(y, (*y.axes, *b.axes((1,) * max(units, 0))))


@operator("Slopes", EARLY)
def slopes(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """`y` with units behind its axis where it is a row, so that it is that of the channels of x."""
    return align(b, x, y, axis=1) if y.rank == 1 < x.rank else y


@operator("Split", EARLY)
def split_by_input(b: Builder, x: Tensor, parts: Tensor, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Consecutive parts of an axis, whose extents are elements of the type of `x`."""
    lengths = array(parts, "split").astype(np.int64)
    return split_of(b, x, b.constant(lengths), axis=axis)


@operator("Tile", EARLY)
def tile_along(b: Builder, x: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    """`x` repeated along one axis."""
    (times,), (named,) = ints(tiles, "tiles"), ints(axis, "the axis")
    at = axis_of(named, x.rank)
    shape = [e * times if i == at else e for i, e in enumerate(x.shape)]

    def coords(*out: Index) -> Sequence[Index]:
        return [mod(o, x.shape[at], b.ranges) if i == at else o for i, o in enumerate(out)]

    return b.view(x, shape, coords)


@operator("BatchNormalization", EARLY)
def normalization_of_elements(
    b: Builder,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
) -> Tensor:
    """`x` normalised by a mean and a variance for each element of a batch's elements."""
    return batch_affine(b, x, scale, shift, mean, variance, epsilon, variance.dtype.computing)


@operator("MeanVarianceNormalization", EARLY)
def mean_variance_normalization(
    b: Builder, x: Tensor, *, across_channels: int = 0, normalize_variance: int = 1
) -> Tensor:
    """`x` less its mean over the batch, all of space and perhaps channels, by its deviation."""
    at = tuple(i for i in range(x.rank) if i != 1 or across_channels)
    if normalize_variance:
        return normalized(b, x, axes=at)
    mean = reduced(b, x, at, "mean", keepdims=True)
    return b.map(lambda e, m: apply("sub", e, m), x, mean)


@operator("Affine", EARLY)
def affine(b: Builder, x: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    """alpha * `x` + beta."""
    return b.wide(lambda e: shifted(scaled(e, alpha), beta), x)


@operator("Scale", EARLY)
def scale(b: Builder, x: Tensor, *, scale: float = 1.0) -> Tensor:
    """scale * `x`."""
    return b.wide(lambda e: scaled(e, scale), x)


@operator("ScaledTanh", EARLY)
def scaled_tanh(b: Builder, x: Tensor, *, alpha: float, beta: float) -> Tensor:
    """alpha * tanh(beta * `x`)."""
    return b.wide(lambda e: scaled(apply("tanh", scaled(e, beta)), alpha), x)


@operator("ParametricSoftplus", EARLY)
def parametric_softplus(b: Builder, x: Tensor, *, alpha: float, beta: float) -> Tensor:
    """alpha * log(1 + exp(beta * `x`))."""
    return b.wide(lambda e: scaled(softplus_of(scaled(e, beta)), alpha), x)


@operator("ImageScaler", EARLY)
def image_scaler(b: Builder, x: Tensor, *, bias: Sequence[float], scale: float = 1.0) -> Tensor:
    """scale * `x` plus a bias for each channel of an image {n, c, y, x}."""
    if x.rank != 4:
        raise OperatorError(f"{x} is no image: it should have four axes")
    b.number(x.shape[1], len(bias), "the number of channels")
    kind = x.dtype.computing
    plus = b.constant(np.array(bias, kind.numpy).reshape(-1, 1, 1), kind)
    return b.wide(lambda e, t: apply("add", scaled(e, scale), t), x, plus, onto=True)


@operator("Crop", EARLY)
def crop(b: Builder, x: Tensor, *, border: Sequence[int], scale: Sequence[int] = ()) -> Tensor:
    """An image without a border (left, top, right, bottom), or `scale` (height, width) of it."""
    if x.rank != 4 or len(border) != 4 or len(scale) not in (0, 2):
        raise OperatorError(f"border {tuple(border)} and scale {tuple(scale)} do not fit {x}")
    left, top, right, bottom = border
    n, c, height, width = x.shape
    kept = (height - top - bottom, width - left - right)
    if scale:
        kept = (Index.of(scale[0]), Index.of(scale[1]))
    for e, whole, begin in zip(kept, (height, width), (top, left), strict=True):
        if begin < 0 or (e.is_const and e.const < 0) or _is_beyond(b, e + begin, whole):
            raise OperatorError(f"border {tuple(border)} and scale {tuple(scale)} do not fit {x}")
    return b.view(x, (n, c, *kept), lambda i, k, y, z: [i, k, y + top, z + left])


def _is_beyond(b: Builder, end: Index, extent: Index) -> bool:
    """Whether an end is behind that of an axis in every run."""
    room = (extent - end).bounds(b.ranges)
    return room is not None and room[1] < 0


@operator("DynamicSlice", EARLY)
def dynamic_slice(
    b: Builder, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None
) -> Tensor:
    """x[start:end] along the named axes, or the first ones."""
    return slice_of(b, x, starts, ends, axes)


operator("ThresholdedRelu", EARLY)(thresholded_relu)
