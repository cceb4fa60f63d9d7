"""The operators that `python -m benchmarks.operators` measures, each a model of one node.

Sizes are those of common networks: images of 56x56 with 64 channels, 128 tokens of 768 features,
12 heads over 384 tokens.
"""

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from benchmarks.operator_case import Array, Case, Fixed, Operand

_RANDOM = np.random.default_rng(0)


def _f(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _below(limit: int, *shape: int) -> Array:
    return _RANDOM.integers(0, limit, shape)


def _fixed(*shape: int) -> Fixed:
    return Fixed(_f(*shape))


def _ints(*values: int) -> Fixed:
    return Fixed(np.array(values, np.int64))


def _sliced(x: Array, *bounds: int) -> list[Operand]:
    return [x, *map(_ints, bounds)]


def _number(value: float, dtype: npt.DTypeLike = np.float32) -> Fixed:
    return Fixed(np.array(value, dtype))


_IMAGE = _f(1, 64, 56, 56)
_POSITIVE = np.abs(_IMAGE) + np.float32(0.1)
_TEXT = _f(128, 768)
_HALF = _TEXT.astype(np.float16)
_WHOLE = _below(1000, 1, 64, 56, 56)
_SCORES = _f(12, 384, 384)
_HEADS = _f(1, 12, 384, 64)


def _elementwise() -> list[Case]:
    cases = [
        Case(name, name, [_IMAGE])
        for name in (
            *("Relu", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Softplus", "Softsign"),
            *("Mish", "Gelu", "Elu", "Selu", "Tanh", "Erf", "Exp", "Sin", "Cos", "Atan", "Sinh"),
            *("Neg", "Abs", "Floor", "Round", "Sign", "IsNaN"),
        )
    ]
    cases += [
        Case(name, name, [_POSITIVE]) for name in ("Log", "Sqrt", "Reciprocal", "Acosh", "Asinh")
    ]
    for name in ("Add", "Sub", "Mul", "Div", "Max", "Less", "Equal", "Mod", "PRelu"):
        attributes = {"fmod": 1} if name == "Mod" else {}
        cases.append(Case(f"{name} of equal shapes", name, [_IMAGE, _POSITIVE], attributes))
    whole = _WHOLE.astype(np.int32)
    for name in ("Add", "Mul", "Div", "Mod", "Less"):
        cases.append(Case(f"{name} int64", name, [_WHOLE, _WHOLE + 1]))
    for name in ("Add", "Mul", "Div", "Mod", "Max"):
        cases.append(Case(f"{name} int32", name, [whole, whole + np.int32(3)]))
    bits = _below(256, 1, 64, 56, 56).astype(np.uint8)
    for name in ("Add", "Relu", "Sigmoid", "Mul", "Gelu"):
        operands = [_HALF, _HALF] if name in ("Add", "Mul") else [_HALF]
        cases.append(Case(f"{name} float16", name, operands))
    return [
        *cases,
        Case("Pow by 2", "Pow", [_IMAGE, _number(2)]),
        Case("Pow by 2.3", "Pow", [_POSITIVE, _number(2.3)]),
        Case("Add of channels", "Add", [_IMAGE, _f(64, 1, 1)]),
        Case("Add of a row", "Add", [_TEXT, _f(768)]),
        Case("Add of a column", "Add", [_TEXT, _f(128, 1)]),
        Case("Add of row and column", "Add", [_f(512, 1), _f(1, 512)]),
        Case("Add large", "Add", [_f(4, 256, 56, 56), _f(4, 256, 56, 56)]),
        Case("Add small", "Add", [_f(7, 13), _f(1)]),
        Case("Sum of three", "Sum", [_IMAGE, _IMAGE, _IMAGE]),
        Case("Clip", "Clip", [_IMAGE, _number(0), _number(6)]),
        Case("Where of equal shapes", "Where", [_IMAGE > 0, _IMAGE, _POSITIVE]),
        Case("Where of a row and a scalar", "Where", [_f(1, 384) > 0, _SCORES, _number(-1e9)]),
        Case("Where of scalars", "Where", [_IMAGE > 0, _number(1), _number(0)]),
        Case("And", "And", [_IMAGE > 0, _POSITIVE > 1]),
        Case("Not", "Not", [_IMAGE > 0]),
        Case("BitShift", "BitShift", [bits, bits % np.uint8(8)], {"direction": "LEFT"}),
        Case("BitwiseAnd int32", "BitwiseAnd", [whole, whole]),
        Case("BatchNormalization", "BatchNormalization", [_IMAGE, *_norm(4)]),
        *(_cast(*pair) for pair in _CASTS),
    ]


def _norm(count: int, channels: int = 64) -> list[Fixed]:
    return [Fixed(np.abs(_f(channels))) for _ in range(count)]


_CASTS = (
    ("float32", "float16"),
    ("float16", "float32"),
    ("float32", "float64"),
    ("float64", "float32"),
    ("float32", "int32"),
    ("float32", "int64"),
    ("float32", "uint8"),
    ("float32", "bool"),
    ("int64", "float32"),
    ("int32", "float32"),
    ("int64", "int32"),
    ("int32", "int64"),
    ("uint8", "float32"),
    ("int8", "float32"),
    ("bool", "float32"),
    ("bool", "int64"),
)


def _cast(source: str, target: str) -> Case:
    x = (_POSITIVE * 20).astype(np.bool_ if source == "bool" else source)
    return Case(f"Cast {source} to {target}", "Cast", [x], {"to": _kind(target)})


def _kind(name: str) -> int:
    short = {"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper())
    return int(getattr(TensorProto, short))


def _reductions() -> list[Case]:
    image, text = _IMAGE, _TEXT
    places = {"last": [3], "rows": [2], "channels": [1], "pictures": [2, 3], "all": [0, 1, 2, 3]}
    sums = [
        Case(f"{name} of {place}", name, [_POSITIVE, _ints(*axes)])
        for name in ("ReduceSum", "ReduceMean", "ReduceMax")
        for place, axes in places.items()
    ]
    others = [
        Case(f"{name} of rows of 768", name, [text, _ints(1)])
        for name in ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare", "ReduceProd")
    ]
    images: list[Operand] = [_IMAGE, *_norm(2)]
    return [
        *sums,
        *others,
        Case("ReduceMean of tokens", "ReduceMean", [_f(8, 128, 384), _ints(1)]),
        Case("ReduceSum int64", "ReduceSum", [_below(9, 64, 3136), _ints(1)]),
        Case("ArgMax of rows of 1000", "ArgMax", [_f(64, 1000)], {"axis": -1}),
        Case("ArgMax of 21 channels", "ArgMax", [_f(1, 21, 64, 64)], {"axis": 1}),
        Case("CumSum along rows", "CumSum", [text, _number(1, np.int64)]),
        Case("CumSum down columns", "CumSum", [text, _number(0, np.int64)]),
        Case("CumSum int64", "CumSum", [_below(2, 8, 512), _number(1, np.int64)]),
        Case("Softmax of scores", "Softmax", [_SCORES], {"axis": -1}),
        Case("Softmax of channels", "Softmax", [image], {"axis": 1}),
        Case("Softmax of 1000 classes", "Softmax", [_f(1, 1000)], {"axis": -1}),
        Case("LogSoftmax of 30522 words", "LogSoftmax", [_f(4, 30522)], {"axis": -1}),
        Case("LayerNormalization", "LayerNormalization", [text, *_norm(2, 768)]),
        Case("LayerNormalization of 384", "LayerNormalization", [_f(1, 256, 384), *_norm(2, 384)]),
        Case("RMSNormalization", "RMSNormalization", [text, *_norm(1, 768)]),
        Case("InstanceNormalization", "InstanceNormalization", images),
        Case("GroupNormalization", "GroupNormalization", images, {"num_groups": 8}),
        Case("LpNormalization", "LpNormalization", [text], {"axis": 1}),
        Case("GlobalAveragePool", "GlobalAveragePool", [_f(1, 2048, 7, 7)]),
        Case("GlobalMaxPool", "GlobalMaxPool", [_f(1, 512, 14, 14)]),
        *_pools(),
        *_resized(),
    ]


def _resized() -> list[Case]:
    def resize(name: str, values: Array, to: tuple[int, int], **attributes: object) -> Case:
        sizes = _ints(*values.shape[:2], *to)
        return Case(f"Resize {name}", "Resize", [values, None, None, sizes], attributes)

    photo, scores = _f(1, 3, 640, 480), _f(1, 21, 65, 65)
    corners = {"coordinate_transformation_mode": "align_corners"}
    return [
        resize("nearest x2", _IMAGE, (112, 112), mode="nearest"),
        resize("nearest to 90x90", _IMAGE, (90, 90), mode="nearest"),
        resize("linear x2", _IMAGE, (112, 112), mode="linear"),
        resize("linear x2 of corners", _IMAGE, (112, 112), mode="linear", **corners),
        resize("linear x8 of scores", scores, (513, 513), mode="linear"),
        resize("linear to a half", _f(1, 3, 512, 512), (256, 256), mode="linear"),
        resize("linear of a photo", photo, (224, 224), mode="linear"),
        resize("linear of a photo, antialiased", photo, (224, 224), mode="linear", antialias=1),
        resize("cubic x2", _IMAGE, (112, 112), mode="cubic"),
    ]


def _pools() -> list[Case]:
    def pool(name: str, size: int, stride: int, values: Array, suffix: str = "") -> Case:
        step = f"/{stride}" if stride > 1 else ""
        window = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [size // 2] * 4}
        return Case(f"{name} {size}x{size}{step}{suffix}", name, [values], window)

    stem, deep = _f(1, 64, 112, 112), _f(1, 256, 20, 20)
    return [
        pool("MaxPool", 3, 2, stem),
        pool("MaxPool", 3, 1, _IMAGE),
        *(pool("MaxPool", size, 1, deep) for size in (5, 9, 13)),
        pool("AveragePool", 3, 2, stem),
        pool("AveragePool", 3, 1, _f(1, 192, 35, 35)),
        pool("AveragePool", 7, 1, deep),
    ]


def _movement() -> list[Case]:
    image, text = _IMAGE, _TEXT
    permutation = np.stack([_RANDOM.permutation(768) for _ in range(128)])
    four = [_f(1, 16, 56, 56) for _ in range(4)]
    transposed = (
        ("of a matrix", _f(1024, 768), [1, 0]),
        ("of channels to the end", image, [0, 2, 3, 1]),
        ("of channels to the front", _f(1, 56, 56, 64), [0, 3, 1, 2]),
        ("of 3 colours to the front", _f(1, 224, 224, 3), [0, 3, 1, 2]),
        ("of 3 colours to the end", _f(1, 3, 224, 224), [0, 2, 3, 1]),
        ("of heads", _f(1, 128, 12, 64), [0, 2, 1, 3]),
        ("of keys", _f(1, 128, 12, 64), [0, 2, 3, 1]),
        ("of shuffled channels", _f(1, 2, 58, 28, 28), [0, 2, 1, 3, 4]),
        ("of bytes", _below(256, 1, 224, 224, 3).astype(np.uint8), [0, 3, 1, 2]),
        ("of int64", _below(256, 512, 384), [1, 0]),
    )
    return [
        *(Case(f"Transpose {n}", "Transpose", [x], {"perm": perm}) for n, x, perm in transposed),
        Case("Concat of channels", "Concat", [image, _POSITIVE], {"axis": 1}),
        Case("Concat of four", "Concat", four, {"axis": 1}),
        Case("Concat of rows' ends", "Concat", [image, _POSITIVE], {"axis": 3}),
        Case("Concat of a cache", "Concat", [_f(1, 12, 383, 64), _f(1, 12, 1, 64)], {"axis": 2}),
        Case("Concat of columns", "Concat", [_f(8400, 4), _f(8400, 80)], {"axis": 1}),
        Case("Split of channels", "Split", [image], {"axis": 1, "num_outputs": 2}, 2),
        Case("Split of features", "Split", [_f(128, 2304)], {"axis": 1, "num_outputs": 3}, 3),
        Case("Slice of a window", "Slice", [image, _ints(3, 5), _ints(50, 53), _ints(2, 3)]),
        Case("Slice of every other", "Slice", _sliced(image, 0, 56, 3, 2)),
        Case("Slice of every other row", "Slice", _sliced(image, 0, 56, 2, 2)),
        Case("Slice backward", "Slice", _sliced(image, -1, -99, 3, -1)),
        Case("Pad with zeros", "Pad", [image, _ints(0, 0, 1, 1, 0, 0, 1, 1)]),
        Case("Pad of channels", "Pad", [image, _ints(0, 0, 0, 0, 0, 8, 0, 0)]),
        *(
            Case(f"Pad {mode}", "Pad", [image, _ints(0, 0, 3, 3, 0, 0, 3, 3)], {"mode": mode})
            for mode in ("reflect", "edge", "wrap")
        ),
        Case("Tile of a matrix", "Tile", [_f(64, 56), _ints(4, 3)]),
        Case("Tile of an image", "Tile", [_f(1, 64, 28, 28), _ints(1, 1, 2, 2)]),
        Case("Tile of a batch", "Tile", [text, _ints(4, 1)]),
        Case("Expand", "Expand", [_f(64, 1, 56), _ints(64, 56, 56)]),
        Case("Expand of columns", "Expand", [_f(1, 64, 1, 1), _ints(1, 64, 56, 56)]),
        Case("DepthToSpace", "DepthToSpace", [image], {"blocksize": 2}),
        Case("DepthToSpace CRD", "DepthToSpace", [image], {"blocksize": 2, "mode": "CRD"}),
        Case("SpaceToDepth", "SpaceToDepth", [image], {"blocksize": 2}),
        Case("Trilu", "Trilu", [_f(384, 384)]),
        Case("EyeLike", "EyeLike", [_f(384, 384)]),
        Case("ReverseSequence", "ReverseSequence", [_f(64, 8, 256), _below(64, 8) + 1]),
        Case("Gather of words", "Gather", [_fixed(30522, 384), _below(30522, 1, 128)]),
        Case("Gather of columns", "Gather", [text, _below(768, 128)], {"axis": 1}),
        Case("Gather of one", "Gather", [_f(8, 128, 768), _number(0, np.int64)], {"axis": 1}),
        Case("GatherElements", "GatherElements", [text, _below(768, 128, 768)], {"axis": 1}),
        Case("GatherElements of rows", "GatherElements", [text, _below(128, 128, 768)]),
        Case("GatherND of elements", "GatherND", [text, _below(128, 5000, 2)]),
        Case("GatherND of rows", "GatherND", [text, _below(128, 300, 1)]),
        Case("ScatterElements", "ScatterElements", [text, permutation, text], {"axis": 1}),
        Case(
            "ScatterElements that adds",
            "ScatterElements",
            [text, _below(768, 128, 768), text],
            {"axis": 1, "reduction": "add"},
        ),
        Case(
            "ScatterND of rows",
            "ScatterND",
            [text, _RANDOM.permutation(128)[:64].reshape(64, 1), _f(64, 768)],
        ),
        Case("OneHot", "OneHot", [_below(1000, 128), _number(1000, np.int64), _ends()]),
        Case("Compress", "Compress", [text, _below(2, 128) > 0], {"axis": 0}),
        Case("NonZero of few", "NonZero", [(_IMAGE > 2).astype(np.float32)]),
        Case("NonZero of many", "NonZero", [_IMAGE > 0]),
        Case("Unique", "Unique", [_below(100, 10000).astype(np.float32)]),
        Case("Unique of positions", "Unique", [_below(5000, 10000)], {"sorted": 1}, 4),
        *(
            Case(f"TopK {k} of {n}", "TopK", [_f(1, n), _ints(k)], {}, 2)
            for k, n in ((5, 1000), (300, 8400), (1000, 100000), (100, 100))
        ),
        Case("TopK 8 of many rows", "TopK", [_f(512, 64), _ints(8)], {}, 2),
        Case("TopK 2 down columns", "TopK", [text, _ints(2)], {"axis": 0}, 2),
    ]


def _ends() -> Fixed:
    return Fixed(np.array([0, 1], np.float32))


def _products() -> list[Case]:
    heads = [_f(1, 12, 128, 64), _f(1, 12, 128, 64)]
    short = _f(32, 1, 64)
    batch = _f(32, 8, 64)

    def layer(gates: int, directions: int = 1, inputs: int = 64, hidden: int = 128) -> list[Fixed]:
        rows = (directions, gates * hidden)
        arrays = (_f(*rows, inputs), _f(*rows, hidden), _f(directions, 2 * gates * hidden))
        return [Fixed(a * np.float32(0.1)) for a in arrays]

    return [
        Case("Einsum of scores", "Einsum", heads, {"equation": "bhid,bhjd->bhij"}),
        Case("Einsum of an outer product", "Einsum", [_f(512), _f(768)], {"equation": "i,j->ij"}),
        Case("Einsum of a batched dot", "Einsum", [_TEXT, _TEXT], {"equation": "bi,bi->b"}),
        Case("Einsum that sums", "Einsum", [_IMAGE], {"equation": "bchw->bc"}),
        Case("MatMul by a vector", "MatMul", [_f(1024, 768), _f(768)]),
        Case("LSTM batch 1", "LSTM", [short, *layer(4)], {"hidden_size": 128}),
        Case("LSTM batch 8", "LSTM", [batch, *layer(4)], {"hidden_size": 128}),
        Case(
            "LSTM in both directions",
            "LSTM",
            [batch, *layer(4, 2, hidden=256)],
            {"hidden_size": 256, "direction": "bidirectional"},
        ),
        Case("GRU batch 1", "GRU", [short, *layer(3)], {"hidden_size": 128}),
        Case(
            "GRU batch 8, reset after",
            "GRU",
            [batch, *layer(3)],
            {"hidden_size": 128, "linear_before_reset": 1},
        ),
        Case("RNN batch 1", "RNN", [short, *layer(1)], {"hidden_size": 128}),
        Case("Attention", "Attention", [_HEADS, _HEADS, _HEADS]),
        Case("Attention causal", "Attention", [_HEADS, _HEADS, _HEADS], {"is_causal": 1}),
        Case(
            "QuantizeLinear", "QuantizeLinear", [_f(384, 3072), _number(0.03), _number(9, np.uint8)]
        ),
        Case(
            "DequantizeLinear",
            "DequantizeLinear",
            [_below(256, 384, 3072).astype(np.uint8), _number(0.03), _number(9, np.uint8)],
        ),
        Case("DynamicQuantizeLinear", "DynamicQuantizeLinear", [_f(384, 768)], {}, 3),
        Case("DFT", "DFT", [_f(1, 400, 1), None, _number(1, np.int64)], {"onesided": 1}),
        Case(
            "STFT",
            "STFT",
            [_f(1, 16000, 1), _number(160, np.int64), Fixed(np.hanning(400).astype(np.float32))],
            {"onesided": 1},
        ),
        Case("GridSample", "GridSample", [_IMAGE, np.clip(_f(1, 56, 56, 2) * 0.5, -1, 1)]),
    ]


CASES = (*_elementwise(), *_reductions(), *_movement(), *_products())
