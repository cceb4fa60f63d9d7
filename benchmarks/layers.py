"""`python -m benchmarks.layers`: single layers of real networks that compilers are often slow at.

Dilated windows on small maps, windows that move in steps of two, quantised convolutions, products
and LSTMs, 4-bit weights. Each layer is an ONNX model of its own; rutc and ONNX Runtime take turns,
on one core and on two. Results go to benchmarks/results/layers.json and docs/layers.md.
"""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from benchmarks import layout
from benchmarks.narrow import (
    ONE_SCALE,
    SEVEN_BITS,
    Case,
    dynamic_product,
    integer_product,
    measured,
    packed_product,
    random,
    scaled,
    single,
    table,
)
from benchmarks.protocol import OPERATOR_S, Page, write
from benchmarks.store import Entry, case_of


def convolution(
    size: int, channels: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1
) -> Case:
    """Returns a convolution of {1, channels, size, size} with padding that keeps its size."""
    reach = kernel // 2 * dilation
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        pads=[reach] * 4,
    )
    w = random(np.float32, outputs, channels, kernel, kernel)
    result = -(-size // stride)
    step = f"/{stride}" if stride > 1 else ""
    apart = f" dilation {dilation}" if dilation > 1 else ""
    return single(
        f"conv {kernel}x{kernel}{step}{apart} {size}x{size} {channels}->{outputs}",
        [node],
        random(np.float32, 1, channels, size, size),
        {"w": w},
        2 * result * result * w.size,
    )


def quantised(
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    *,
    kind: str = "",
) -> Case:
    """Returns a convolution between DequantizeLinear and QuantizeLinear, as tools export it."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bf"], axis=0),
        helper.make_node(
            "Conv",
            ["xf", "wf", "bf"],
            ["yf"],
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
            group=groups,
        ),
        helper.make_node("QuantizeLinear", ["yf", "sy", "zy"], ["y"]),
    ]
    shape = outputs, channels // groups, kernel, kernel
    w = random(np.int8, *shape)
    if kind == ONE_SCALE:
        w = scaled(*shape)
    elif kind == SEVEN_BITS:
        w = scaled(*shape, largest=63, summed=(1, 2, 3))
    most = 0.01 if kind == ONE_SCALE else 0.02
    scales = np.linspace(0.01, most, outputs, dtype=np.float32)
    constants = {
        "sx": np.float32(0.05),
        "zx": np.uint8(121),
        "w": w,
        "sw": scales,
        "zw": np.zeros(outputs, np.int8),
        "b": (random(np.float32, outputs) * 1000).astype(np.int32),
        "sb": scales * np.float32(0.05),
        "zb": np.zeros(outputs, np.int32),
        "sy": np.float32(2.0),
        "zy": np.uint8(130),
    }
    result = -(-size // stride)
    step = f"/{stride}" if stride > 1 else ""
    operator = "depthwise" if groups > 1 else "conv"
    return single(
        f"QDQ {operator} {kernel}x{kernel}{step} {size}x{size} {channels}->{outputs}{kind}",
        nodes,
        random(np.uint8, 1, channels, size, size),
        constants,
        2 * result * result * w.size,
        np.uint8,
    )


def dynamic_convolution(
    size: int, channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> Case:
    """Returns a float convolution whose input is quantised at run time, with padding."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(
            "ConvInteger",
            ["q", "w", "z", "zw"],
            ["p"],
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
            group=groups,
        ),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "sw"], ["scale"]),
        helper.make_node("Mul", ["f", "scale"], ["y"]),
    ]
    w = random(np.uint8, outputs, channels // groups, kernel, kernel)
    constants = {"w": w, "zw": np.uint8(131), "sw": np.float32(0.01)}
    result = -(-size // stride)
    step = f"/{stride}" if stride > 1 else ""
    kind = "depthwise" if groups > 1 else "conv"
    return single(
        f"dynamically quantised {kind} {kernel}x{kernel}{step} {size}x{size} {channels}->{outputs}",
        nodes,
        random(np.float32, 1, channels, size, size),
        constants,
        2 * result * result * w.size,
    )


def quantised_lstm(
    steps: int, batch: int, inputs: int, hidden: int, *, one_scale: bool = False
) -> Case:
    """Returns DynamicQuantizeLSTM of one direction."""
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"],
        ["y"],
        domain="com.microsoft",
        hidden_size=hidden,
    )
    shapes = (1, inputs, 4 * hidden), (1, hidden, 4 * hidden)
    w, r = (scaled(*x) if one_scale else random(np.int8, *x) for x in shapes)
    constants = {
        "w": w,
        "r": r,
        "b": random(np.float32, 1, 8 * hidden) * np.float32(0.1),
        "ws": np.full(1, 0.002, np.float32),
        "wz": np.zeros(1, np.int8),
        "rs": np.full(1, 0.002, np.float32),
        "rz": np.zeros(1, np.int8),
    }
    return single(
        f"DynamicQuantizeLSTM {steps} steps, batch {batch}, {inputs}->{hidden}"
        f"{ONE_SCALE * one_scale}",
        [node],
        random(np.float32, steps, batch, inputs),
        constants,
        2 * steps * batch * (inputs + hidden) * 4 * hidden,
    )


MODELS = (
    *(convolution(16, 256, 256, 3, dilation=d) for d in (6, 12, 18, 24, 36)),
    *(convolution(16, 960, 256, 3, dilation=d) for d in (12, 24, 36)),
    convolution(224, 3, 64, 7, 2),
    convolution(56, 128, 128, 3, 2),
    convolution(28, 256, 256, 3, 2),
    convolution(14, 512, 512, 3, 2),
    convolution(14, 1024, 256, 1),
    convolution(14, 256, 1024, 1),
    convolution(7, 2048, 512, 1),
    *(quantised(s, c, c, 3) for s, c in ((56, 64), (28, 128), (14, 256), (7, 512))),
    *(quantised(s, c, c, 3, 2) for s, c in ((56, 128), (28, 256), (14, 512))),
    quantised(224, 3, 64, 7, 2),
    *(quantised(s, c, 4 * c, 1) for s, c in ((56, 64), (28, 128), (14, 256), (7, 512))),
    *(quantised(s, 4 * c, c, 1) for s, c in ((56, 64), (28, 128), (14, 256), (7, 512))),
    quantised(56, 144, 144, 3, groups=144),
    quantised(14, 576, 576, 3, groups=576),
    *(dynamic_product(128, n, k) for n, k in ((768, 768), (3072, 768), (768, 3072))),
    dynamic_product(16, 768, 768),
    dynamic_convolution(56, 64, 64, 3),
    dynamic_convolution(28, 128, 128, 3, 2),
    dynamic_convolution(224, 3, 64, 7, 2),
    dynamic_convolution(56, 96, 96, 3, groups=96),
    integer_product(128, 768, 768),
    integer_product(128, 768, 768, np.uint8, np.uint8),
    *(
        quantised(s, c, n, 1, kind=kind)
        for kind in (ONE_SCALE, SEVEN_BITS)
        for s, c, n in ((28, 512, 128), (7, 512, 2048))
    ),
    *(dynamic_product(128, n, k, one_scale=True) for n, k in ((768, 768), (768, 3072))),
    integer_product(128, 768, 768, one_scale=True),
    *(quantised_lstm(50, b, 64, h) for b in (1, 8) for h in (128, 256)),
    *(quantised_lstm(50, b, 64, 256, one_scale=True) for b in (1, 8)),
    packed_product(64, 1536, 384),
    packed_product(64, 4096, 4096),
    packed_product(16, 4096, 4096),
)
CASES = {
    f"{model.name}, {threads} thread{'s' * (threads > 1)}": (model, threads)
    for model in MODELS
    for threads in (1, 2)
}


def measure(name: str, seconds: float, peers: Sequence[str]) -> Entry:
    """Returns the entry of one case: medians of whole calls."""
    case, threads = CASES[name]
    return measured(case, threads, seconds, peers)


def page(entries: Sequence[Entry]) -> str:
    """Returns the Markdown page of the entries."""
    said = (
        "Written by `python -m benchmarks.layers`. Single layers on one core and on two, in turns",
        "with ONNX Runtime; times are of whole calls from Python. Below 1 rutc is faster.",
        "Without dot products of bytes ONNX Runtime adds products of bytes up in 16 bits, which",
        "saturate; rows of 8-bit layers then say the ratio to its exact mode, too, whose results",
        "are those of rutc.",
        *layout.LINES,
    )
    return layout.page("Single layers", said, entries, table)


PAGE = Page(
    "layers",
    __doc__,
    list(CASES),
    measure,
    case_of,
    lambda entries: write("layers", page(entries)),
    seconds=OPERATOR_S,
)

if __name__ == "__main__":
    PAGE.main()
