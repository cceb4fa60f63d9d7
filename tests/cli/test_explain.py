"""`rutc explain`: what became of a node, by its name or an output's."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from rutc.explain import explain
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
