"""Images read at places that data tell, boxes, and layers with a state of opset 27."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from tests.fuzz.graph import Build, Refused, Val, maker
from tests.fuzz.operators.windows import window


@maker("DeformConv")
def deform_conv(b: Build, op: str) -> None:
    attrs, extents = window(b, 2)
    attrs.pop("auto_pad", None)
    rows, columns = attrs["kernel_shape"]
    groups, apart = b.one([1, 2]), b.one([1, 2])
    batch, ins, outs = b.one([1, 2]), 2 * b.one([1, 2]), b.one([1, 2]) * groups
    kind = b.dtype(["float", "double"])
    x = b.leaf(kind, [batch, ins, *extents])
    w = b.leaf(kind, [outs, ins // groups, rows, columns])
    pads = attrs.get("pads", [0] * 4)
    strides, dilations = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    sizes = []
    for k in range(2):
        reach = dilations[k] * (attrs["kernel_shape"][k] - 1) + 1
        sizes.append((extents[k] + pads[k] + pads[2 + k] - reach) // strides[k] + 1)
    if min(sizes) < 0:
        raise Refused
    places = [batch, 2 * apart * rows * columns, *sizes]
    operands: list[Val | None] = [x, w, b.leaf(kind, places, low=-1.7, high=1.7)]
    operands.append(b.leaf(kind, [outs]) if b.chance(50) else None)
    if b.chance(50):
        places[1] //= 2
        operands.append(b.leaf(kind, places, low=0, high=1))
    while operands[-1] is None:
        operands.pop()
    b.node(op, operands, group=groups, offset_group=apart, **attrs)


@maker("MaxRoiPool")
def max_roi_pool(b: Build, op: str) -> None:
    x = b.leaf(np.dtype(np.float32), [2, b.one([1, 3]), b.one([5, 7]), b.one([6, 8])])
    random = np.random.default_rng(b.number(0, 1 << 16))
    count = b.one([1, 3])
    low, size = random.integers(0, 4, [count, 2]), random.integers(0, 5, [count, 2])
    rois = np.concatenate([random.integers(0, 2, [count, 1]), low, low + size], 1)
    shape = [b.number(1, 3), b.number(1, 3)]
    scale = b.one([1.0, 0.5])
    b.node(op, [x, b.given(rois.astype(x.dtype))], pooled_shape=shape, spatial_scale=scale)


@maker("NonMaxSuppression")
def non_max_suppression(b: Build, op: str) -> None:
    batch, count, classes = b.one([1, 2]), b.one([3, 1, 7, 0]), b.one([1, 2])
    kind = np.dtype(np.float32)
    boxes = b.leaf(kind, [batch, count, 4], low=0, high=4)
    scores = b.leaf(kind, [batch, classes, count], low=0, high=1)
    operands: list[Val | None] = [boxes, scores, b.scalar(b.number(0, 4), fixed=b.chance(60))]
    thresholds = [b.one([0.5, 0.0, 0.9]), b.one([0.0, 0.4, 2.0])]
    given = thresholds[: b.number(0, 2)]
    operands += [b.given(np.array([number], kind)) for number in given]
    b.node(op, operands, center_point_box=b.number(0, 1))


@maker("CausalConvWithState")
def causal_conv(b: Build, op: str) -> None:
    batch, channels, taps, steps = b.one([1, 2]), b.one([2, 1, 5]), b.number(1, 4), b.one([3, 1, 7])
    kind = b.dtype(["float", "float16"])
    x, w = b.leaf(kind, [batch, channels, steps]), b.leaf(kind, [channels, 1, taps])
    operands: list[Val | None] = [x, w, b.leaf(kind, [channels]) if b.chance(50) else None]
    operands.append(b.leaf(kind, [batch, channels, taps - 1]) if b.chance(50) else None)
    while operands[-1] is None:
        operands.pop()
    b.node(op, operands, 2, activation=b.one(["none", "silu", "swish"]))


@maker("LinearAttention")
def linear_attention(b: Build, op: str) -> None:
    batch, steps, size = b.one([1, 2]), b.one([3, 1, 5]), b.one([4, 2, 8])
    shared = b.one([1, 2])
    heads = shared * b.one([1, 2])
    kind = b.dtype(["float", "float16"])
    q = b.leaf(kind, [batch, steps, heads * size])
    k, v = (b.leaf(kind, [batch, steps, shared * size]) for _ in "kv")
    rule = b.one(["linear", "gated", "delta", "gated_delta"])
    operands: list[Val | None] = [q, k, v]
    past = [batch, shared, size, size]
    operands.append(b.leaf(np.dtype(np.float32), past) if b.chance(50) else None)
    decay = b.leaf(kind, [batch, steps, shared], low=-2, high=0) if "gated" in rule else None
    rate = b.leaf(kind, [batch, steps, shared], low=0, high=1) if "delta" in rule else None
    operands += [decay, rate]
    while operands[-1] is None:
        operands.pop()
    given: dict[str, Any] = {"scale": 0.5} if b.chance(40) else {}
    b.node(op, operands, 2, q_num_heads=heads, kv_num_heads=shared, update_rule=rule, **given)


@maker("ImageDecoder")
def image_decoder(b: Build, op: str) -> None:
    from PIL import Image

    shape = [b.one([3, 1, 5]), b.one([4, 1, 7]), 3]
    pixels = b.leaf(np.dtype(np.uint8), shape, low=0, high=255, fixed=True).array
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, b.one(["PNG", "BMP"]))
    data = np.frombuffer(stream.getvalue(), np.uint8)
    b.node(op, [b.given(data)], pixel_format=b.one(["RGB", "BGR", "Grayscale"]))
