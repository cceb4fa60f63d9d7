"""Sizes at which a model of symbolic sizes is verified and run."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from rutc.driver.api import compile, verify
from rutc.errors import UserError
from rutc.runtime import InferenceSession, load
from rutc.tensor_ir.indices.ranges import common_size
from rutc.verify.feeding.session_values import session_values
from rutc.verify.feeding.sizes import (
    held_bytes,
    modest,
    modest_common_sizes,
    narrowed,
    planned_ranges,
    sample_sizes,
    session_common_sizes,
    session_symbols,
    sizes_of,
)
from rutc.verify.verify import verify_model


def _model(folder: Path) -> Path:
    """y{batch, seq} = softmax of (x{batch, seq} + mask{seq})."""
    symbols = ["batch", "seq"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, symbols)
    mask = helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, symbols)
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["y"], axis=1),
    ]
    graph = helper.make_graph(nodes, "masked", [x, mask], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save(model, folder / "masked.onnx")
    return folder / "masked.onnx"


def test_samples_lie_in_their_ranges_and_differ() -> None:
    symbols = {"a": (0, 3), "b": (1, 512), "c": (100, 100_000), "d": (7, 7), "e": (0, 1)}
    samples = sample_sizes(symbols)
    assert samples[1] == {"a": 1, "b": 1, "c": 100, "d": 7, "e": 0}
    assert samples[2] == {"a": 3, "b": 64, "c": 100, "d": 7, "e": 1}
    assert len(samples) == 3
    for sizes in samples:
        assert all(low <= sizes[name] <= high for name, (low, high) in symbols.items())
    assert sample_sizes({}) == ({},)


def test_large_samples_are_halved_until_a_run_is_modest() -> None:
    symbols = {"a": (1, 100), "b": (3, 1000)}
    assert sample_sizes(symbols, lambda sizes: sizes["a"] * sizes["b"] <= 100) == (
        {"a": 5, "b": 9},
        {"a": 1, "b": 3},
        {"a": 8, "b": 8},
    )
    few = sample_sizes(symbols, lambda sizes: sizes["a"] < 6)
    assert few == ({"a": 5, "b": 9}, {"a": 1, "b": 3})
    assert sample_sizes(symbols, lambda sizes: False) == ({"a": 1, "b": 3},)


def test_what_a_run_holds_decides_at_which_sizes_a_model_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compile(_model(tmp_path), tmp_path / "masked.so", verify=False)
    with load(made.library) as session:
        assert modest(session, {"batch": 64, "seq": 64})
        monkeypatch.setattr("rutc.verify.feeding.sizes.MOST_BYTES", 2 * 64 * 64 * 4)
        assert modest(session, {"batch": 64, "seq": 8})
        assert not modest(session, {"batch": 64, "seq": 64})
        monkeypatch.undo()
        monkeypatch.setattr("rutc.verify.feeding.sizes.MOST_FLOPS", 0)
        assert not modest(session, {"batch": 64, "seq": 8})


def test_sizes_that_are_planned_for_are_halved_until_a_run_is_modest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compile(_model(tmp_path), tmp_path / "m.so", dims={"seq": (3, 512)}, verify=False)
    with load(made.library) as session:
        assert modest_common_sizes(session) == {"batch": 1, "seq": 128}
        monkeypatch.setattr("rutc.verify.feeding.sizes.MOST_BYTES", 4 * 32 * 4)
        assert modest_common_sizes(session) == {"batch": 1, "seq": 32}
        monkeypatch.setattr("rutc.verify.feeding.sizes.MOST_BYTES", 0)
        assert modest_common_sizes(session) == {"batch": 1, "seq": 3}


def test_operations_are_those_of_the_sizes_that_were_planned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compile(_model(tmp_path), tmp_path / "masked.so", verify=False)
    with load(made.library) as session:
        ranges = planned_ranges(session.manifest)
        planned = {name: common_size(limits) for name, limits in ranges.items()}
        assert session_common_sizes(session, {}) == planned
        flops = session.manifest["flops"]
        monkeypatch.setattr("rutc.verify.feeding.sizes.MOST_FLOPS", 1.5 * flops)
        assert modest(session, planned)
        assert not modest(session, {name: 2 * size for name, size in planned.items()})
        # As it is where images take turns in the same memory.
        manifest = {**session.manifest, "arena_bytes": 1 << 24}
        monkeypatch.setattr(type(session), "manifest", manifest)
        assert modest(session, planned)
        assert not modest(session, {name: 2 * size for name, size in planned.items()})


def test_a_model_is_verified_at_several_sizes(tmp_path: Path) -> None:
    model = _model(tmp_path)
    made = compile(model, tmp_path / "masked.so", dims={"batch": (1, 8), "seq": (1, 100)})
    assert made.verification is not None
    assert made.verification.passed
    assert made.verification.inputs == (
        "inputs generated from seed 0 at batch=5 seq=7; batch=1 seq=1; batch=8 seq=64; "
        "values times 1/64; values times 64; values plus 256"
    )
    checked = verify_model(model, made.library, dims={"batch": 2, "seq": 33})
    assert checked.passed
    assert checked.outputs[0].shape == (2, 33)


def test_the_sizes_to_give_are_named_where_no_generated_inputs_are_taken(tmp_path: Path) -> None:
    """y{n + 1200000} = x{n} mirrored at both ends, which takes more than half as many elements."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    pads = helper.make_tensor("pads", TensorProto.INT64, [2], [600_000, 600_000])
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")
    graph = helper.make_graph([node], "mirror", [x], [y], [pads])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save(model, tmp_path / "m.onnx")
    advice = (
        "Give real inputs with --input NAME=FILE, "
        "or compile the model for sizes that it takes: --dim n=SIZE"
    )
    with pytest.raises(UserError, match="does not run the model on these inputs") as refused:
        verify(tmp_path / "m.onnx")
    assert str(refused.value).endswith(
        f". They were inputs generated from seed 0 at n=64. {advice}"
    )
    with pytest.raises(UserError, match="does not run the model on these inputs") as refused:
        verify(tmp_path / "m.onnx", inputs=["random:1"])
    assert str(refused.value).endswith(f". {advice}")
    assert verify(tmp_path / "m.onnx", dims={"n": 600_001}).passed


def test_generated_inputs_have_the_sizes_of_the_given_ones(tmp_path: Path) -> None:
    made = compile(_model(tmp_path), tmp_path / "m.so", dims={"batch": (1, 8)}, verify=False)
    np.save(tmp_path / "x.npy", np.zeros((3, 17), np.float32))
    with load(made.library) as session:
        assert session_symbols(session)["batch"] == (1, 8)
        values = session_values(session, [f"x={tmp_path / 'x.npy'}"])
        assert values["mask"].shape == (17,)
        assert session.run(None, values)[0].shape == (3, 17)
        assert session_values(session, ())["x"].shape == (1, 128)


def test_a_range_may_have_a_step(tmp_path: Path) -> None:
    """y{h, w} = x{h, w} + (x halved in both directions, then doubled again)."""
    sizes = ["h", "w"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, *sizes])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, *sizes])
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0])
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["half", "", "scales"], ["whole"], mode="nearest"),
        helper.make_node("Add", ["x", "whole"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "pyramid", [x], [y], [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save(model, tmp_path / "pyramid.onnx")
    dims = {"h": (2, 100, 2), "w": (1, 64, 2)}
    made = compile(tmp_path / "pyramid.onnx", tmp_path / "m.so", dims=dims)
    assert made.verification is not None
    assert made.verification.passed
    with load(made.library) as session:
        assert session_symbols(session) == {"h/2": (1, 50), "w/2": (1, 32)}
        np.save(tmp_path / "x.npy", np.ones((1, 1, 6, 10), np.float32))
        values = session_values(session, [f"x={tmp_path / 'x.npy'}"])
        assert session.run(None, values)[0].shape == (1, 1, 6, 10)
        assert sizes_of(session, values) == {"h": 6, "w": 10}
        assert narrowed(session_symbols(session), {"h": 8}) == {"h/2": (4, 4), "w/2": (1, 32)}
        with pytest.raises(UserError, match=r"it runs at h 2..100 in steps of 2, w 2..64 in steps"):
            narrowed(session_symbols(session), {"h": 7})


def test_sizes_of_generated_inputs_are_chosen_beside_a_library(tmp_path: Path) -> None:
    model, library = _model(tmp_path), tmp_path / "m.so"
    compile(model, library, dims={"batch": (1, 8), "seq": (1, 100)}, verify=False)
    found = verify(model, library, dims={"batch": 3, "seq": 33})
    assert found.outputs[0].shape == (3, 33)
    found = verify(model, library, dims={"seq": 9})
    assert found.inputs.startswith("inputs generated from seed 0 at batch=5 seq=9; batch=1 seq=9")
    np.save(tmp_path / "mask.npy", np.zeros(7, np.float32))
    given = [f"mask={tmp_path / 'mask.npy'}"]
    assert verify(model, library, inputs=given, dims={"batch": 3}).outputs[0].shape == (3, 7)
    with pytest.raises(UserError, match=r"batch=9.*it runs at batch 1\.\.8, seq 1\.\.100"):
        verify(model, library, dims={"batch": 9})
    with pytest.raises(UserError, match="no such size"):
        verify(model, library, dims={"bathc": 1})
    np.savez(tmp_path / "case.npz", allow_pickle=False, mask=np.zeros(7, np.float32))
    with pytest.raises(UserError, match="--dim would change nothing"):
        verify(model, library, data=tmp_path, dims={"batch": 3})


def test_memory_for_sizes_that_a_run_computes_is_counted_as_for_the_largest_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The length of a cache may be an element of an input, which no shape tells."""
    monkeypatch.setattr("rutc.verify.feeding.sizes.port_bytes", lambda session, sizes: 100)
    session = SimpleNamespace(manifest={"arena_bytes": "64 * n + 32 * total"})
    assert held_bytes(cast("InferenceSession", session), {"n": 3, "m": 7}) == 64 * 3 + 32 * 7 + 100
