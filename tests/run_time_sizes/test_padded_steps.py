"""Recurrent layers over sequences that end before the steps do, compiled, of open sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.parts.build import Builder
from rutc.emit.linking.library import build_library
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import Scan
from rutc.tensor_ir.machine import Machine
from tests.close import assert_close
from tests.machines import NATIVE, on_machines

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, "DynamicQuantizeLSTM": 4}
HIDDEN, FEATURES = 7, 3
OPEN = ("steps", "batch")


def weights(op: str, ways: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The constants of a layer, by their operands' names."""
    rows = GATES[op] * HIDDEN
    bias = rng.standard_normal((ways, 2 * rows)).astype(np.float32)
    if op != "DynamicQuantizeLSTM":
        sizes = {"w": (ways, rows, FEATURES), "r": (ways, rows, HIDDEN)}
        made = {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}
        return {**made, "b": bias}
    sizes = {"w": (ways, FEATURES, rows), "r": (ways, HIDDEN, rows)}
    numbers = {n: rng.integers(-128, 128, s).astype(np.int8) for n, s in sizes.items()}
    scales = {f"{n}s": np.full(ways, 0.01, np.float32) for n in "wr"}
    zeros = {f"{n}z": np.zeros(ways, np.int8) for n in "wr"}
    return {**numbers, **scales, **zeros, "b": bias}


def layer(
    op: str,
    direction: str,
    shape: Sequence[int | str],
    rng: np.random.Generator,
    *,
    layout: int = 0,
    lengths: np.ndarray | None = None,
) -> onnx.ModelProto:
    """A layer of x{steps, batch, features}, or by `layout` {batch, steps, features}, and lengths.

    The lengths are an input, or constants where they are given.
    """
    ways = 2 if direction == "bidirectional" else 1
    constants = weights(op, ways, rng)
    quantised = op == "DynamicQuantizeLSTM"
    names = ["x", "w", "r", "b", "l"]
    names += ["", "", "", "ws", "wz", "rs", "rz"] if quantised else []
    outputs = ["y", "y_h", "y_c"][: 3 if op.endswith("LSTM") else 2]
    options = {"layout": layout} if layout else {}
    domain = "com.microsoft" if quantised else ""
    step = helper.make_node(
        op, names, outputs, op, domain=domain, hidden_size=HIDDEN, direction=direction, **options
    )
    steps, batch = shape
    free = [batch, steps] if layout else [steps, batch]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*free, FEATURES])]
    if lengths is None:
        inputs.append(helper.make_tensor_value_info("l", TensorProto.INT32, [batch]))
    else:
        constants["l"] = lengths.astype(np.int32)
    infos = [onnx.ValueInfoProto(name=o) for o in outputs]
    data = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([step], "g", inputs, infos, data)
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def compiled(model: onnx.ModelProto, machine: Machine, folder: Path) -> InferenceSession:
    """A session of the model's library."""
    onnx.save(model, folder / "m.onnx")
    plan = decide(optimize(import_model(folder / "m.onnx")), machine)
    built = Builder(plan, machine, "m", 1).build()
    build_library(built.program, built.objects, folder / "m.so", {})
    return InferenceSession(folder / "m.so", threads=2)


def alone(session: InferenceSession, x: np.ndarray, length: int) -> list[np.ndarray]:
    """The results of one sequence of x{steps, 1, features}, all of whose steps are run."""
    full = {"x": x[:length], "l": np.array([length], np.int32)}
    y, *states = session.run(None, full)
    return [np.pad(y, [(0, len(x) - length), (0, 0), (0, 0), (0, 0)]), *states]


RUNS = [(7, [3, 1, 2]), (7, [7, 0, 7]), (13, [2]), (1, [1]), (5, [0, 0]), (31, [5] * 8), (4, [4])]


@on_machines
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
def test_steps_that_are_padding_are_left_out(
    op: str, direction: str, layout: int, machine: Machine, tmp_path: Path
) -> None:
    """As many trips as the longest sequence has steps; not even NaN behind its end shows."""
    if layout and op == "DynamicQuantizeLSTM":
        pytest.skip("it has no layout")
    model = layer(op, direction, OPEN, np.random.default_rng(0), layout=layout)
    rng = np.random.default_rng(1)
    other = layer(op, direction, OPEN, np.random.default_rng(0))
    one = onnxruntime.InferenceSession(other.SerializeToString())
    (tmp_path / "one").mkdir()
    session = compiled(model, machine, tmp_path)
    quantised = op == "DynamicQuantizeLSTM"
    with session, compiled(other, machine, tmp_path / "one") as by_rows:
        for steps, lengths in RUNS:
            x = rng.standard_normal((steps, len(lengths), FEATURES)).astype(np.float32)
            for n, length in enumerate(lengths):
                x[length:, n] = np.nan
            given = {"x": x.swapaxes(0, 1).copy() if layout else x, "l": np.int32(lengths)}
            got = session.run(None, given)
            if quantised:
                # ONNX Runtime quantises all rows of a batch by one factor.
                parts = [alone(by_rows, x[:, n : n + 1], k) for n, k in enumerate(lengths)]
                wanted = [
                    np.concatenate(p, axis=2 if k == 0 else 1)
                    for k, p in enumerate(zip(*parts, strict=True))
                ]
            else:
                wanted = one.run(None, {"x": x, "l": np.int32(lengths)})
            if layout:
                wanted[0] = wanted[0].transpose(2, 0, 1, 3)
                wanted[1:] = [w.swapaxes(0, 1) for w in wanted[1:]]
            for g, want in zip(got, wanted, strict=True):
                assert g.shape == want.shape
                assert_close(g, want, reduction=1024)


def test_trips_are_those_of_the_longest_sequence(tmp_path: Path) -> None:
    """Their number is a size of its own, commonly as large as that of all steps."""
    onnx.save(layer("GRU", "forward", OPEN, np.random.default_rng(0)), tmp_path / "m.onnx")
    graph = import_model(tmp_path / "m.onnx", dims={"steps": (1, 100, 1, 60)})
    (scan,) = (n for n in graph.nodes if isinstance(n, Scan))
    trips = graph.extents[scan.dim]
    symbols = dict(graph.symbols)
    assert trips.names().isdisjoint({"steps", "batch"})
    assert symbols[trips.ordered_names()[0]] == symbols["steps"]


def test_no_sequence_and_no_step(tmp_path: Path) -> None:
    model = layer("LSTM", "bidirectional", OPEN, np.random.default_rng(0))
    with compiled(model, NATIVE, tmp_path) as session:
        for steps, batch in ((0, 3), (5, 0), (0, 0)):
            x = np.zeros((steps, batch, FEATURES), np.float32)
            y, *states = session.run(None, {"x": x, "l": np.zeros(batch, np.int32)})
            assert y.shape == (steps, 2, batch, HIDDEN)
            for state in states:
                assert state.shape == (2, batch, HIDDEN)
                assert not state.any()


@pytest.mark.parametrize("length", [-1, 5])
def test_a_length_out_of_range_ends_the_run(length: int, tmp_path: Path) -> None:
    model = layer("GRU", "forward", OPEN, np.random.default_rng(0))
    x = np.zeros((4, 2, FEATURES), np.float32)
    with compiled(model, NATIVE, tmp_path) as session, pytest.raises(ModelError, match="GRU"):
        session.run(None, {"x": x, "l": np.array([2, length], np.int32)})


def test_known_lengths_of_open_steps(tmp_path: Path) -> None:
    """A run of fewer steps than the longest sequence has is refused."""
    shape = ("steps", 2)
    model = layer("RNN", "reverse", shape, np.random.default_rng(0), lengths=np.array([3, 2]))
    wanted = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    with compiled(model, NATIVE, tmp_path) as session:
        for steps in (3, 8):
            given = {"x": rng.standard_normal((steps, 2, FEATURES)).astype(np.float32)}
            for got, want in zip(session.run(None, given), wanted.run(None, given), strict=True):
                assert_close(got, want, reduction=1024)
        with pytest.raises(ModelError):
            session.run(None, {"x": np.zeros((2, 2, FEATURES), np.float32)})
