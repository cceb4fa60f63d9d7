"""Pooling, resizing, sampling and what else reads windows of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from rutc.verify.judging.tolerance import is_float
from tests.fuzz.data import is_integer
from tests.fuzz.graph import Build, Refused, Val, maker


def window(b: Build, spatial: int, *, dilated: bool = True) -> tuple[dict[str, Any], list[int]]:
    """Attributes of a window, and extents of an image that it fits in."""
    kernel = [b.one([1, 2, 3, 3, 5]) for _ in range(spatial)]
    given: dict[str, Any] = {"kernel_shape": kernel}
    dilations = [b.one([1, 1, 1, 2]) if dilated else 1 for _ in range(spatial)]
    if b.chance(50):
        given["strides"] = [b.one([1, 2, 3]) for _ in range(spatial)]
    if max(dilations) > 1:
        given["dilations"] = dilations
    pads = [0] * (2 * spatial)
    how = b.one(["none", "pads", "auto"])
    if how == "pads":
        pads = [b.number(0, (kernel[k % spatial] - 1)) for k in range(2 * spatial)]
        given["pads"] = pads
    elif how == "auto":
        given["auto_pad"] = b.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
    extents = []
    for k in range(spatial):
        reach = dilations[k] * (kernel[k] - 1) + 1
        least = max(1, reach - pads[k] - pads[spatial + k])
        if given.get("auto_pad", "").startswith("SAME"):
            least = 1
        extents.append(least + b.one([0, 1, 3, 4, 6, 10] if spatial < 3 else [0, 1, 2, 4]))
    return given, extents


def image(b: Build, op: str, extents: list[int]) -> Val:
    """An image of few channels."""
    kind = b.dtype([t for t in b.types(op) if t != "string"])
    return b.leaf(kind, [b.one([1, 2, 0]), b.one([1, 2, 3, 17]), *extents])


@maker("MaxPool AveragePool LpPool")
def pool(b: Build, op: str) -> None:
    dilated = b.has(op, "dilations")
    attrs, extents = window(b, b.one([2, 1, 3]), dilated=dilated)
    if b.has(op, "ceil_mode") and b.chance(30):
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and b.opset >= 7 and b.chance(40):
        attrs["count_include_pad"] = 1
    if op == "LpPool" and b.chance(40):
        attrs["p"] = b.one([1, 2, 3])
    outputs = 2 if op == "MaxPool" and b.opset >= 8 and b.chance(30) else 1
    b.node(op, [image(b, op, extents)], outputs, **attrs)


@maker("GlobalAveragePool GlobalMaxPool GlobalLpPool")
def global_pool(b: Build, op: str) -> None:
    x = b.pick(
        b.types(op), lambda v: v.rank > 2 and 0 not in v.shape, lambda: [2, 3, *b.shape(1, 2)]
    )
    b.node(op, [x], p=b.number(1, 3) if op == "GlobalLpPool" else None)


@maker("LRN")
def lrn(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank == 4, lambda: b.shape(4, 4))
    b.node(op, [x], size=b.one([3, 1, 5, 2]), bias=b.one([None, 2.0]))


@maker("Resize")
def resize(b: Build, op: str) -> None:
    extents = [b.one([2, 3, 1, 5, 8]) for _ in range(b.one([2, 1]))]
    x = image(b, op, extents)
    # The reference reads wide integers as floating-point numbers.
    if 0 in x.shape or (is_integer(x.dtype) and x.dtype.itemsize > 2):
        raise Refused
    modes = ["nearest"]
    # Whole numbers are cut off: where one lies on a whole number, a rounding error decides.
    if is_float(x.dtype):
        modes += ["linear", "cubic"] if b.opset >= 11 and len(extents) == 2 else ["linear"]
    mode = b.one(modes)
    if b.opset < 11:
        scales = np.array([1, 1, *(b.one([2.0, 1.0, 3.0]) for _ in extents)], np.float32)
        b.node(op, [x, b.given(scales, fixed=not b.chance(12))], mode=mode)
        return
    given: dict[str, Any] = {"mode": mode}
    if b.chance(60):
        given["coordinate_transformation_mode"] = b.one(
            ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
        )
    if mode == "nearest" and b.chance(50):
        given["nearest_mode"] = b.one(["round_prefer_floor", "floor", "ceil", "round_prefer_ceil"])
    if mode == "cubic" and b.chance(40):
        given["exclude_outside"] = 1
    roi = None if b.opset >= 13 else b.given(np.zeros(0, np.float32), fixed=True)
    if b.chance(50):
        sizes = [*x.shape[:2], *(b.one([4, 1, 2, 7, 9]) for _ in extents)]
        none = None if b.opset >= 13 else b.given(np.zeros(0, np.float32), fixed=True)
        b.node(op, [x, roi, none, b.integers(sizes)], **given)
    else:
        scales = np.array([1, 1, *(b.one([2.0, 0.5, 1.5, 3.0]) for _ in extents)], np.float32)
        if min(int(e * s) for e, s in zip(x.shape, scales, strict=True)) < 1:
            raise Refused
        b.node(op, [x, roi, b.given(scales, fixed=not b.chance(12))], **given)


@maker("Upsample")
def upsample(b: Build, op: str) -> None:
    x = b.leaf(np.dtype(np.float32), [1, 2, b.one([2, 3]), b.one([3, 1])])
    scales = [1.0, 1.0, b.one([2.0, 3.0]), b.one([1.0, 2.0])]
    if b.has(op, "scales"):
        b.node(op, [x], scales=scales, mode="nearest")
    else:
        weights = b.given(np.array(scales, np.float32), fixed=True)
        b.node(op, [x, weights], mode=b.one(["nearest", "linear"]))


@maker("GridSample")
def grid_sample(b: Build, op: str) -> None:
    batch, channels = b.one([1, 2]), b.one([1, 3])
    kind = b.dtype(["float", "double", "float16", "bfloat16"])
    x = b.leaf(kind, [batch, channels, b.one([2, 3, 5]), b.one([3, 1, 4])])
    grid = b.leaf(
        np.dtype(np.float32), [batch, b.one([2, 3]), b.one([3, 1]), 2], low=-1.3, high=1.3
    )
    modes = ["linear", "nearest"] if b.opset >= 20 else ["bilinear", "nearest"]
    padding = b.one(["zeros", "border", "reflection"])
    corners = b.number(0, 1)
    b.node(op, [x, grid], mode=b.one(modes), padding_mode=padding, align_corners=corners)


@maker("RoiAlign")
def roi_align(b: Build, op: str) -> None:
    x = b.leaf(np.dtype(np.float32), [2, b.one([1, 3]), b.one([5, 7]), b.one([6, 8])])
    count = b.one([1, 3, 0])
    low = b.leaf(np.dtype(np.float32), [count, 2], low=0, high=3, fixed=True).array
    size = b.leaf(np.dtype(np.float32), [count, 2], low=0.5, high=3, fixed=True).array
    rois = b.given(np.concatenate([low, low + size], 1))
    numbers = b.leaf(np.dtype(np.int64), [count], low=0, high=1)
    given: dict[str, Any] = {"output_height": b.number(1, 3), "output_width": b.number(1, 3)}
    ratio = b.one([1, 2])
    b.node(op, [x, rois, numbers], sampling_ratio=ratio, mode=b.one(["avg", "max"]), **given)


@maker("Col2Im")
def col2im(b: Build, op: str) -> None:
    block = [b.one([1, 2, 3]), b.one([2, 1])]
    size = [block[0] + b.number(0, 3), block[1] + b.number(0, 3)]
    blocks = (size[0] - block[0] + 1) * (size[1] - block[1] + 1)
    x = b.leaf(
        b.dtype(["float", "double"]), [b.one([1, 2]), b.one([1, 3]) * block[0] * block[1], blocks]
    )
    b.node(op, [x, b.integers(size), b.integers(block)])


@maker("MaxUnpool")
def max_unpool(b: Build, op: str) -> None:
    rows, columns = b.one([4, 6]), b.one([4, 2])
    x = b.leaf(np.dtype(np.float32), [1, b.one([1, 2]), rows, columns])
    y, at = b.node("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])
    b.node(op, [y, at], kernel_shape=[2, 2], strides=[2, 2])
