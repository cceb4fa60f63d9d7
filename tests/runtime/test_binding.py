"""Runs on tensors that are described once."""

import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Copy
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.library import build_library
from rutc.runtime import ModelError, load

X = np.arange(8, dtype=np.float32)


def test_runs_read_and_write_what_is_bound(doubling: Path) -> None:
    x, y = X.copy(), np.zeros(8, np.float32)
    with load(doubling, threads=2) as session:
        binding = session.bind({"x": x}, {"y": y})
        assert not y.any()
        for shift in range(3):
            x += shift
            binding.run()
            np.testing.assert_array_equal(y, 2 * x)
            (other,) = session.run(None, {"x": X - shift})
            np.testing.assert_array_equal(other, 2 * (X - shift))
            np.testing.assert_array_equal(y, 2 * x)


def test_strided_tensors_are_bound_where_they_are(doubling: Path) -> None:
    x, y = np.arange(16, dtype=np.float32), np.zeros(24, np.float32)
    with load(doubling) as session:
        binding = session.bind({"x": x[::-2]}, {"y": y[1::3]})
        for shift in range(2):
            x += shift
            binding.run()
            np.testing.assert_array_equal(y[1::3], 2 * x[::-2])
    assert not y[::3].any()


def test_arrays_of_other_classes_are_bound_where_they_are(doubling: Path) -> None:
    class Own(np.ndarray):
        pass

    x, y = X.copy().view(Own), np.zeros(8, np.float32).view(Own)
    x.flags.writeable = False
    with load(doubling) as session:
        session.bind({"x": x}, {"y": y}).run()
    assert y.tolist() == (2 * X).tolist()


def test_tensors_of_other_libraries(doubling: Path) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(8, dtype=torch.float32), torch.zeros(8)
    with load(doubling) as session:
        binding = session.bind({"x": x}, {"y": y})
        x += 1
        binding.run()
    assert y.tolist() == (2 * (X + 1)).tolist()


def test_a_binding_holds_its_tensors_and_its_session(doubling: Path) -> None:
    x, y = X.copy(), np.zeros(8, np.float32)
    held = weakref.ref(x)
    binding = load(doubling).bind({"x": x}, {"y": y})
    del x
    binding.run()
    np.testing.assert_array_equal(y, 2 * X)
    assert held() is not None
    del binding
    assert held() is None


UNALIGNED = np.frombuffer(b"-" + X.tobytes(), np.uint8)[1:].view(np.float32)
PARTS = np.zeros(8, np.dtype([("value", np.float32), ("rest", np.uint8)]))["value"]
READ_ONLY = X.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, {"y": X}, "missing input 'x'"),
        ({"x": X}, {}, "missing output 'y': the model needs output 'y'"),
        ({"x": X, "z": X}, {"y": X}, "no input 'z'"),
        ({"x": X}, {"y": X, "z": X}, "no output 'z'"),
        ({"x": X[:3]}, {"y": X}, r"input 'x' must have shape \[8\], not \[3\]"),
        ({"x": X}, {"y": X.astype(np.float64)}, "output 'y' must have dtype float32"),
        ({"x": X}, {"y": READ_ONLY}, "output 'y' must be writeable"),
        ({"x": UNALIGNED}, {"y": X}, "input 'x' must be aligned"),
        ({"x": PARTS}, {"y": X}, "input 'x' must be aligned and have strides of whole elements"),
        ({"x": X.tolist()}, {"y": X}, "input 'x' must be a numpy array or a DLPack tensor"),
    ],
)
def test_what_cannot_be_bound(
    doubling: Path, inputs: dict[str, object], outputs: dict[str, object], message: str
) -> None:
    with load(doubling) as session, pytest.raises(ModelError, match=message):
        session.bind(inputs, outputs)


@pytest.mark.parametrize("dtype", ["string", "tensor"])
def test_objects_are_not_bound(tmp_path: Path, dtype: str) -> None:
    ports = (Port("x", dtype, (3,)),)
    steps = (Copy(Ref("output"), Ref("input"), 3 * 8),)
    build_library(Program("objects", ports, ports, 0, steps), [], tmp_path / "m.so", {})
    objects = np.full(3, "a", object)
    with load(tmp_path / "m.so") as session, pytest.raises(ModelError, match="cannot be bound"):
        session.bind({"x": objects}, {"x": objects})


def test_bindings_of_closed_sessions_do_not_run(doubling: Path) -> None:
    with load(doubling) as session:
        binding = session.bind({"x": X}, {"y": np.zeros(8, np.float32)})
    with pytest.raises(ModelError, match="closed"):
        binding.run()


def test_bindings_run_concurrently(doubling: Path) -> None:
    wrong: list[int] = []
    with load(doubling, threads=2) as session:

        def work(shift: int) -> None:
            x, y = X + shift, np.zeros(8, np.float32)
            binding = session.bind({"x": x}, {"y": y})
            for _ in range(200):
                y[:] = 0
                binding.run()
                if not np.array_equal(y, 2 * x):
                    wrong.append(shift)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_failures_of_bound_runs_are_told(tmp_path: Path) -> None:
    x, outputs = Port("x", "float32", (8,)), tuple(Port(n, "float32", (8,)) for n in "ab")
    steps = tuple(Copy(Ref("output", n), Ref("input"), 32) for n in range(2))
    build_library(Program("copies", (x,), outputs, 0, steps), [], tmp_path / "m.so", {})
    memory = np.zeros(12, np.float32)
    with load(tmp_path / "m.so") as session:
        binding = session.bind({"x": X}, {"a": memory[:8], "b": memory[4:]})
        for _ in range(2):
            with pytest.raises(ModelError, match='outputs "a" and "b" overlap in memory'):
                binding.run()
