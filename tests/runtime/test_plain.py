"""Runs whose arrays need no closer look, and those that do."""

import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.driver.compiler import Options, compile_model
from rutc.runtime import InferenceSession, ModelError, load
from rutc.runtime.binding import Arguments
from rutc.runtime.plain import plain_tensors, repeated_shapes
from rutc.runtime.tensors import TensorInfo

X = np.arange(8, dtype=np.float32)
READ_ONLY = X.copy()
READ_ONLY.flags.writeable = False


def info(name: str, shape: tuple[int | str, ...], dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name, shape, np.dtype(dtype), dtype)


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"z": X},
        {"x": X, "z": X},
        {"x": X[::2]},
        {"x": X.reshape(2, 4)},
        {"x": X.astype(np.float64)},
        {"x": X.tolist()},
        {"x": np.arange(16, dtype=np.float32)[::2]},
        {"x": READ_ONLY},
    ],
)
def test_what_needs_a_closer_look(inputs: dict[str, object]) -> None:
    plain = plain_tensors([info("x", (8,))], [info("y", (8,))], None)
    assert plain is not None
    assert plain.describe(inputs) is None
    assert not plain.describe_into(inputs, {"y": X})


@pytest.mark.parametrize(
    "outputs", [{}, {"z": X}, {"y": X, "z": X}, {"y": READ_ONLY}, {"y": X.reshape(2, 4)}]
)
def test_results_that_need_a_closer_look(outputs: dict[str, object]) -> None:
    plain = plain_tensors([info("x", (8,))], [info("y", (8,))], None)
    assert plain is not None
    assert not plain.describe_into({"x": X}, outputs)
    y = X.copy()
    assert plain.describe_into({"x": X}, {"y": y}) == ([X], [y])


@pytest.mark.parametrize(
    "other",
    [info("y", ("n",)), info("y", (0, 3)), TensorInfo("y", (2,), np.dtype(object), "string")],
)
def test_models_with_other_tensors_are_not_plain(other: TensorInfo) -> None:
    assert plain_tensors([info("x", (8,))], [other], None) is None
    assert plain_tensors([other], [info("y", (8,))], None) is None


def test_shapes_without_elements_are_not_described_once() -> None:
    repeated = repeated_shapes([info("x", ("n",))], [info("y", ("n",))], None)
    assert repeated is not None
    for _ in range(3):
        assert repeated.after({"x": X[:0]}, {"y": X[:0]}) is None
    assert not repeated._seen


def test_shapes_that_come_again_are_described_once() -> None:
    repeated = repeated_shapes([info("x", ("n",))], [info("y", ("n",))], None)
    assert repeated is not None
    longer = np.arange(9, dtype=np.float32)
    assert repeated.known({"x": longer}) is None
    assert repeated.after({"x": X}, {"y": X}) is None
    assert repeated.after({"x": longer}, {"y": longer}) is None
    plain = repeated.after({"x": longer}, {"y": longer})
    assert plain is not None
    assert repeated.known({"x": longer}) is plain
    assert repeated.known({"x": X}) is None
    assert repeated.known({"x": X.tolist()}) is None
    assert plain.describe({"x": X}) is None
    described = plain.describe({"x": longer})
    assert described is not None
    results, _ = described
    assert [(y.shape, y.dtype) for y in results] == [((9,), np.dtype("float32"))]


@pytest.mark.parametrize("values", [{}, {"x": X.tolist()}, {"x": X[:0]}])
def test_what_is_never_described_once(values: dict[str, object]) -> None:
    repeated = repeated_shapes([info("x", ("n",))], [info("y", ("n",))], None)
    assert repeated is not None
    for _ in range(3):
        assert repeated.after(values, {"y": X}) is None


@pytest.mark.parametrize(
    "other",
    [
        TensorInfo("y", ("n",), np.dtype(object), "string"),
        TensorInfo("y", ("n",), np.dtype("float32"), "float32", computed=True),
    ],
)
def test_shapes_that_tell_nothing(other: TensorInfo) -> None:
    assert repeated_shapes([info("x", ("n",))], [other], None) is None


class Lazy(Mapping[str, np.ndarray]):
    """A mapping that makes an array whenever it is asked for one, as that of `np.load` does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[weakref.ref[np.ndarray]] = []

    def __getitem__(self, name: str) -> np.ndarray:
        if name != self.name:
            raise KeyError(name)
        array = X.copy()
        self.made.append(weakref.ref(array))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1


def test_arrays_of_the_moment_live_as_long_as_the_run(
    doubling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, alive = Lazy("x"), Lazy("y"), []
    run_plain = InferenceSession._run_plain

    def watched(session: InferenceSession, arguments: Arguments) -> None:
        alive.append([m.made[-1]() is not None for m in (x, y) if m.made])
        run_plain(session, arguments)

    monkeypatch.setattr(InferenceSession, "_run_plain", watched)
    with load(doubling) as session:
        np.testing.assert_array_equal(session.run(None, x)[0], 2 * X)
        session.run_into(x, y)
    assert alive == [[True], [True, True]]
    assert not any(made() is not None for made in (*x.made, *y.made))


def test_results_are_new_and_the_same_either_way(doubling: Path) -> None:
    with load(doubling) as session:
        (first,) = session.run(None, {"x": X})
        for values in (READ_ONLY, X, np.arange(16, dtype=np.float32)[::2] / 2):
            (named,) = session.run(["y"], {"x": values})
            (found,) = session.run(None, {"x": values})
            np.testing.assert_array_equal(found, 2 * values)
            np.testing.assert_array_equal(named, found)
        np.testing.assert_array_equal(first, 2 * X)


def test_results_of_the_caller_are_the_same_either_way(doubling: Path) -> None:
    with load(doubling) as session:
        for room in (np.zeros(8, np.float32), np.zeros(16, np.float32)[::2]):
            session.run_into({"x": X}, {"y": room})
            np.testing.assert_array_equal(room, 2 * X)
        with pytest.raises(ModelError, match="writeable"):
            session.run_into({"x": X}, {"y": READ_ONLY})
        with pytest.raises(ModelError, match="no output 'z'"):
            session.run_into({"x": X}, {"z": X.copy()})
    with pytest.raises(ModelError, match="closed"):
        session.run_into({"x": X}, {"y": np.zeros(8, np.float32)})


@pytest.mark.parametrize("extent", [3, "n"])
def test_sequences_of_tensors_are_made_without_a_closer_look(
    extent: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("ReduceSum", ["x"], ["b"], keepdims=0),
        helper.make_node("SequenceConstruct", ["a", "b", "a"], ["s"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [extent])
    s = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "g", [x], [s, b])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(jobs=1))
    runs: list[Arguments] = []
    run_plain = InferenceSession._run_plain

    def counted(session: InferenceSession, arguments: Arguments) -> None:
        runs.append(arguments)
        run_plain(session, arguments)

    monkeypatch.setattr(InferenceSession, "_run_plain", counted)
    with load(tmp_path / "m.so") as session:
        for size in (0, 1, 7) if extent == "n" else (3,):
            values = np.arange(size, dtype=np.float32)
            for names in (None, None, ["b", "s"], ["s"]):
                found = session.run(names, {"x": values})
                named = dict(zip(names or ["s", "b"], found, strict=True))
                for got, want in zip(named["s"], (-values, values.sum(), -values), strict=True):
                    np.testing.assert_array_equal(got, want)
                if "b" in named:
                    assert named["b"] == values.sum()
    assert len(runs) >= 4
