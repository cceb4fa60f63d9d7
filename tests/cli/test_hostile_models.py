"""Models that no exporter writes: one error that says what is wrong, status 2, and no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tests.cli.conftest import Rutc
from tests.fuzz.mutate import nested_graphs

FAR = 1 << 40
HEADER = '<ir_version: 10, opset_import: ["" : {}]> '
RELU = "g (float[4] x) => (float[4] y) { y = Relu (x) }"

Bytes = Callable[[], bytes]


def text(source: str, opset: int = 21, **weights: np.ndarray) -> Bytes:
    """A model in ONNX's text form, with these initializers besides its own."""

    def made() -> bytes:
        model = parser.parse_model(HEADER.format(opset) + source)
        for name, value in weights.items():
            model.graph.initializer.append(numpy_helper.from_array(value, name))
        return model.SerializeToString()

    return made


def changed(change: Callable[[ModelProto], object], source: str = RELU) -> Bytes:
    """A model after a change to its protobuf."""

    def made() -> bytes:
        model = parser.parse_model(HEADER.format(21) + source)
        change(model)
        return model.SerializeToString()

    return made


def with_weight(source: str, **fields: object) -> Bytes:
    """A model with an initializer `w` whose fields are these."""
    tensor = TensorProto(name="w", **fields)  # type: ignore[arg-type]
    return changed(lambda m: m.graph.initializer.append(tensor), source)


def not_text(old: bytes, new: bytes, source: str = RELU) -> Bytes:
    """A model in which bytes are others, which are no UTF-8."""
    return lambda: text(source)().replace(old, new)


def calling_each_other() -> bytes:
    return parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
g (float[4] x) => (float[4] y) { y = own.first (x) }
<domain: "own", opset_import: ["" : 21, "own" : 1]> first (a) => (b) { b = own.second (a) }
<domain: "own", opset_import: ["" : 21, "own" : 1]> second (a) => (b) { b = own.first (a) }
""").SerializeToString()


def with_sizes(*names: str) -> Bytes:
    """x and y, each with one size of these names, of which the sum's is not known."""

    def change(m: ModelProto) -> None:
        for i, name in zip(m.graph.input, names, strict=True):
            i.type.tensor_type.shape.dim[0].dim_param = name

    return changed(change, "g (float[a] x, float[b] y) => (float[c] z) { z = Add (x, y) }")


WEIGHT = "g (float[4] x) => (float[a] y) { y = Add (x, w) }"
IMAGE = "g (float[1,1,4,4] x) => (float[a,b,c,d] y) "
SPARSE = helper.make_sparse_tensor(
    numpy_helper.from_array(np.float32([1]), "w"), numpy_helper.from_array(np.int64([0])), [FAR]
)

MODELS: dict[str, tuple[Bytes, list[str]]] = {
    "a value's name is no text": (not_text(b"\n\x01x", b"\n\x01\xff"), ["UTF-8", "node[0].input"]),
    "an operator is no text": (not_text(b"Relu", b"\xff\xfe\xfd\xfc"), ["UTF-8", "op_type"]),
    "a size's name is no text": (
        not_text(b"size", b"\xff\xfe\xfd\xfc", "g (float[size] x) => (float[a] y) {y = Relu (x)}"),
        ["UTF-8", "dim_param"],
    ),
    "an attribute is no text": (
        not_text(b"MEAN", b"\xff\xfe\xfd\xfc", IMAGE + '{ y = Resize <mode = "MEAN"> (x) }'),
        ["UTF-8", "'mode'", "Resize"],
    ),
    "an input is there twice": (
        changed(lambda m: m.graph.input.append(m.graph.input[0])),
        ["'x'", "input", "twice"],
    ),
    "an output of a function is there twice": (
        text(
            "g (float[4] x) => (float[4] y, float[4] z) { y, z = own.two (x) }\n"
            '<domain: "own", opset_import: ["" : 21]> two (a) => (b, b) { b = Neg (a) }'
        ),
        ["'b'", "output", "twice"],
    ),
    "an initializer is there twice": (
        changed(lambda m: [m.graph.initializer.add(name="w", dims=[k]) for k in range(2)]),
        ["'w'", "initializer", "twice"],
    ),
    "an input has no name": (
        changed(lambda m: m.graph.input.append(helper.make_tensor_value_info("", 1, [4]))),
        ["input", "no name"],
    ),
    "a node computes an input": (
        text("g (float[4] x, float[4] y) => (float[4] y) { y = Relu (x) }"),
        ["'y'", "name of its own"],
    ),
    "an attribute is there twice": (
        changed(
            lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]),
            IMAGE + "{ y = Softmax <axis = 1> (x) }",
        ),
        ["Softmax", "'axis'", "twice"],
    ),
    "an attribute has two values": (
        changed(
            lambda m: m.graph.node[0].attribute[0].ints.append(1),
            IMAGE + "{ y = Softmax <axis = 1> (x) }",
        ),
        ["Softmax", "'axis'", "ints"],
    ),
    "a scale is NaN": (
        text(IMAGE + "{ y = Resize (x, , s) }", s=np.float32([1, 1, np.nan, 1])),
        ["Resize", "scale", "nan"],
    ),
    "a scale is infinite": (
        text(IMAGE + "{ y = Resize (x, , s) }", s=np.float32([1, 1, np.inf, 1])),
        ["Resize", "scale", "inf"],
    ),
    "a scale of an old model is NaN": (
        text(IMAGE + "{ y = Upsample (x, s) }", 9, s=np.float32([1, 1, np.nan, 1])),
        ["Resize", "scale", "nan"],
    ),
    "strings where numbers are due": (
        text("g (string[4] x) => (string[4] y) { y = Relu (x) }"),
        ["Relu", "string"],
    ),
    "strings are multiplied": (
        text("g (string[4, 4] x) => (string[4, 4] y) { y = MatMul (x, x) }"),
        ["MatMul", "string"],
    ),
    "text where a number is due": (
        text(IMAGE + '{ y = Softmax <axis = "1"> (x) }'),
        ["Softmax", "'axis'", "INT", "STRING"],
    ),
    "an input of 2^40 elements": (
        text(f"g (float[{FAR}] x) => (float[n] y) {{ y = Relu (x) }}"),
        ["'x'", "GiB", "--shape"],
    ),
    "an input of 2^64 elements": (
        text("g (float[4294967296, 4294967296] x) => (float[n, m] y) { y = Relu (x) }"),
        ["'x'", "18446744073709551616 elements", "--shape"],
    ),
    "an input of 2^62 strings": (
        text(
            "g (string[4611686018427387904] x) => (bool[n] y)"
            ' { y = RegexFullMatch <pattern = "a"> (x) }'
        ),
        ["'x'", "4611686018427387904 elements"],
    ),
    "a weight's shape does not fit its data": (
        with_weight(WEIGHT, data_type=1, dims=[1 << 20, 1 << 20], raw_data=b"abcd"),
        ["'w'", "4 bytes"],
    ),
    "a weight of few numbers has a large shape": (
        with_weight(WEIGHT, data_type=1, dims=[FAR], float_data=[1.0]),
        ["'w'", "shape"],
    ),
    "a packed weight has a large shape": (
        with_weight(
            "g (int4[4] x) => (int4[a] y) { y = Identity (w) }",
            data_type=22,
            dims=[1 << 36],
            int32_data=[1],
        ),
        ["'w'", "shape"],
    ),
    "a sparse weight has a large shape": (
        changed(lambda m: m.graph.sparse_initializer.append(SPARSE), WEIGHT),
        ["'w'", str(FAR)],
    ),
    "an extent is negative": (
        with_weight(WEIGHT, data_type=1, dims=[-1], raw_data=b"abcd"),
        ["'w'", "negative"],
    ),
    "pads of 2^40": (
        text(
            "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[a,b,c,d] y)"
            f" {{ y = Conv <pads = [{FAR}, {FAR}, {FAR}, {FAR}]> (x, w) }}"
        ),
        ["Conv", "too large"],
    ),
    "dilations of 2^63": (
        text(
            "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[a,b,c,d] y)"
            f" {{ y = Conv <dilations = [{(1 << 63) - 1}, 1]> (x, w) }}"
        ),
        ["Conv", "window"],
    ),
    "two sizes are to be told": (
        text("g (float[4] x) => (float[a,b] y) { y = Reshape (x, s) }", s=np.int64([-1, -1])),
        ["Reshape", "more than one -1"],
    ),
    "sizes overflow": (
        text("g (float[4] x) => (float[a,b] y) { y = Reshape (x, s) }", s=np.int64([2**63 - 1, 2])),
        ["Reshape", "cannot be reshaped"],
    ),
    "200 axes": (
        changed(lambda m: m.graph.input[0].type.tensor_type.shape.dim.extend([_one()] * 200)),
        ["'x'", "201 axes", "64"],
    ),
    "a weight of 200 axes": (
        with_weight(WEIGHT, data_type=1, dims=[1] * 200, float_data=[1.0]),
        ["'w'", "200 axes", "64"],
    ),
    "repeated 2^40 times": (
        text("g (float[4] x) => (float[a] y) { y = Tile (x, n) }", n=np.int64([FAR])),
        ["Tile", "too large"],
    ),
    "repeated less than never": (
        text("g (float[4] x) => (float[a] y) { y = Tile (x, n) }", n=np.int64([-2])),
        ["Tile", "-8"],
    ),
    "a constant of 2^62 elements": (
        text(
            "g (float[1] x) => (float[a] y) { c = ConstantOfShape (n) y = Add (x, c) }",
            n=np.int64([1 << 62]),
        ),
        ["ConstantOfShape", "too large"],
    ),
    "a tensor of 5000 axes": (
        text(
            "g (float[2] x) => (int64[a, b] y) { u = Unsqueeze (x, axes) y = NonZero (u) }",
            axes=np.arange(4999),
        ),
        ["Unsqueeze", "5000 axes", "64"],
    ),
    "an output of 65 axes": (
        changed(
            lambda m: [
                m.graph.output[0].type.tensor_type.ClearField("shape"),
                m.graph.initializer.append(numpy_helper.from_array(np.arange(64), "axes")),
            ],
            "g (float[2] x) => (float[a] y) { y = Unsqueeze (x, axes) }",
        ),
        ["Unsqueeze", "65 axes", "64"],
    ),
    "more axes than there are bits": (
        text(
            f"g (float[2] x, int64[63] axes) => ({'float[' + 'a,' * 63 + 'a]'} y)"
            " { z = Unsqueeze (x, axes) y = Unsqueeze (z, axes) }"
        ),
        ["Unsqueeze", "127 axes", "64"],
    ),
    "a size is a formula of 2^63": (with_sizes("n", "n + 9223372036854775808"), ["'y'", "large"]),
    "a size is a formula of 10^199": (with_sizes("n", "n*1" + "0" * 190), ["'y'", "large"]),
    "a size is negative whatever the others are": (
        with_sizes("n", "n-3000000000"),
        ["'y'", "n - 3000000000", "negative"],
    ),
    "a kernel needs more sizes than it can be told": (
        text(
            f"g ({', '.join(f'float[n{k}] x{k}' for k in range(65))}) => (int64 y)"
            f" {{ {' '.join(f's{k} = Size (x{k})' for k in range(65))}"
            f" p0 = Identity (s0) {' '.join(f'p{k} = Add (p{k - 1}, s{k})' for k in range(1, 65))}"
            " y = Identity (p64) }"
        ),
        ["65 symbolic sizes", "--dim"],
    ),
    "a repetition of 10^4400 times": (
        text(
            "g (string[1] x) => (bool[1] y)"
            f' {{ y = RegexFullMatch <pattern = "a{{1{"0" * 4400}}}"> (x) }}'
        ),
        ["RegexFullMatch", "is not allowed"],
    ),
    "an image that is not there": (
        text(
            "g (float[1,1,4,4] x, float[1,4] r) => (float[1,1,1,1] y) { y = RoiAlign (x, r, i) }",
            i=np.int64([7]),
        ),
        ["RoiAlign", "the index 7 is out of range for 1 elements"],
    ),
    "a sequence that is longer than all steps": (
        text(
            "g (float[3,1,2] x) => (float[3,1,2] y) { y = ReverseSequence (x, n) }", n=np.int64([4])
        ),
        ["ReverseSequence", "the length 4 is not from 0 to 3"],
    ),
    "functions call each other": (calling_each_other, ["first", "second", "without end"]),
    "graphs are nested deep": (lambda: text(RELU)() + nested_graphs(3000), ["m.onnx"]),
    "opset 0": (
        changed(lambda m: setattr(m.opset_import[0], "version", 0)),
        ["version 0", "opsets 1 to"],
    ),
    "opset 2^40": (
        changed(lambda m: setattr(m.opset_import[0], "version", FAR)),
        [str(FAR), "opsets 1 to"],
    ),
    "an element type that is none": (
        changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99)),
        ["'x'", "99"],
    ),
    "two lengths at once": (
        lambda: text(RELU)() + b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ["m.onnx"],
    ),
    "a length that is too long": (lambda: text(RELU)() + b"\x3a\xff\x7f", ["m.onnx"]),
}


def _one() -> onnx.TensorShapeProto.Dimension:
    return onnx.TensorShapeProto.Dimension(dim_value=1)


@pytest.mark.parametrize("name", MODELS)
def test_hostile_models(rutc: Rutc, tmp_path: Path, name: str) -> None:
    make, words = MODELS[name]
    path = tmp_path / "m.onnx"
    path.write_bytes(make())
    result = rutc("compile", path, "-o", tmp_path / "m.so")
    assert result.status == 2, result.stderr
    assert result.stderr.count("error:") == 1
    assert "Traceback" not in result.stderr
    assert "--debug" not in result.stderr
    for word in words:
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", ["run", "bench", "inspect --profile"])
def test_artifacts_of_huge_models(rutc: Rutc, tmp_path: Path, command: str) -> None:
    """It compiles unverified; where it is run, the error says what is too large."""
    path = tmp_path / "m.onnx"
    path.write_bytes(MODELS["an input of 2^40 elements"][0]())
    assert rutc("compile", path, "-o", tmp_path / "m.so", "--no-verify").status == 0
    assert rutc("inspect", tmp_path / "m.so").status == 0
    name, *options = command.split()
    result = rutc(name, tmp_path / "m.so", *options)
    assert result.status == 2, result.stderr
    assert result.stderr.count("error:") == 1
    assert "GiB" in result.stderr or "memory" in result.stderr


def test_loops_that_are_long_are_not_written_out(rutc: Rutc, tmp_path: Path) -> None:
    """A constant start is not folded trip by trip."""
    path = tmp_path / "m.onnx"
    path.write_bytes(
        text(
            "g (float[2] x) => (float[2] y) { s, k = Loop (n, go, zero) <body = b (int64 i, bool c,"
            " float[2] a) => (bool d, float[2] e, float[2] f) { e = Add (a, a) f = Identity (e)"
            " d = Identity (c) }> y = Add (x, s) }",
            n=np.int64(1 << 40),
            go=np.bool_(True),
            zero=np.float32([0, 0]),
        )()
    )
    assert rutc("compile", path, "-o", tmp_path / "m.so", "--no-verify").status == 0
