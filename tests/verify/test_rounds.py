"""Which generated inputs a compiled model is verified on, and what only some of them show."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.compiler import Options, compile_model
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.report.display import verification_text
from rutc.runtime import ModelError
from rutc.tensor_ir import Lit, Nest, apply
from rutc.verify import THOROUGH, Effort, Verification, verify_model
from rutc.verify.feeding.input_spec import InputSpec, spec
from rutc.verify.feeding.input_values import generate
from rutc.verify.feeding.rounds import Draw, sums_told
from rutc.verify.feeding.session_values import run_once
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.judging.informative import says_nothing
from rutc.verify.truth.truth import Truth
from tests.refusing import rows_of_48

Weights = Mapping[str, np.ndarray]


def _save(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Weights,
    shape: tuple[int | str, ...] = (4, 8),
    result: int = TensorProto.FLOAT,
) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", result, None)
    constants = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "m", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _verified(
    path: Path, bound: tuple[str, float] | None = None, effort: Effort = THOROUGH
) -> Verification:
    """The verification of a model, perhaps with its last value bounded where it must not be."""
    graph = import_model(path)
    if bound is not None:
        nest = next(n for n in reversed(graph.nodes) if isinstance(n, Nest))
        op, limit = bound
        body = apply(op, nest.body[0], Lit(limit, nest.out.dtype))
        changed = Nest(nest.outs, nest.bound, nest.reducer, (body,), nest.origin)
        nodes = tuple(changed if n is nest else n for n in graph.nodes)
        object.__setattr__(graph, "nodes", nodes)
    with patch("rutc.driver.plans.planning.import_model", lambda *_, **__: graph):
        compile_model(path, path.with_suffix(".so"), Options(), None)
    return verify_model(path, path.with_suffix(".so"), effort=effort)


@pytest.mark.parametrize(("op", "limit"), [("min", 40.0), ("max", -40.0)])
def test_what_is_wrong_for_large_inputs_alone_is_found(
    op: str, limit: float, tmp_path: Path
) -> None:
    path = _save(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {})
    assert _verified(path).passed
    found = _verified(path, (op, limit))
    assert not found.passed
    assert found.outputs[0].case == "values times 64"


def test_what_is_wrong_beside_an_offset_alone_is_found(tmp_path: Path) -> None:
    # Standard inputs never get beyond 200: all zeros, bounded or not.
    nodes = [helper.make_node("Sub", ["x", "c"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    path = _save(tmp_path, nodes, {"c": np.array(200, np.float32)})
    assert _verified(path).passed
    found = _verified(path, ("min", 30.0))
    assert not found.passed
    assert found.outputs[0].case


def test_probabilities_that_saturate_are_looked_at_for_small_inputs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "c"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"], axis=-1),
    ]
    path = _save(tmp_path, nodes, {"c": np.array(2e3, np.float32)})
    standard = generate([spec("x", "tensor(float)", (4, 8))])
    probabilities = Truth(import_model(path)).run(standard)["y"]
    assert says_nothing(probabilities) == "saturated at 0 and 1"
    found = _verified(path)
    assert found.passed
    assert found.unverified == ()


@pytest.mark.parametrize("scale", [1, 255])
def test_conversions_beyond_an_integers_range_are_each_runtimes_own(
    scale: int, tmp_path: Path
) -> None:
    """ONNX Runtime wraps what rutc takes to the range's end: numbers of pictures are within it."""
    nodes = [
        helper.make_node("Mul", ["x", "c"], ["h"]),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.UINT8),
    ]
    weights = {"c": np.array(scale, np.float32)}
    path = _save(tmp_path, nodes, weights, result=TensorProto.UINT8)
    found = _verified(path)
    assert found.passed
    assert any("ONNX Runtime differs from float64, rutc does not" in u for u in found.unverified)
    assert not _verified(path, ("min", 100)).passed


def test_an_output_of_nothing_but_nan_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["size"]),
        helper.make_node("Sub", ["c", "size"], ["below"]),
        helper.make_node("Sqrt", ["below"], ["y"]),
    ]
    found = _verified(_save(tmp_path, nodes, {"c": np.array(-1, np.float32)}))
    assert found.passed
    assert found.unverified == ("'y': says nothing: all NaN",)


def test_nothing_is_refused_before_float64_was_asked(tmp_path: Path) -> None:
    # A variance as the difference of two means: what float32 leaves of it differs by runtime.
    nodes = [
        helper.make_node("Add", ["x", "c"], ["shifted"]),
        helper.make_node("Mul", ["shifted", "shifted"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["square"]),
        helper.make_node("ReduceMean", ["shifted", "axes"], ["mean"]),
        helper.make_node("Mul", ["mean", "mean"], ["other"]),
        helper.make_node("Sub", ["square", "other"], ["y"]),
    ]
    weights = {"c": np.array(1000, np.float32), "axes": np.array([-1])}
    path = _save(tmp_path, nodes, weights, (4, 1000))
    found = _verified(path, effort=Effort(0.0, 0.0))
    assert found.passed
    assert found.with_truth >= 1
    assert found.outputs[0].max_abs > 1e-2 * found.outputs[0].largest


def test_inputs_that_are_left_out_are_not_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(
        specs: Sequence[InputSpec], seed: int, *more: object, **named: object
    ) -> dict[str, np.ndarray]:
        made.append(seed)
        return generate(specs, seed, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("rutc.verify.feeding.rounds.generate", counted)
    path = _save(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {})
    compile_model(path, path.with_suffix(".so"), Options(), None)
    steps: list[tuple[int, int]] = []

    def verified(effort: Effort) -> Verification:
        made.clear()
        steps.clear()
        return verify_model(
            *(path, path.with_suffix(".so")),
            effort=effort,
            on_progress=lambda stage, done, total: steps.append((done, total)),
        )

    assert verified(Effort(0.0, 0.0)).passed
    assert made == [0]
    assert steps == [(0, 4), (1, 4), (2, 4), (3, 4), (1, 1)]
    assert verified(THOROUGH).passed
    assert made == [0, 1, 2, 3]


def test_louder_inputs_that_no_runtime_takes_are_left_out(tmp_path: Path) -> None:
    # Positions in a table of 20 rows, and an output that says nothing on any inputs.
    nodes = [
        helper.make_node("Cast", ["x"], ["at"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "at"], ["row"]),
        helper.make_node("Sub", ["x", "far"], ["below"]),
        helper.make_node("Relu", ["below"], ["zeros"]),
        helper.make_node("Add", ["zeros", "zeros"], ["nothing"]),
        helper.make_node("Concat", ["row", "row"], ["y"], axis=0),
    ]
    table = np.arange(20, dtype=np.float32)
    path = _save(tmp_path, nodes, {"table": table, "far": np.array(1e6, np.float32)})
    model = onnx.load(path)
    model.graph.output.append(helper.make_tensor_value_info("nothing", TensorProto.FLOAT, None))
    onnx.save(model, path)
    found = _verified(path)
    assert found.passed
    assert found.unverified == ("'nothing': says nothing: all zeros",)


def test_louder_inputs_have_sizes_that_the_model_takes(tmp_path: Path) -> None:
    # Mirrored at both ends by 6 elements, which takes more than that.
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["wide"], mode="reflect"),
        helper.make_node("Sub", ["wide", "far"], ["below"]),
        helper.make_node("Relu", ["below"], ["y"]),
    ]
    weights = {"pads": np.array([6, 6]), "far": np.array(200, np.float32)}
    path = _save(tmp_path, nodes, weights, ("n",))
    found = _verified(path)
    assert found.passed
    assert found.unverified == ()
    assert found.outputs[0].shape == (8 + 12,)


def test_sizes_that_no_run_takes_give_way_to_multiples(tmp_path: Path) -> None:
    """Half a map made smaller and larger again has its old size if h is 15 or 16 modulo 16."""
    half, eighth = ({"kernel_shape": [k, 1], "strides": [k, 1]} for k in (2, 8))
    nodes = [
        helper.make_node("AveragePool", ["x"], ["half"], ceil_mode=1, **half),
        helper.make_node("AveragePool", ["half"], ["small"], ceil_mode=1, **eighth),
        helper.make_node("Resize", ["small", "", "scales"], ["large"], mode="nearest"),
        helper.make_node("Concat", ["half", "large"], ["y"], axis=1),
    ]
    scales = numpy_helper.from_array(np.array([1, 1, 8, 1], np.float32), "scales")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [scales])
    model = tmp_path / "m.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), model)
    library = compile_model(model, tmp_path / "m.so").library
    found = verify_model(model, library)
    assert found.passed
    assert found.inputs.startswith(
        "inputs generated from seed 0 at n=5 h=32; n=1 h=15; n=64 h=64; "
    )
    with pytest.raises(UserError, match="does not run the model on these inputs"):
        verify_model(model, library, dims={"h": 20})


def test_sizes_that_no_run_takes_give_way_to_sums(tmp_path: Path) -> None:
    """A mask is read at the positions of all tokens, those before the new ones included."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["tokens"], axis=0),
        helper.make_node("Shape", ["tokens"], ["count"]),
        helper.make_node("Squeeze", ["count"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["at"]),
        helper.make_node("Gather", ["mask", "at"], ["seen"]),
        helper.make_node("Mul", ["tokens", "seen"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array(k), n) for k, n in ((0, "zero"), (1, "one"))]
    sizes = {"past": "before", "new": "after", "mask": "total"}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [d]) for n, d in sizes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [y], weights)
    model = tmp_path / "m.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), model)
    library = compile_model(model, tmp_path / "m.so").library
    found = verify_model(model, library)
    assert found.passed
    for sizes in ("before=1 after=1 total=2", "before=64 after=64 total=128"):
        assert sizes in found.inputs
    assert found.related == ("total=before+after",)
    assert "compile with --dim total=before+after" in verification_text(found)
    told = compile_model(model, tmp_path / "t.so", Options(dims={"total": "before+after"})).library
    assert verify_model(model, told).related == ()
    with WholeSession(told) as session:
        assert run_once(session, (), {"before": 7}).sizes == {"before": 7, "after": 128}
    with WholeSession(library) as session:
        for dims, total in (({}, 256), ({"before": 7}, 135), ({"before": 7, "after": 3}, 128)):
            ran = run_once(session, (), dims)
            assert ran.sizes == {"before": 128, "after": 128, **dims, "total": total}
            usual = {"before": 128, "after": 128, "total": 128, **dims}
            assert ran.refused == ({} if total == 128 else usual)
            (y,) = session.run(None, ran.values)
            np.testing.assert_array_equal(ran.outputs["y"], y)
        told = {"before": 7, "after": 5, "total": 11}
        with pytest.raises(UserError, match=r"at before=7 after=5 total=11\. Give real inputs"):
            run_once(session, (), told)


def test_sizes_that_the_artifact_refuses_are_told(tmp_path: Path) -> None:
    """ONNX Runtime gives a window that does not fit an element; rutc refuses what it makes."""
    model = rows_of_48(tmp_path / "m.onnx")
    library = compile_model(model, tmp_path / "m.so", Options(dims={"h": (1, 95)})).library
    found = verify_model(model, library)
    assert found.passed
    assert found.unverified[0].startswith("refused at h=5: ")
    with pytest.raises(ModelError, match="cannot be reshaped"):
        verify_model(model, library, dims={"h": 5})


def grouped_attention(
    before: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[TensorProto],
    folder: Path,
) -> Verification:
    """What verifies grouped-query attention, whose lengths are inputs or made by nodes before."""
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "seqlens", "count"],
        ["y", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=2,
    )
    floats = {
        "q": ["batch", "seq", 64],
        "k": ["batch", "seq", 32],
        "v": ["batch", "seq", 32],
        "past_k": ["batch", 2, "past", 16],
        "past_v": ["batch", 2, "past", 16],
    }
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in floats.items()]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    graph = helper.make_graph([*before, node], "g", [*inputs, *given], outputs, weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=9), model)
    found = verify_model(model, compile_model(model, folder / "m.so").library)
    assert found.passed
    assert not found.unverified
    return found


def test_a_decoder_is_verified_at_sizes_that_belong_together(tmp_path: Path) -> None:
    """ONNX Runtime takes equal ones as well, of which rows beyond a mask's tokens are anything."""
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["tokens"], keepdims=0),
        helper.make_node("Sub", ["tokens", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "place"], ["columns"], axis=0),
        helper.make_node("Cast", ["columns"], ["count"], to=TensorProto.INT32),
    ]
    weights = [
        numpy_helper.from_array(np.array([1]), "one"),
        numpy_helper.from_array(np.array(1), "place"),
    ]
    mask = helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "total"])
    found = grouped_attention(nodes, [mask], weights, tmp_path)
    runs = re.findall(r"batch=(\d+) total=(\d+) seq=(\d+) past=(\d+)", found.inputs)
    assert len(runs) >= 2
    assert all((int(b), int(t)) == (1, int(s) + int(p)) for b, t, s, p in runs)


@pytest.mark.parametrize("rank", [0, 1])
def test_lengths_that_an_input_holds_belong_to_the_sizes(rank: int, tmp_path: Path) -> None:
    """That of a cache with the new tokens; ONNX Runtime takes several of one sequence only."""
    lengths = [
        helper.make_tensor_value_info("seqlens", TensorProto.INT32, ["batch"]),
        helper.make_tensor_value_info("count", TensorProto.INT32, [1] * rank),
    ]
    found = grouped_attention([], lengths, [], tmp_path)
    assert "batch=1 seq=7 past=11 lengths of seq + past" in found.inputs
    assert "batch=1 seq=1 past=1" in found.inputs


def test_a_sum_is_told_where_its_parts_are_clear() -> None:
    """Of a step of one token, what is one more than the past may be the past and a batch of one."""
    sizes = {"batch": 5, "seq": 7, "total": 20, "past": 13}
    assert sums_told(Draw(0, sizes, joined="total")) == ("total=seq+past",)
    assert sums_told(Draw(0, sizes)) == ()
    assert sums_told(Draw(0, {"batch": 1, "total": 14, "past": 13}, joined="total")) == ()
    assert sums_told(Draw(0, {**sizes, "more": 8, "less": 12}, joined="total")) == ()
