"""Runs whose arrays need no closer look, and those that do."""

import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rutc.driver.compiler import Options, compile_model
from rutc.runtime import InferenceSession, ModelError, load
from rutc.runtime.binding import Addresses
from rutc.runtime.c_interface import DLTensor
from rutc.runtime.plain import Described, plain_tensors
from rutc.runtime.tensors import TensorInfo

X = np.arange(8, dtype=np.float32)
READ_ONLY = X.copy()
READ_ONLY.flags.writeable = False


def info(name: str, shape: tuple[int | str, ...], dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name, shape, np.dtype(dtype), dtype)


BIG_ENDIAN, UNALIGNED = X.astype(">f4"), np.zeros(33, np.uint8)[1:].view(np.float32)


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
        {"x": BIG_ENDIAN},
        {"x": UNALIGNED},
    ],
)
@pytest.mark.parametrize("extent", [8, "n"])
def test_what_needs_a_closer_look(inputs: dict[str, object], extent: int | str) -> None:
    if extent == "n" and inputs.keys() == {"x"} and getattr(inputs["x"], "shape", ()) == (4,):
        inputs = {"x": np.arange(8, dtype=np.float32)[::2]}
    plain = plain_tensors([info("x", (extent,))], [info("y", (8,))], None)
    assert plain is not None
    assert plain.describe(inputs) is None
    assert plain.describe_into(inputs, {"y": X.copy()}) is None


@pytest.mark.parametrize(
    "outputs", [{}, {"z": X}, {"y": X, "z": X}, {"y": READ_ONLY}, {"y": X.reshape(2, 4)}]
)
def test_results_that_need_a_closer_look(outputs: dict[str, object]) -> None:
    plain = plain_tensors([info("x", (8,))], [info("y", (8,))], None)
    assert plain is not None
    assert not plain.describe_into({"x": X}, outputs)
    y = X.copy()
    assert plain.describe_into({"x": X}, {"y": y}) == ([X], [y])
    assert plain.describe_into({"x": READ_ONLY}, {"y": y}) == ([READ_ONLY], [y])


@pytest.mark.parametrize(
    "other",
    [
        TensorInfo("y", (2,), np.dtype(object), "string"),
        TensorInfo("y", (2,), np.dtype(object), "tensor"),
        TensorInfo("y", (2,), np.dtype([("a", "f4")]), "float32"),
    ],
)
def test_models_with_other_tensors_are_not_plain(other: TensorInfo) -> None:
    assert plain_tensors([info("x", (8,))], [other], None) is None
    assert plain_tensors([other], [info("y", (8,))], None) is None


def test_shapes_are_told_where_inputs_have_others() -> None:
    """Each step: the shape of x, and whether it is told then what y has."""
    plain = plain_tensors([info("x", (2, "n"))], [info("y", ("n",))], None)
    assert plain is not None
    for shape, told in [((2, 3), False), ((2, 3), True), ((2, 0), False), ((2, 3), False)]:
        x = np.ones(shape, np.float32)
        assert plain.describe({"x": x}) == [x]
        assert plain.told == told
        _fill_in(plain.output_addresses, shape[1:])
        plain.learn()
        (y,) = plain.make()
        assert (y.shape, y.dtype) == (shape[1:], np.float32)
    for wrong in (np.ones((3, 3), np.float32), np.ones(2, np.float32)):
        assert plain.describe({"x": wrong}) is None
    assert plain.told


def test_shapes_of_the_callers_results_are_no_longer_told() -> None:
    plain = plain_tensors([info("x", ("n",))], [info("y", ("m",))], None)
    assert plain is not None
    assert plain.describe_into({"x": X}, {"y": X.copy()}) is not None
    assert not plain.told


def test_shapes_that_more_than_inputs_decide_are_told_each_time() -> None:
    plain = plain_tensors([info("x", ("n",))], [info("y", ("n",))], None, lasting=False)
    assert plain is not None
    for _ in range(3):
        assert plain.describe({"x": X}) == [X]
        assert not plain.told
        plain.learn()


def test_a_shape_without_room_is_none_to_go_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next run of that shape would write behind the room of another."""
    texts = Described(TensorInfo("x", ("n",), np.dtype(object), "string"))
    assert texts.take((2,))

    def no_memory(*args: object) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr("rutc.runtime.plain.np.zeros", no_memory)
    with pytest.raises(MemoryError):
        texts.take((500,))
    assert texts.shape is None
    monkeypatch.undo()
    assert texts.take((500,))
    assert (texts.shape, len(texts.room)) == ((500,), 501)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 1), (3, 3), ()])
def test_shapes_of_other_ranks_and_extents_change_nothing(shape: tuple[int, ...]) -> None:
    x = Described(info("x", (2, "n")))
    assert x.take((2, 5))
    assert not x.take(shape)
    assert x.shape == (2, 5)


def test_negative_extents_are_no_shape() -> None:
    plain = plain_tensors([info("x", ("n",))], [info("y", ("n - 9", 2))], None)
    assert plain is not None
    plain.describe({"x": X})
    _fill_in(plain.output_addresses, (-1, 2))
    with pytest.raises(ModelError, match=r"'y' has no shape for these inputs: \[-1, 2\] it would"):
        plain.learn()
    assert not plain.told


def _fill_in(addresses: Addresses, shape: tuple[int, ...]) -> None:
    """Puts the shape of the only output into its descriptor, as a library does."""
    (place,) = addresses
    tensor = DLTensor.from_address(place)
    for axis, extent in enumerate(shape):
        tensor.shape[axis] = extent


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
    check = InferenceSession._check

    def watched(session: InferenceSession, status: int) -> None:
        alive.append([m.made[-1]() is not None for m in (x, y) if m.made])
        check(session, status)

    monkeypatch.setattr(InferenceSession, "_check", watched)
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
    runs: list[object] = []
    run_plain = InferenceSession._run_plain

    def counted(session: InferenceSession, inputs: Mapping[str, object]) -> list[Any] | None:
        found = run_plain(session, inputs)
        runs.append(found)
        return found

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
    assert runs
    assert None not in runs
