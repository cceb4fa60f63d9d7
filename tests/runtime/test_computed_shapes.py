"""Runs that compute the shape of an output, which the session then provides."""

import copy
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rutc
from rutc.runtime import InferenceSession, load
from rutc.runtime.received import LEAST_KEPT_BYTES, Memory


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The places of x that are positive, and twice x, which has x's shape."""
    folder = tmp_path_factory.mktemp("computed")
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["above"]),
        helper.make_node("NonZero", ["above"], ["places"]),
        helper.make_node("Add", ["x", "x"], ["twice"]),
    ]
    graph = helper.make_graph(
        nodes,
        "places",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", "n"])],
        [
            helper.make_tensor_value_info("places", TensorProto.INT64, None),
            helper.make_tensor_value_info("twice", TensorProto.FLOAT, None),
        ],
        [helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])],
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "m.onnx")
    rutc.compile(folder / "m.onnx", folder / "m.so", verify=False)
    return folder / "m.so"


@pytest.fixture
def session(library: Path) -> Iterator[InferenceSession]:
    with load(library, threads=1) as opened:
        yield opened


def made(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def test_shapes_come_and_go(session: InferenceSession) -> None:
    for shape in [(3, 5), (3, 5), (5, 3), (0, 7), (3, 5), (1, 1), (0, 7), (0, 7), (5, 3)]:
        x = made(*shape)
        for wanted in (None, ["twice"], ["places"], ["places", "twice"]):
            got = dict(
                zip(wanted or ["places", "twice"], session.run(wanted, {"x": x}), strict=True)
            )
            if "places" in got:
                assert got["places"].tolist() == np.array(np.nonzero(x > 0)).tolist()
            if "twice" in got:
                np.testing.assert_array_equal(got["twice"], x + x)


def test_arrays_that_need_a_closer_look(session: InferenceSession) -> None:
    x = made(6, 8)
    read_only = x.copy()
    read_only.flags.writeable = False
    for given in (x, x[:, ::2], x, x.T, np.asfortranarray(x), x, read_only, x[::2, :4].copy(), x):
        places, twice = session.run(None, {"x": given})
        assert places.tolist() == np.array(np.nonzero(given > 0)).tolist()
        np.testing.assert_array_equal(twice, given + given)


def test_results_are_kept(session: InferenceSession) -> None:
    x = made(3, 5)
    first = session.run(None, {"x": x})
    second = session.run(None, {"x": -x})
    np.testing.assert_array_equal(first[1], x + x)
    np.testing.assert_array_equal(second[1], -x - x)
    assert first[0].shape[1] + second[0].shape[1] == x.size


def test_shapes_of_outputs_are_asked_for_once(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    usual = session._check
    monkeypatch.setattr(session, "_check", lambda status: (calls.append(status), usual(status)))
    for shape, asked in [((3, 5), 2), ((3, 5), 1), ((3, 5), 1), ((5, 3), 2), ((5, 3), 1)]:
        calls.clear()
        session.run(None, {"x": made(*shape)})
        assert len(calls) == asked


def test_refused_inputs_change_nothing(session: InferenceSession) -> None:
    x = made(3, 5)
    session.run(None, {"x": x})
    for wrong in (x.astype(np.float64), x[0], x.tolist()):
        with pytest.raises(rutc.runtime.ModelError):
            session.run(None, {"x": wrong})
        np.testing.assert_array_equal(session.run(["twice"], {"x": x})[0], x + x)


def test_two_threads_of_a_session_get_their_own_shapes(session: InferenceSession) -> None:
    wrong: list[int] = []

    def work(rows: int) -> None:
        x = made(rows, 5)
        for _ in range(300):
            places, twice = session.run(None, {"x": x})
            if places.tolist() != np.array(np.nonzero(x > 0)).tolist() or (twice != x + x).any():
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (2, 3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_strings_of_a_computed_shape(tmp_path: Path) -> None:
    nodes = [helper.make_node("Compress", ["x", "chosen"], ["y"], axis=0)]
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 2])
    chosen = helper.make_tensor_value_info("chosen", TensorProto.BOOL, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, None)
    graph = helper.make_graph(nodes, "texts", [x, chosen], [y])
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False)
    with load(tmp_path / "m.so", threads=1) as opened:
        for rows in (3, 3, 0, 1, 30, 3):
            texts = np.array([[f"{r}", "ü" * r] for r in range(rows)], object).reshape(rows, 2)
            for kept in (np.arange(rows) % 3 == 1, np.zeros(rows, bool), np.ones(rows, bool)):
                (found,) = opened.run(None, {"x": texts, "chosen": kept})
                assert found.shape == (kept.sum(), 2)
                assert found.tolist() == texts[kept].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64", "uint64", "bool", "int16"])
def test_numbers_of_all_kinds_of_a_computed_shape(tmp_path: Path, dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("Compress", ["x", "chosen"], ["y"])]
    x = helper.make_tensor_value_info("x", kind, ["n"])
    chosen = helper.make_tensor_value_info("chosen", TensorProto.BOOL, ["n"])
    graph = helper.make_graph(
        nodes, "g", [x, chosen], [helper.make_tensor_value_info("y", kind, None)]
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False)
    with load(tmp_path / "m.so", threads=1) as opened:
        for rows in (7, 7, 0, 1, 13):
            values = (np.arange(rows) % 5).astype(dtype)
            (found,) = opened.run(None, {"x": values, "chosen": np.arange(rows) % 2 == 0})
            assert (found.dtype, found.tolist()) == (values.dtype, values[::2].tolist())
            assert found.flags.owndata
            assert found.flags.writeable


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ones of a shape that an input says."""
    folder = tmp_path_factory.mktemp("filling")
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"], value=one)],
        "filling",
        [helper.make_tensor_value_info("shape", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", "n"])],
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "m.onnx")
    rutc.compile(folder / "m.onnx", folder / "m.so", verify=False)
    return folder / "m.so"


def test_large_outputs_are_handed_over_and_small_ones_copied(filling: Path) -> None:
    """Nothing is copied of a large one, which nobody else writes to as long as it is there."""
    held: list[np.ndarray] = []
    with load(filling, threads=1) as session:
        for rows in (1, 300, 300, 0, 1000, 1, 300, 299):
            # As the only output, and where the inputs need a closer look.
            for shape in (np.array([rows, 256]), np.array([rows, 0, 256])[::2]):
                (y,) = session.run(["y"], {"shape": shape})
                assert y.flags.owndata == (y.nbytes < LEAST_KEPT_BYTES)
                assert y.shape == (rows, 256)
                assert y.flags.writeable
                assert (y == 1).all()
                y[:] = len(held)
                held.append(y)
    # Without their session, and without those that were before them.
    for number, y in enumerate(held):
        assert (y == number).all()
    kept = held[2][1:]
    with pytest.raises(TypeError, match="can be neither copied nor pickled"):
        copy.copy(_owner(kept))
    held.clear()
    del y
    assert (kept == 2).all()


def test_memory_that_was_handed_over_is_released(filling: Path) -> None:
    with load(filling, threads=1) as session:
        alive = None
        for _ in range(3):
            (y,) = session.run(None, {"shape": np.array([64, 4096])})
            alive = weakref.ref(_owner(y))
            del y
            assert alive() is None
        (y,) = session.run(None, {"shape": np.array([64, 4096])})
        session.run_into({"shape": np.array([64, 4096])}, {"y": (room := np.zeros_like(y))})
    np.testing.assert_array_equal(room, y)


def _owner(array: np.ndarray) -> Memory:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, Memory)
    return base
