"""How ONNX Runtime is run, and in which types its results come."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.compiler import Options, compile_model
from rutc.importer.restated import restated
from rutc.runtime import load
from rutc.verify.bench import exact_job, room_for
from rutc.verify.feeding.input_spec import spec
from rutc.verify.feeding.input_values import generate
from rutc.verify.interleaved import take_turns
from rutc.verify.reference import Reference
from rutc.verify.verify import verify_model

EXACT = "session.x64quantprecision"
FLOATS = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


def _model(folder: Path, takes: int, gives: int) -> Path:
    x = helper.make_tensor_value_info("x", takes, [3])
    y = helper.make_tensor_value_info("y", gives, [3])
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=gives)], "m", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_a_reference_of_verification_sums_bytes_without_saturation(tmp_path: Path) -> None:
    path = _model(tmp_path, TensorProto.FLOAT, TensorProto.FLOAT)
    options = Reference(path)._session.get_session_options()
    assert options.get_session_config_entry(EXACT) == "1"
    # What is measured is what users have.
    options = Reference(path, optimise=True)._session.get_session_options()
    with pytest.raises(RuntimeError, match=EXACT):
        options.get_session_config_entry(EXACT)
    options = Reference(path, optimise=True, exact=True)._session.get_session_options()
    assert options.get_session_config_entry(EXACT) == "1"


def _quantised(folder: Path, op: str, right: type[np.generic]) -> Path:
    """A product of bytes, of an operator that ONNX Runtime's exact mode may not have."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(right))
    x = helper.make_tensor_value_info("x", kind if op == "QGemm" else TensorProto.UINT8, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    weight = numpy_helper.from_array(np.full((3, 4), 100, right), "w")
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    zero = numpy_helper.from_array(np.zeros((), right), "z")
    if op == "QGemm":
        names, domain = ["x", "s", "z", "w", "s", "z"], "com.microsoft"
        nodes = [helper.make_node(op, names, ["y"], domain=domain)]
    else:
        nodes = [helper.make_node(op, ["x", "w"], ["p"])]
        nodes.append(helper.make_node("Cast", ["p"], ["y"], to=TensorProto.FLOAT))
    graph = helper.make_graph(nodes, "m", [x], [y], [weight, scale, zero])
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("op", ["MatMulInteger", "QGemm"])
@pytest.mark.parametrize("lacking", [False, True])
def test_products_of_bytes_are_right_on_processors_without_them(
    lacking: bool, op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact mode is a rewrite of a level beyond the one that verification has otherwise."""
    features = {"avx2"} if lacking else {"avx2", "avx512vnni"}
    monkeypatch.setattr("rutc.verify.reference.host_features", lambda: frozenset(features))
    reference = Reference(_quantised(tmp_path, op, np.int8))
    level = reference._session.get_session_options().graph_optimization_level
    levels = onnxruntime.GraphOptimizationLevel
    rewritten = lacking and op == "MatMulInteger"
    assert level == (levels.ORT_ENABLE_EXTENDED if rewritten else levels.ORT_ENABLE_BASIC)
    left = np.full((2, 3), 90, np.int8 if op == "QGemm" else np.uint8)
    scale = 0.25 if op == "QGemm" else 1.0
    assert (reference.run({"x": left})["y"] == 3 * 90 * 100 * scale).all()


@pytest.mark.parametrize(
    ("op", "lacking", "timed"),
    [("MatMulInteger", True, True), ("MatMulInteger", False, False), ("QGemm", True, False)],
)
def test_the_exact_mode_is_timed_too_where_sums_may_saturate_without_it(
    op: str, lacking: bool, timed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails of operators that the mode lacks, and nothing else does."""
    features = {"avx2"} if lacking else {"avx2", "avx512vnni"}
    monkeypatch.setattr("rutc.verify.reference.host_features", lambda: frozenset(features))
    path = _quantised(tmp_path, op, np.int8)
    inputs = {"x": np.full((2, 3), 90, np.int8 if op == "QGemm" else np.uint8)}
    room = room_for(compile_model(path, tmp_path / "m.so", Options(), None).library, inputs)
    jobs = exact_job(path, 1, inputs, room)
    assert bool(jobs) is lacking
    found = take_turns(jobs, 0.001) if jobs else {}
    assert [m.latency is not None for m in found.values()] == [timed] * lacking


@pytest.mark.parametrize("dtype", FLOATS)
def test_types_that_numpy_alone_has_not_go_in_and_out(
    dtype: type[np.generic], tmp_path: Path
) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = np.array([1.0, -2.5, 0.1], np.float32)
    there = Reference(_model(tmp_path, TensorProto.FLOAT, kind))
    (found,) = there.run({"x": x}).values()
    assert isinstance(found, np.ndarray)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, x.astype(dtype))
    back = Reference(_model(tmp_path, kind, TensorProto.FLOAT))
    np.testing.assert_array_equal(back.run({"x": found})["y"], found.astype(np.float32))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_halves_of_bytes_are_taken_apart(dtype: type[np.generic], tmp_path: Path) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = np.array([1, 7, 3], np.float32) * (1 if dtype is ml_dtypes.uint4 else -1)
    (found,) = Reference(_model(tmp_path, TensorProto.FLOAT, kind)).run({"x": x}).values()
    assert isinstance(found, np.ndarray)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float32), x)


@pytest.mark.parametrize("type_", ["tensor(float)", "tensor(float16)", "tensor(complex64)"])
def test_what_is_generated_is_an_array_without_axes_too(type_: str) -> None:
    assert isinstance(generate([spec("x", type_, ())])["x"], np.ndarray)


def test_numbers_of_numpy_are_taken_as_arrays(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "m", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    x_value: Any = np.float32(3)
    assert Reference(tmp_path / "m.onnx").run({"x": x_value}) == {"y": -3}


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.INT4])
def test_types_that_numpy_alone_has_not_may_come_without_axes(kind: int, tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", kind, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "m", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    x_value = np.array(3).astype(helper.tensor_dtype_to_np_dtype(kind))
    y_value = Reference(tmp_path / "m.onnx").run({"x": x_value})["y"]
    assert isinstance(y_value, np.ndarray)
    assert y_value.shape == ()
    assert y_value == 3


def test_an_output_may_have_another_shape_than_is_declared(tmp_path: Path) -> None:
    """As exporters write the lengths of their example into outputs."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 3])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    given = np.ones((4, 3), np.float32)
    run = Reference(tmp_path / "m.onnx").bound({"x": given}, {"y": np.empty_like(given)})
    for _ in range(3):
        run()


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("inner", [60, 64])
def test_leave_to_round_is_taken_by_a_reference_where_it_is_here(
    inner: int, external: bool, tmp_path: Path
) -> None:
    """At level 4 ONNX Runtime rounds activations to 8 bits; rutc does in whole blocks."""
    rng = np.random.default_rng(0)
    sizes = {"K": inner, "N": 1024, "bits": 4, "block_size": 32}
    packed = rng.integers(0, 256, (1024, 2, 16), dtype=np.uint8)
    scales = rng.random(1024 * 2, np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", accuracy_level=4, **sizes
    )
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, inner]), ("y", [1, 1024]))
    ]
    constants = [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")]
    graph = helper.make_graph([node], "m", ports[:1], ports[1:], constants)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=external, location="weights", size_threshold=0)

    x = rng.standard_normal((1, inner)).astype(np.float32)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(1024, 2, 32).astype(np.float64) - 8
    wide = (numbers * scales.reshape(1024, 2, 1)).reshape(1024, 64)[:, :inner]
    wanted = x.astype(np.float64) @ wide.T
    exact, fast = (
        np.abs(np.asarray(Reference(path, 1, optimise=o).run({"x": x})["y"]) - wanted).max()
        for o in (False, True)
    )
    assert (100 * exact < fast) == (inner % 32 > 0)


@pytest.mark.parametrize("locale", ["xx_XX.UTF-8", "C"])
def test_cases_are_changed_in_a_locale_that_this_machine_has(locale: str, tmp_path: Path) -> None:
    """Without the locale that a model names, or the usual one, ONNX Runtime loads none."""
    node = helper.make_node(
        "StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale=locale
    )
    ports = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in "xy"]
    graph = helper.make_graph([node], "m", ports[:1], ports[1:])
    sets = [helper.make_opsetid("", 21)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), path)
    assert (restated(path, exact=False) is None) == (locale == "C")
    for optimise in (False, True):
        found = Reference(path, optimise=optimise).run({"x": np.array(["AbC", "x"], object)})["y"]
        np.testing.assert_array_equal(np.asarray(found), ["abc", "x"])


def test_outputs_that_are_listed_again_are_those_of_the_artifact(tmp_path: Path) -> None:
    """ONNX Runtime does not write the second one of a branch: it is computed there."""
    path = tmp_path / "m.onnx"
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[3] x, bool c) => (float[3] y, float[3] x, float[3] z, float[3] y_2, float[3] y) {
            y, z = If (c) <
                then_branch = t () => (float[3] u, float[3] u) { u = Neg (x) },
                else_branch = e () => (float[3] y_3, float[3] v) { y_3 = Abs (x) v = Exp (x) }>
            y_2 = Floor (x) }""")
    onnx.save(model, path)
    given = {"x": np.float32([1.5, -2, 3]), "c": np.array(True)}
    report = compile_model(path, tmp_path / "m.so", Options(), None)
    wanted = Reference(path).run(given)
    names = ["y", "x", "z", "y_2", "y_4"]
    assert list(wanted) == names
    with load(report.library) as session:
        assert [port.name for port in session.get_outputs()] == names
        for name, found in zip(names, session.run(None, given), strict=True):
            np.testing.assert_array_equal(found, np.asarray(wanted[name]))
    assert np.asarray(wanted["z"]).tolist() == [-1.5, 2, -3]
    assert verify_model(path, report.library).passed
