"""The single operators that `benchmarks.kernels` measures, each an ONNX model of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rutc.verify.bench import aligned

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One operator: its name in the table, a function that builds the model, and its work.

    `flops` are those of the operator's definition; with `exact` no algorithm may save any of them.
    `read_bytes` and `written_bytes` count inputs, weights and output once.
    """

    name: str
    build: Callable[[], onnx.ModelProto]
    inputs: Mapping[str, Shape]
    flops: int
    read_bytes: int
    written_bytes: int
    exact: bool = False

    def values(self) -> dict[str, Array]:
        """Returns the inputs, random and always the same, at whole cache lines."""
        return {name: aligned(random(*shape)) for name, shape in self.inputs.items()}


def random(*shape: int) -> Array:
    """Returns normally distributed elements, the same for every call."""
    values: Array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return values


def model(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, Shape], weights: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """Returns a model of float32 inputs with these nodes, which compute y."""
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def convolution(
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    channels_last: bool = False,
    exact: bool = False,
) -> Case:
    """Returns a square convolution {1, channels, size, size} -> {1, outputs, ...}, same padding.

    With `channels_last` the model's input and output are {1, size, size, channels} and ONNX
    Transpose nodes stand around the convolution: so it stands inside a network, where the
    neighbours' layout is the compiler's choice.
    """
    shape = (1, size, size, channels) if channels_last else (1, channels, size, size)
    result = -(-size // stride)
    x, y = ("x_first", "y_first") if channels_last else ("x", "y")
    nodes = [
        helper.make_node(
            "Conv",
            [x, "w"],
            [y],
            name="conv",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=groups,
        )
    ]
    if channels_last:
        before = helper.make_node("Transpose", ["x"], [x], perm=[0, 3, 1, 2])
        after = helper.make_node("Transpose", [y], ["y"], perm=[0, 2, 3, 1])
        nodes = [before, *nodes, after]
    weight_shape = (outputs, channels // groups, kernel, kernel)
    elements = result * result * outputs
    kind = "depthwise" if groups == channels else "conv"
    step = f"/{stride}" if stride > 1 else ""
    return Case(
        f"{kind} {kernel}x{kernel}{step} {size}x{size} {channels}->{outputs}"
        + (" (channels last)" if channels_last else "")
        + (", direct" if exact else ""),
        lambda: model(nodes, {"x": shape}, {"w": random(*weight_shape)}),
        {"x": shape},
        2 * elements * prod(weight_shape[1:]),
        4 * (prod(shape) + prod(weight_shape)),
        4 * elements,
        exact,
    )


def product(rows: int, columns: int, inner: int) -> Case:
    """Returns a product {rows, inner} x {inner, columns}; the second operand is constant."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    shape = {"x": (rows, inner)}
    return Case(
        f"product {rows}x{columns}x{inner}",
        lambda: model([node], shape, {"w": random(inner, columns)}),
        shape,
        2 * rows * columns * inner,
        4 * inner * (rows + columns),
        4 * rows * columns,
    )


def attention(heads: int, length: int, width: int) -> Case:
    """Returns softmax(q k^T / sqrt(width)) v, all {1, heads, length, width}."""
    shape = (1, heads, length, width)
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = dict.fromkeys("qkv", shape)
    scale = np.full((), width**-0.5, np.float32)
    return Case(
        f"attention {heads}x{length}x{width}",
        lambda: model(nodes, inputs, {"scale": scale}),
        inputs,
        4 * heads * length * length * width,
        3 * 4 * prod(shape),
        4 * prod(shape),
    )


def _resnet50() -> list[Case]:
    """The convolutions of ResNet-50, each once. 3x3 ones carry the stride of a stage."""
    cases = [convolution(224, 3, 64, 7, stride=2)]
    size, channels = 56, 64
    for stage, (inner, outer) in enumerate(((64, 256), (128, 512), (256, 1024), (512, 2048))):
        stride = 1 if stage == 0 else 2
        cases.append(convolution(size, channels, inner, 1))
        if stride > 1:
            cases.append(convolution(size, inner, inner, 3, stride))
        cases.append(convolution(size, channels, outer, 1, stride))
        size //= stride
        cases += [
            convolution(size, inner, inner, 3),
            convolution(size, inner, outer, 1),
            convolution(size, outer, inner, 1),
        ]
        channels = outer
    return cases


def _mobilenet_v2() -> list[Case]:
    """The convolutions of MobileNetV2, each once."""
    cases = [convolution(224, 3, 32, 3, stride=2)]
    size, channels = 112, 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    for factor, outputs, repeats, stride in (
        *stages,
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for step in (stride,) + (1,) * (repeats - 1):
            wide = channels * factor
            if factor > 1:
                cases.append(convolution(size, channels, wide, 1))
            cases.append(convolution(size, wide, wide, 3, step, groups=wide))
            size //= step
            cases.append(convolution(size, wide, outputs, 1))
            channels = outputs
    return [*cases, convolution(size, channels, 1280, 1)]


def _distinct(cases: list[Case]) -> tuple[Case, ...]:
    return tuple({case.name: case for case in cases}.values())


CASES = _distinct(
    [
        *(product(n, n, n) for n in (256, 512, 1024, 2048)),
        product(384, 3072, 768),
        attention(12, 384, 64),
        *_resnet50(),
        *_mobilenet_v2(),
    ]
)
"""What the summary is made of: products, attention, all convolutions of two networks."""

MORE = (
    convolution(56, 64, 64, 3, exact=True),
    convolution(28, 128, 128, 3, exact=True),
    convolution(14, 256, 256, 3, exact=True),
    convolution(7, 512, 512, 3, exact=True),
    convolution(56, 64, 64, 3, channels_last=True),
    convolution(28, 128, 128, 3, channels_last=True),
    convolution(14, 256, 256, 3, channels_last=True),
    convolution(7, 512, 512, 3, channels_last=True),
    convolution(56, 128, 128, 3, stride=2, channels_last=True),
    convolution(56, 64, 256, 1, channels_last=True),
    convolution(14, 1024, 256, 1, channels_last=True),
    product(384, 768, 768),
    product(384, 768, 3072),
    product(16, 3072, 768),
    product(1, 4096, 4096),
    product(509, 511, 513),
)
"""Further shapes."""
