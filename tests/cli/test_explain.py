"""`rutc explain`: what became of a node, by its name or an output's."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.driver.options import Options
from rutc.emit.targets import target_named
from rutc.graph_opt import versions
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Repeat
from rutc.importer import import_model
from rutc.report.explain import explain
from rutc.report.explanation import LONGEST_LINE
from tests.cli.conftest import Rutc, build, weight


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product, a scale, a clipping, a sum of shifted halves; and a node of constants only."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["r"], name="positive"),
        helper.make_node("Neg", ["one"], ["minus"], name="constant"),
        helper.make_node("ReduceMax", ["r"], ["m"], name="largest", keepdims=0),
        helper.make_node("Mul", ["m", "minus"], ["y"]),
    ]
    path = tmp_path_factory.mktemp("model") / "chain.onnx"
    onnx.save(build(nodes, {"w": weight(), "one": np.ones((), np.float32)}), path)
    return path


def test_a_fused_node_says_where_it_runs(chain: Path) -> None:
    found = explain(chain, "product")
    assert found.operator == "MatMul"
    (part,) = found.parts
    assert part.stored == ()
    (kernel,) = found.kernels
    assert part.kernel == kernel.name
    assert kernel.origin == ("product", "positive")
    assert any(step.startswith("tile(") for step in kernel.schedule)
    assert found.history[0].nodes == 1


def test_what_did_not_fuse_is_told_from_both_sides(chain: Path) -> None:
    reader, source = explain(chain, "largest"), explain(chain, "positive")
    assert reader.apart[0] == source.apart[-1]
    assert reader.apart[0].reader_origin == ("largest",)
    assert reader.apart[0].value_origin == ("positive",)
    assert reader.apart[0].reason == "a reduction cannot follow in a register tile"
    (stored,) = source.parts[0].stored
    assert stored.bytes == 4 * 4 * 16
    assert stored.place.startswith("arena+")


def test_a_node_without_a_name_is_named_by_its_output(chain: Path) -> None:
    found = explain(chain, "y")
    assert (found.node, found.operator) == ("y", "Mul")
    assert "output0" in found.parts[0].stored[0].place


def test_a_folded_node_has_no_parts(rutc: Rutc, chain: Path) -> None:
    result = rutc("explain", chain, "constant")
    assert result.status == 0, result.stderr
    assert "nothing is left of it" in result.stdout


def test_the_text_and_the_json_say_the_same(rutc: Rutc, chain: Path) -> None:
    shown = rutc("explain", chain, "largest").stdout
    payload = rutc("explain", chain, "largest", "--json").json
    kernels = payload["kernels"]
    assert isinstance(kernels, list)
    for kernel in kernels:
        assert f"kernel {kernel['name']}" in shown
    assert "not fused:" in shown
    assert "(largest) with %r (positive): a reduction cannot follow" in shown


def test_an_unknown_node_is_the_users_error(rutc: Rutc, chain: Path) -> None:
    result = rutc("explain", chain, "prodct")
    assert result.status == 2
    assert "no node 'prodct'" in result.stderr
    assert "'product'" in result.stderr


def test_scans_are_explained_inside(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((1, 12, 8)).astype(np.float32),
        "r": rng.standard_normal((1, 12, 3)).astype(np.float32),
        "shape": np.array([4, 1, 8], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["s"], name="time"),
        helper.make_node("LSTM", ["s", "w", "r"], ["y"], name="memory", hidden_size=3),
    ]
    path = tmp_path / "lstm.onnx"
    onnx.save(build(nodes, weights), path)
    found = explain(path, "memory")
    assert found.kernels
    assert any(part.kernel is None for part in found.parts)


def test_a_rewrite_that_would_round_too_much_is_told(rutc: Rutc, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Sub", ["h", "far"], ["c"], name="center"),
        helper.make_node("Mul", ["c", "scale"], ["y"], name="scale"),
    ]
    numbers = {"far": np.float32(1e6), "scale": np.float32(0.3)}
    path = tmp_path / "far.onnx"
    onnx.save(build(nodes, {"w": weight(), **{n: np.array(v) for n, v in numbers.items()}}), path)
    (refusal,) = explain(path, "scale").refused
    assert refusal.rule == "combine_scales"
    assert re.fullmatch(r"it may cost [\d.]+ bits, more than 1", refusal.reason)
    assert refusal.reason in rutc("explain", path, "scale").stdout
    assert explain(path, "scale", Options(exact_algorithms=True)).refused == ()
    numbers["far"] = np.float32(0.5)
    onnx.save(build(nodes, {"w": weight(), **{n: np.array(v) for n, v in numbers.items()}}), path)
    assert explain(path, "scale").refused == ()


def test_kernels_of_slices_are_scheduled_for_one_thread(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["q", "r"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"], name="weights"),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="mixed"),
    ]
    shapes = {"q": [8, 512, 64], "r": [8, 64, 512], "v": [8, 512, 64], "y": [8, 512, 64]}
    *given, made = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()
    )
    graph = helper.make_graph(nodes, "slices", given, [made])
    path = tmp_path / "slices.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    machine = target_named("x86-64-v3").machine
    plan = decide(versions(import_model(path), machine)[-1].graph, machine)
    assert any(isinstance(s, Repeat) and s.parts for s in plan.steps)
    kernels = explain(path, "scores", Options(target="x86-64-v3")).kernels
    assert kernels
    assert not any("parallel" in step for kernel in kernels for step in kernel.schedule)


def test_lines_of_nodes_that_many_became_one_of_are_short(rutc: Rutc, tmp_path: Path) -> None:
    names = [f"block.{i}.activation.of.a.layer.with.a.long.name" for i in range(24)]
    values = ["x", *(f"v{i}" for i in range(24))]
    ops = ("Add", "Max", "Sub")
    nodes = [
        helper.make_node(
            ops[i % 3] if i % 2 else "Sin",
            [values[i], "x"][: 1 + i % 2],
            [values[i + 1]],
            name=name,
        )
        for i, name in enumerate(names)
    ]
    nodes += [
        helper.make_node("ReduceMax", ["v23"], ["top"], name="top"),
        helper.make_node("Sub", ["v23", "top"], ["y"], name="below"),
    ]
    onnx.save(build(nodes, {}), tmp_path / "m.onnx")
    shown = rutc("explain", tmp_path / "m.onnx", names[-1])
    assert shown.status == 0, shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= LONGEST_LINE
    (kernel, *_) = explain(tmp_path / "m.onnx", names[-1]).kernels
    assert len(", ".join(kernel.origin)) > LONGEST_LINE
    assert f"computes {kernel.origin[0]}, {kernel.origin[1]}" in shown.stdout
    assert f"{kernel.origin[-1]}\n" in shown.stdout
