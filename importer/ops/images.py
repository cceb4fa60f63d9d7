"""ImageDecoder: the pixels of an encoded image, whose size the run reads from it."""

from __future__ import annotations

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, apply, cast
from rutc.tensor_ir.interpreter.routines import ROUTINES, Job

LONGEST_SIDE = 1 << 20
WEIGHTS = (19595, 38470, 7471)
"""Of red, green and blue in the brightness [ITU-R BT.601], times 65536."""


@operator("ImageDecoder")
def image_decoder(b: Builder, stream: Tensor, *, pixel_format: str = "RGB") -> Tensor:
    """{height, width, 3 or 1}: the pixels as RGB, BGR or Grayscale.

    PNG, BMP and binary PNM are read. Which format a stream has is known at run time, unless it is
    a constant: any other one ends the run, or is refused.
    """
    if stream.rank != 1 or stream.dtype is not DType.U8:
        raise OperatorError(f"the image must be a row of bytes, not {stream}")
    pixels = _pixels(b, stream)
    height, width, _ = pixels.shape
    if pixel_format == "RGB":
        return pixels
    if pixel_format == "BGR":
        return b.view(pixels, pixels.shape, lambda y, x, c: [y, x, 2 - c])
    if pixel_format != "Grayscale":
        raise OperatorError(f"the pixel format {pixel_format!r} is unknown")
    rows, columns, one = b.axes((height, width, 1))
    total: Expr = lit(1 << 15, DType.I32)
    for c, weight in enumerate(WEIGHTS):
        part = cast(b.read(pixels, [rows.index, columns.index, Index.of(c)]), DType.I32)
        total = apply("add", total, apply("mul", part, lit(weight, DType.I32)))
    bright = apply("div", total, lit(1 << 16, DType.I32))
    return b.nest((rows, columns, one), cast(bright, DType.U8))


def _pixels(b: Builder, stream: Tensor) -> Tensor:
    """{height, width, 3}: red, green and blue."""
    if stream.known is not None:
        job = Job([stream.known.astype(np.uint8)], (), {}, b.origin, 0)
        return b.constant(ROUTINES["image_pixels"](job)[0], DType.U8)
    whole = b.whole(stream)
    sides = b.call("image_size", (whole,), [(DType.I64, ()), (DType.I64, ())])
    height, width = (
        b.size(t, name, LONGEST_SIDE, 1) for t, name in zip(sides, ("height", "width"), strict=True)
    )
    axes = [Axis(b.dim(e), Index.of(e)) for e in (height, width, Index.of(3))]
    return b.call("image_pixels", (whole,), [(DType.U8, axes)])[0]
