"""Small networks, of what models are made of: for tests of whole plans."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rutc.importer import import_model
from rutc.tensor_ir import Graph

Built = Callable[["Net"], str]
NETWORKS: dict[str, Built] = {}
"""Every network by name: what it makes of its first input."""
DIMS: dict[str, dict[str, tuple[int, int]]] = {}
"""The ranges of the sizes that are told by inputs' shapes."""


class Net:
    """A model under construction; calling it adds a node and gives the name of its result."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def input(self, *shape: int | str, type_: int = TensorProto.FLOAT) -> str:
        """An input of that shape."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, type_, shape))
        return name

    def const(self, values: object, dtype: type = np.float32) -> str:
        """A constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """A constant of random numbers."""
        return self.const(self.rng.standard_normal(shape) / 2)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """The node's first result; others have its name and `.1`, `.2` and so on."""
        name = f"v{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return name

    def save(self, path: Path, *results: str) -> Path:
        """The file of a model with these outputs."""
        outputs = [onnx.ValueInfoProto(name=r) for r in results]
        graph = helper.make_graph(self.nodes, "net", self.inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        model = onnx.shape_inference.infer_shapes(model)
        known = {v.name: v for v in model.graph.value_info}
        for o in model.graph.output:
            if o.name in known:
                o.CopyFrom(known[o.name])
        onnx.save(model, path)
        return path

    def graph(self, *results: str, dims: Mapping[str, tuple[int, int]]) -> Graph:
        """The imported model with these outputs."""
        with tempfile.TemporaryDirectory() as folder:
            return import_model(self.save(Path(folder) / "net.onnx", *results), dims=dims)


def network(**dims: tuple[int, int]) -> Callable[[Built], Built]:
    """Enters a network under the name of its function."""

    def enter(build: Built) -> Built:
        NETWORKS[build.__name__], DIMS[build.__name__] = build, dims
        return build

    return enter


def graph_of(name: str) -> Graph:
    """The imported graph of a network."""
    net = Net()
    return net.graph(NETWORKS[name](net), dims=DIMS[name])


@network()
def residual(n: Net) -> str:
    x = n.input(2, 4, 6, 6)
    y = n("Relu", n("Conv", x, n.weight(8, 4, 3, 3), n.weight(8), pads=[1, 1, 1, 1]))
    y = n("Conv", y, n.weight(4, 8, 1, 1))
    return n("Relu", n("Add", x, y))


@network()
def stem(n: Net) -> str:
    x = n.input(1, 3, 11, 11)
    y = n("Conv", x, n.weight(8, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    scale = (n.const(np.linspace(0.5, 1.5, 8)) for _ in range(4))
    y = n("Relu", n("BatchNormalization", y, *scale))
    return n("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


@network()
def separable(n: Net) -> str:
    x = n.input(1, 8, 7, 7)
    y = n("Conv", x, n.weight(8, 1, 3, 3), group=8, pads=[1, 1, 1, 1])
    y = n("Clip", y, n.const(0.0), n.const(6.0))
    y = n("Conv", y, n.weight(16, 8, 1, 1))
    return n("HardSwish", y)


@network()
def dilated(n: Net) -> str:
    x = n.input(1, 4, 6, 6)
    parts = [n("Conv", x, n.weight(4, 4, 3, 3), dilations=[d, d], pads=[d] * 4) for d in (1, 2, 4)]
    return n("Concat", *parts, axis=1)


@network()
def transposed(n: Net) -> str:
    x = n.input(1, 4, 5, 5)
    y = n("ConvTranspose", x, n.weight(4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    return n("Sigmoid", y)


@network()
def pools(n: Net) -> str:
    x = n.input(2, 4, 9, 9)
    a = n("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    b = n("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return n("Add", a, n("Mul", b, n("GlobalAveragePool", x)))


@network()
def perceptron(n: Net) -> str:
    x = n.input(5, 16)
    y = n("Gelu", n("Gemm", x, n.weight(16, 32), n.weight(32)))
    return n("Softmax", n("Gemm", y, n.weight(32, 10), n.weight(10)))


@network()
def normalised(n: Net) -> str:
    x = n.input(2, 6, 16)
    y = n("LayerNormalization", x, n.weight(16), n.weight(16))
    return n("Add", x, n("MatMul", n("Relu", n("MatMul", y, n.weight(16, 8))), n.weight(8, 16)))


def _attention(n: Net, x: str, heads: int, size: int) -> str:
    width = heads * size

    def split(perm: list[int]) -> str:
        y = n("MatMul", x, n.weight(width, width))
        y = n("Reshape", y, n.const([0, 0, heads, size], np.int64))
        return n("Transpose", y, perm=perm)

    scores = n("MatMul", split([0, 2, 1, 3]), split([0, 2, 3, 1]))
    p = n("Softmax", n("Div", scores, n.const(size**0.5)), axis=-1)
    y = n("Transpose", n("MatMul", p, split([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    return n("Reshape", y, n.const([0, 0, width], np.int64))


@network()
def attention(n: Net) -> str:
    return _attention(n, n.input(2, 5, 8), 2, 4)


@network()
def encoder(n: Net) -> str:
    x = n.input(1, 6, 8)
    y = n("Add", x, _attention(n, x, 2, 4))
    y = n("LayerNormalization", y, n.weight(8), n.weight(8))
    z = n("MatMul", n("Gelu", n("MatMul", y, n.weight(8, 16))), n.weight(16, 8))
    return n("LayerNormalization", n("Add", y, z), n.weight(8), n.weight(8))


@network(s=(1, 9))
def encoder_of_any_length(n: Net) -> str:
    x = n.input(1, "s", 8)
    y = n("Add", x, _attention(n, x, 2, 4))
    return n("LayerNormalization", y, n.weight(8), n.weight(8))


@network(b=(1, 4))
def images_of_any_number(n: Net) -> str:
    x = n.input("b", 3, 6, 6)
    y = n("Relu", n("Conv", x, n.weight(8, 3, 3, 3), pads=[1, 1, 1, 1]))
    y = n("Relu", n("Conv", y, n.weight(8, 8, 3, 3), pads=[1, 1, 1, 1]))
    return n("Flatten", n("GlobalAveragePool", y))


@network()
def inception(n: Net) -> str:
    x = n.input(1, 8, 6, 6)
    a = n("Relu", n("Conv", x, n.weight(4, 8, 1, 1)))
    b = n("Relu", n("Conv", a, n.weight(4, 4, 1, 3), pads=[0, 1, 0, 1]))
    c = n("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return n("Concat", a, b, n("Conv", c, n.weight(4, 8, 1, 1)), axis=1)


@network()
def dense_block(n: Net) -> str:
    x = n.input(1, 4, 5, 5)
    for width in (4, 8, 12):
        y = n("Relu", n("Conv", x, n.weight(4, width, 3, 3), pads=[1, 1, 1, 1]))
        x = n("Concat", x, y, axis=1)
    return x


@network()
def shuffled(n: Net) -> str:
    x = n.input(1, 8, 5, 5)
    y = n("Split", x, axis=1, num_outputs=2, outputs=2)
    z = n("Concat", n("Relu", y), n("Conv", f"{y}.1", n.weight(4, 4, 1, 1)), axis=1)
    z = n("Reshape", z, n.const([1, 2, 4, 5, 5], np.int64))
    z = n("Transpose", z, perm=[0, 2, 1, 3, 4])
    return n("Reshape", z, n.const([1, 8, 5, 5], np.int64))


@network()
def pyramid(n: Net) -> str:
    x = n.input(1, 4, 4, 4)
    y = n("Conv", n.input(1, 4, 8, 8), n.weight(4, 4, 1, 1))
    up = n("Resize", x, "", n.const([1, 1, 2, 2]), mode="nearest")
    return n("Conv", n("Add", up, y), n.weight(4, 4, 3, 3), pads=[1, 1, 1, 1])


@network()
def bilinear(n: Net) -> str:
    x = n.input(1, 3, 4, 5)
    y = n("Resize", x, "", "", n.const([1, 3, 9, 11], np.int64), mode="linear")
    return n("Softmax", y, axis=1)


@network()
def group_norm(n: Net) -> str:
    x = n.input(2, 8, 4, 4)
    y = n("GroupNormalization", x, n.weight(8), n.weight(8), num_groups=4)
    y = n("Mul", y, n("Sigmoid", y))
    return n("Conv", y, n.weight(4, 8, 3, 3), pads=[1, 1, 1, 1])


@network()
def squeeze_and_excite(n: Net) -> str:
    x = n.input(2, 8, 5, 5)
    s = n("Relu", n("Conv", n("GlobalAveragePool", x), n.weight(2, 8, 1, 1)))
    return n("Mul", x, n("HardSigmoid", n("Conv", s, n.weight(8, 2, 1, 1))))


@network()
def embeddings(n: Net) -> str:
    ids = n.input(2, 5, type_=TensorProto.INT64)
    y = n("Gather", n.weight(11, 8), n("Mod", ids, n.const(11, np.int64)))
    return n("MatMul", n("Add", y, n.weight(5, 8)), n.weight(8, 6))


@network()
def scattered(n: Net) -> str:
    x = n.input(6, 4)
    y = n("ScatterND", x, n.const([[1], [4]], np.int64), n.input(2, 4))
    return n("MatMul", n("Relu", y), n.weight(4, 3))


@network()
def lstm(n: Net) -> str:
    x = n.input(4, 2, 3)
    y = n("LSTM", x, n.weight(1, 16, 3), n.weight(1, 16, 4), hidden_size=4)
    return n("Relu", n("Squeeze", y, n.const([1], np.int64)))


@network()
def gru(n: Net) -> str:
    x = n.input(3, 2, 5)
    w, r = n.weight(2, 12, 5), n.weight(2, 12, 4)
    return n("GRU", x, w, r, hidden_size=4, direction="bidirectional")


@network()
def running_sum(n: Net) -> str:
    x = n.input(3, 7)
    return n("Mul", n("CumSum", x, n.const(1, np.int64)), n("Softplus", x))


@network()
def quantised(n: Net) -> str:
    x = n.input(1, 4, 6, 6)
    s, z = n.const(0.05), n.const(0, np.int8)
    q = n("DequantizeLinear", n("QuantizeLinear", x, s, z), s, z)
    w = n("DequantizeLinear", n.const(n.rng.integers(-9, 9, (8, 4, 3, 3)), np.int8), s, z)
    return n("Relu", n("Conv", q, w, pads=[1, 1, 1, 1]))


@network()
def dynamically_quantised(n: Net) -> str:
    x = n.input(3, 16)
    q = n("DynamicQuantizeLinear", x, outputs=3)
    w = n.const(n.rng.integers(-9, 9, (16, 8)), np.int8)
    y = n("MatMulInteger", q, w, f"{q}.2")
    return n("Mul", n("Cast", y, to=TensorProto.FLOAT), f"{q}.1")


@network()
def capsules(n: Net) -> str:
    u, w = n.input(2, 6, 4), n.weight(6, 3, 4, 5)
    v = n("Einsum", u, w, equation="bid,ijde->bije")
    s = n("ReduceSum", v, n.const([1], np.int64), keepdims=1)
    return n("Softmax", n("ReduceSum", n("Mul", v, s), n.const([3], np.int64), keepdims=0))


@network()
def moments(n: Net) -> str:
    x = n.input(3, 4, 5)
    d = n("Sub", x, n("ReduceMean", x, n.const([0, 2], np.int64)))
    v = n("ReduceMean", n("Mul", d, d), n.const([0, 2], np.int64))
    return n("Div", d, n("Sqrt", n("Add", v, n.const(1e-3))))


@network()
def volume(n: Net) -> str:
    x = n.input(1, 2, 4, 5, 5)
    y = n("Conv", x, n.weight(4, 2, 3, 3, 3), pads=[1] * 6)
    return n("MaxPool", n("Relu", y), kernel_shape=[2, 2, 2], strides=[2, 2, 2])


@network()
def reflected(n: Net) -> str:
    x = n.input(1, 3, 6, 6)
    y = n("Pad", x, n.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64), mode="reflect")
    return n("InstanceNormalization", n("Conv", y, n.weight(4, 3, 3, 3)), n.weight(4), n.weight(4))


@network()
def chosen(n: Net) -> str:
    x, y = n.input(4, 9), n.input(4, 9)
    z = n("Where", n("Greater", x, y), n("Tanh", x), n("Exp", n("Neg", n("Abs", y))))
    return n("Add", n("Cast", n("ArgMax", z, axis=1), to=TensorProto.FLOAT), n("ReduceMax", z))


@network()
def two_products(n: Net) -> str:
    a, b, c = n.input(6, 16), n.input(16, 16), n.input(16, 16)
    return n("MatMul", n("Relu", n("MatMul", a, b)), c)


@network()
def convolutions(n: Net) -> str:
    x = n.input(2, 8, 8, 8)
    for _ in range(4):
        x = n("Relu", n("Conv", x, n.weight(8, 8, 3, 3), pads=[1, 1, 1, 1]))
    return x


@network()
def heads(n: Net) -> str:
    q, k, v = (n.input(1, 4, 16, 8) for _ in range(3))
    s = n("MatMul", q, n("Transpose", k, perm=[0, 1, 3, 2]))
    return n("MatMul", n("Softmax", n("Mul", s, n.const(0.3))), v)


@network()
def largest(n: Net) -> str:
    x = n.input(3, 12)
    y = n("TopK", n("Mul", x, x), n.const([4], np.int64), axis=1, outputs=2)
    return n("Softmax", n("Transpose", y, perm=[1, 0]))


@network()
def speech(n: Net) -> str:
    x = n.input(1, 6, 20)
    y = n("Relu", n("Conv", x, n.weight(8, 6, 5), strides=[2], pads=[2, 2]))
    return n("Softmax", n("Conv", y, n.weight(8, 8, 3), dilations=[2], pads=[2, 2]), axis=1)


@network()
def groups_of_channels(n: Net) -> str:
    x = n.input(1, 8, 6, 6)
    y = n("Conv", x, n.weight(16, 4, 3, 3), group=2, pads=[1] * 4)
    return n("PRelu", y, n.weight(16, 1, 1))


@network()
def super_resolution(n: Net) -> str:
    x = n.input(1, 3, 5, 5)
    y = n("Tanh", n("Conv", x, n.weight(12, 3, 3, 3), pads=[1] * 4))
    return n("DepthToSpace", y, blocksize=2)


@network()
def spaces_to_channels(n: Net) -> str:
    x = n.input(1, 2, 8, 8)
    y = n("SpaceToDepth", x, blocksize=2)
    return n("Conv", y, n.weight(8, 8, 1, 1))


@network()
def broadcast_products(n: Net) -> str:
    a, b = n.input(3, 1, 5, 8), n.input(4, 8, 6)
    return n("LeakyRelu", n("MatMul", a, b))


@network()
def rolled(n: Net) -> str:
    x = n.input(2, 8, 4)
    a = n("Slice", x, n.const([3], np.int64), n.const([8], np.int64), n.const([1], np.int64))
    b = n("Slice", x, n.const([0], np.int64), n.const([3], np.int64), n.const([1], np.int64))
    return n("MatMul", n("Concat", a, b, axis=1), n.weight(4, 4))


@network()
def windows_of_attention(n: Net) -> str:
    x = n("Reshape", n.input(1, 8, 8, 8), n.const([1, 2, 4, 2, 4, 8], np.int64))
    y = n("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    return _attention(n, n("Reshape", y, n.const([4, 16, 8], np.int64)), 2, 4)


@network()
def asymmetric(n: Net) -> str:
    x = n.input(1, 3, 7, 9)
    y = n("Conv", x, n.weight(5, 3, 3, 2), pads=[0, 1, 2, 0], strides=[2, 1])
    return n("AveragePool", y, kernel_shape=[2, 2], count_include_pad=1, pads=[1, 0, 0, 1])


@network()
def normalised_along_channels(n: Net) -> str:
    x = n.input(2, 6, 4, 4)
    return n("LRN", n("LpNormalization", x, axis=1), size=3)


@network()
def plain_recurrence(n: Net) -> str:
    x = n.input(3, 2, 4)
    return n("RNN", x, n.weight(1, 5, 4), n.weight(1, 5, 5), hidden_size=5)


@network(b=(1, 5))
def rows_of_any_number(n: Net) -> str:
    x = n.input("b", 12)
    y = n("Relu", n("Gemm", x, n.weight(12, 20), n.weight(20)))
    return n("LogSoftmax", n("Gemm", y, n.weight(20, 7), n.weight(7)))


@network(b=(1, 3), w=(4, 9))
def images_of_any_width(n: Net) -> str:
    x = n.input("b", 3, 6, "w")
    y = n("Relu", n("Conv", x, n.weight(4, 3, 3, 3), pads=[1] * 4))
    return n("ReduceMean", y, n.const([2], np.int64), keepdims=0)


@network(p=(0, 6))
def past_and_present(n: Net) -> str:
    past, now = n.input(1, 2, "p", 4), n.input(1, 2, 1, 4)
    keys = n("Concat", past, now, axis=2)
    scores = n("MatMul", now, n("Transpose", keys, perm=[0, 1, 3, 2]))
    return n("MatMul", n("Softmax", scores), keys)


@network()
def embedded_images(n: Net) -> str:
    x = n.input(1, 3, 8, 8)
    y = n("Conv", x, n.weight(8, 3, 4, 4), strides=[4, 4])
    y = n("Transpose", n("Reshape", y, n.const([1, 8, 4], np.int64)), perm=[0, 2, 1])
    y = n("Concat", n.weight(1, 1, 8), y, axis=1)
    return n("LayerNormalization", n("Add", y, n.weight(5, 8)), n.weight(8), n.weight(8))


@network()
def gated(n: Net) -> str:
    x = n.input(3, 8)
    a, b = n("MatMul", x, n.weight(8, 12)), n("MatMul", x, n.weight(8, 12))
    y = n("MatMul", n("Mul", n("Mul", a, n("Sigmoid", a)), b), n.weight(12, 8))
    mean = n("ReduceMean", n("Mul", y, y), n.const([1], np.int64))
    return n("Div", y, n("Sqrt", n("Add", mean, n.const(1e-5))))
