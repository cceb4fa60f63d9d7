"""Running models from Python: results, threads, control flow, many sessions and artifacts."""

import copy
import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import sleep, thread_time_ns

import ml_dtypes
import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Branch, Copy, Repeat
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.library import build_library
from rutc.runtime import InferenceSession, ModelError, load, loader
from rutc.runtime.c_interface import Options
from rutc.runtime.objects import Objects
from rutc.runtime.tensors import Slot, TensorInfo
from rutc.tensor_ir.indices.affine import Index
from tests.launches import Launches
from tests.runtime.conftest import Compile, elementwise, kernel, simple, unary

X = np.arange(8, dtype=np.float32)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_thread_count_gives_the_same(doubling: Path, threads: int) -> None:
    with load(doubling, threads=threads) as session:
        for shift in range(3):
            (y,) = session.run(None, {"x": X + shift})
            np.testing.assert_array_equal(y, 2 * (X + shift))


def test_interface_is_onnx_runtimes(doubling: Path) -> None:
    session = InferenceSession(doubling, providers=["CPUExecutionProvider"])
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.shape, x.type) == ("x", [8], "tensor(float)")
    assert (y.name, y.shape, y.type) == ("y", [8], "tensor(float)")
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.manifest["version"] == "1"
    assert session.manifest["inputs"] == [{"name": "x", "dtype": "float32", "shape": [8]}]
    assert len(session.run(["y"], {"x": X})) == 1


def test_results_are_independent(doubling: Path) -> None:
    with load(doubling) as session:
        (first,) = session.run(None, {"x": X})
        kept = first.copy()
        session.run(None, {"x": X + 1})
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_sessions_are_not_copied(doubling: Path, copied: Callable[[object], object]) -> None:
    with load(doubling, threads=1) as session, pytest.raises(TypeError, match="open another one"):
        copied(session)


def test_strided_and_unaligned_arrays(doubling: Path) -> None:
    wide = np.arange(24, dtype=np.float32)
    unaligned = np.frombuffer(b"-" + X.tobytes(), np.uint8)[1:].view(np.float32)
    backwards = np.zeros(16, np.float32)
    with load(doubling) as session:
        for x in (wide[::3], X[::-1], np.broadcast_to(np.float32(3), 8), unaligned):
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)
        session.run_into({"x": X}, {"y": backwards[::-2]})
    np.testing.assert_array_equal(backwards[::-2], 2 * X)
    assert not backwards[::2].any()


def test_input_and_output_may_be_the_same_array(compile_c: Compile, tmp_path: Path) -> None:
    flip = kernel(
        "flip",
        "const float *in = bufs[0]; float *out = bufs[1];"
        "for (int i = 0; i < 8; i++) out[i] = in[7 - i];",
    )
    launch = Launches()
    steps = (launch("flip", (Ref("input"), Ref("output")), 1),)
    build_library(
        simple("flip", steps, kernels=launch.kernels), [compile_c(flip)], tmp_path / "m.so", {}
    )
    data = X.copy()
    with load(tmp_path / "m.so") as session:
        session.run_into({"x": data}, {"y": data})
    np.testing.assert_array_equal(data, X[::-1])


def test_elements_of_an_output_have_places_of_their_own(doubling: Path) -> None:
    y = np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (8,), (0,))
    with load(doubling, threads=1) as session, pytest.raises(ModelError, match=r"of output.*over"):
        session.run_into({"x": X}, {"y": y})


def test_torch_tensors_without_copies(doubling: Path) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(8, dtype=torch.float32), torch.empty(8)
    with load(doubling) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * X)
        session.run_into({"x": x.reshape(2, 4).T.reshape(8)}, {"y": y})
        assert torch.equal(y, 2 * x.reshape(2, 4).T.reshape(8))
        with pytest.raises(ModelError, match=r"'x' cannot be exported as DLPack.*grad"):
            session.run(None, {"x": x.clone().requires_grad_()})
        with pytest.raises(ModelError, match=r'"x" must have dtype float32, not int64'):
            session.run(None, {"x": x.long()})


DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "int4", "uint4"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn",
]


def test_every_dtype_passes_through(tmp_path: Path) -> None:
    ports = [Port(dtype, dtype, (2, 3)) for dtype in DTYPES]
    dtypes = [np.dtype(getattr(ml_dtypes, name, name)) for name in DTYPES]
    sizes = [6 * dtype.itemsize for dtype in dtypes]
    steps = tuple(Copy(Ref("output", n), Ref("input", n), size) for n, size in enumerate(sizes))
    program = Program("copies", tuple(ports), tuple(ports), 0, steps)
    build_library(program, [], tmp_path / "m.so", {})
    feed = {name: np.ones((2, 3), dtype) for name, dtype in zip(DTYPES, dtypes, strict=True)}
    with load(tmp_path / "m.so") as session:
        for given, got in zip(feed.values(), session.run(None, feed), strict=True):
            assert got.dtype == given.dtype
            assert got.tobytes() == given.tobytes()


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    ports = (Port("s", "float64", ()), Port("e", "float32", (0, 4)))
    steps = (Copy(Ref("output"), Ref("input"), 8), Copy(Ref("output", 1), Ref("input", 1), 0))
    build_library(Program("small", ports, ports, 0, steps), [], tmp_path / "m.so", {})
    with load(tmp_path / "m.so") as session:
        s, e = session.run(None, {"s": np.float64(3), "e": np.empty((0, 4), np.float32)})
    assert (s.shape, s[()], e.shape) == ((), 3.0, (0, 4))


@pytest.mark.parametrize("threads", [1, 3])
def test_branch_repeat_and_copy(compile_c: Compile, tmp_path: Path, threads: int) -> None:
    """While the flag is set, y = 3 x + sum of (10 i + j) over i < 3, j < 2; otherwise y = x."""
    source = (
        kernel("is_set", "*(uint8_t *)bufs[1] = ((const float *)bufs[0])[0] > 0;")
        + kernel("zero", "for (int64_t i = begin; i < end; i++) ((float *)bufs[0])[i] = 0;")
        + kernel(
            "add",
            "const float *x = bufs[0]; float *sum = bufs[1]; float k = 10 * syms[0] + syms[1];"
            "for (int64_t i = begin; i < end; i++) sum[i] += x[i] / 2 + k;",
        )
    )
    launch = Launches()
    flag, total = Ref("arena", 0, 0), Ref("arena", 0, 64)
    trips = Index.of("i"), Index.of("j")
    add = launch("add", (Ref("input"), total), 8, (), trips)
    loop = Repeat("i", 3, (Repeat("j", 2, (add,)),))
    never = Repeat("k", 0, (launch("zero", (total,), 8),))
    steps = (
        launch("is_set", (Ref("input"), flag), 1),
        launch("zero", (total,), 8),
        Branch(
            flag,
            (loop, never, Copy(Ref("output"), total, 32)),
            (Copy(Ref("output"), Ref("input"), 32),),
        ),
        Branch(flag, (), ()),
    )
    build_library(
        simple("flow", steps, kernels=launch.kernels), [compile_c(source)], tmp_path / "m.so", {}
    )
    with load(tmp_path / "m.so", threads=threads) as session:
        np.testing.assert_allclose(session.run(None, {"x": X + 1})[0], 3 * (X + 1) + 63)
        np.testing.assert_array_equal(session.run(None, {"x": X - 1})[0], X - 1)


def test_many_small_launches(compile_c: Compile, tmp_path: Path) -> None:
    """Each of 2000 launches reads what all threads wrote in the one before."""
    size = 37
    source = kernel(
        "rotate",
        f"const int32_t *in = bufs[0]; int32_t *out = bufs[1];"
        f"for (int64_t i = begin; i < end; i++) out[i] = in[(i + 1) % {size}] + 1;",
    )
    port = (Port("x", "int32", (size,)),)
    a, b = Ref("arena"), Ref("arena", 0, 256)
    launch = Launches()
    body = (launch("rotate", (a, b), size), launch("rotate", (b, a), size))
    steps = (
        Copy(a, Ref("input"), 4 * size),
        Repeat("i", 1000, body),
        Copy(Ref("output"), a, 4 * size),
    )
    program = Program(
        "rotate", port, (Port("y", "int32", (size,)),), 512, steps, kernels=launch.kernels
    )
    build_library(program, [compile_c(source)], tmp_path / "m.so", {})
    x = np.arange(size, dtype=np.int32)
    for threads in (1, 2, 4, 7):
        with load(tmp_path / "m.so", threads=threads) as session:
            for _ in range(3):
                (y,) = session.run(None, {"x": x})
                np.testing.assert_array_equal(y, np.roll(x, -2000) + 2000)


def test_sessions_run_concurrently(doubling: Path) -> None:
    shared = load(doubling, threads=2)
    wrong: list[np.ndarray] = []

    def work(session: InferenceSession, shift: int) -> None:
        for n in range(100):
            x = X + shift + n
            (y,) = session.run(None, {"x": x})
            if not np.array_equal(y, 2 * x):
                wrong.append(y)

    own = [load(doubling, threads=2) for _ in range(2)]
    threads = [
        threading.Thread(target=work, args=(session, 1000 * n))
        for n, session in enumerate([shared, shared, *own])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _build(compile_c: Compile, path: Path, factor: int) -> None:
    objects = [compile_c(unary("scale", "float32", f"{factor} * x"))]
    build_library(simple("model", **elementwise("scale")), objects, path, {"factor": factor})


def test_two_artifacts_of_one_name(compile_c: Compile, tmp_path: Path) -> None:
    paths = [tmp_path / folder / "model.so" for folder in ("a", "b")]
    for factor, path in enumerate(paths, start=3):
        path.parent.mkdir()
        _build(compile_c, path, factor)
    first, second = map(load, paths)
    np.testing.assert_array_equal(first.run(None, {"x": X})[0], 3 * X)
    np.testing.assert_array_equal(second.run(None, {"x": X})[0], 4 * X)


def test_a_rebuilt_artifact_is_loaded_anew(compile_c: Compile, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    sessions = []
    for factor in (3, 4, 5):
        _build(compile_c, path, factor)
        sessions += [load(path), load(os.path.relpath(path))]
    factors = [session.run(None, {"x": X})[0][1] for session in sessions]
    assert factors == [3, 3, 4, 4, 5, 5]


def _is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_closed_libraries_leave_the_process(compile_c: Compile, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    _build(compile_c, path, 2)
    # Sessions of other tests have threads, too.
    gc.collect()
    threads_before = threading.active_count(), len(os.listdir("/proc/self/task"))
    first, second = load(path, threads=3), load(path, threads=3)
    first.close()
    first.close()
    assert _is_mapped(path)
    np.testing.assert_array_equal(second.run(None, {"x": X})[0], 2 * X)
    with pytest.raises(ModelError, match="is closed"):
        first.run(None, {"x": X})
    del second
    gc.collect()
    assert not _is_mapped(path)
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) == threads_before


def test_profile_counts_and_times_steps(doubling: Path) -> None:
    with load(doubling, profile=True) as session:
        for _ in range(3):
            session.run(None, {"x": X})
        (entry,) = session.profile()
    assert (entry.name, entry.origin, entry.calls) == ("twice", "node_0", 3)
    assert entry.total_us >= 0
    with load(doubling) as session, pytest.raises(ModelError, match="profile=True"):
        session.profile()


def _profiled_us(library: Path, runs: int, **options: int) -> float:
    """The microseconds of the step of a model in so many runs."""
    with load(library, profile=True, **options) as session:
        for _ in range(runs):
            session.run(None, {"x": X})
        (entry,) = session.profile()
    return entry.total_us


def test_a_profile_of_one_thread_has_its_processor_time(compile_c: Compile, tmp_path: Path) -> None:
    slept_us = 100_000
    sleeps = kernel("sleeps", f"usleep({slept_us});")
    objects = [compile_c(f"#define _GNU_SOURCE\n#include <unistd.h>\n{sleeps}")]
    build_library(simple("model", **elementwise("sleeps")), objects, tmp_path / "m.so", {})
    assert _profiled_us(tmp_path / "m.so", 1, threads=2) >= slept_us
    assert _profiled_us(tmp_path / "m.so", 1, threads=1) < slept_us / 10


def test_a_profile_has_not_what_its_clock_takes(compile_c: Compile, tmp_path: Path) -> None:
    _build(compile_c, tmp_path / "m.so", 1)
    starts = [thread_time_ns() for _ in range(1000)]
    least_us = min(b - a for a, b in pairwise(starts)) / 1000
    assert min(_profiled_us(tmp_path / "m.so", 100, threads=1) for _ in range(5)) < 100 * least_us


def test_external_thread_pool(compile_c: Compile, tmp_path: Path) -> None:
    _build(compile_c, tmp_path / "m.so", 6)
    library = ctypes.CDLL(str(tmp_path / "m.so"))
    calls: list[int] = []
    task_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    pool_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, task_type, ctypes.c_void_p, ctypes.c_int64)

    @pool_type
    def parallel_for(pool: int, task: object, arg: int, count: int) -> None:
        calls.append(count)
        assert callable(task)
        for index in reversed(range(count)):
            task(arg, index)

    options = Options(struct_size=ctypes.sizeof(Options), threads=3)
    options.parallel_for = ctypes.cast(parallel_for, ctypes.c_void_p)
    library.model_open.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library.model_open(ctypes.byref(options)))
    y = np.empty_like(X)
    slots = [Slot(name, TensorInfo(name, (8,), X.dtype, "float32")) for name in ("input", "output")]
    arrays = [(ctypes.c_void_p * 1)(slots[n].describe(array)) for n, array in enumerate((X, y))]
    assert library.model_run(handle, arrays[0], 1, arrays[1], 1) == 0
    library.model_close(handle)
    np.testing.assert_array_equal(y, 6 * X)
    assert calls == [3]


def test_forked_child_gets_an_error(doubling: Path) -> None:
    session = load(doubling, threads=2)
    child = os.fork()
    if child == 0:
        with load(doubling, threads=2) as own:
            if not np.array_equal(own.run(None, {"x": X})[0], 2 * X):
                os._exit(3)
        try:
            session.run(None, {"x": X})
        except ModelError as error:
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)


def in_child(work: Callable[[], bool]) -> bool:
    """Whether it is so in a child, which the system ends where it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


WAITING = """
extern int usleep(unsigned);
volatile float *in = bufs[0], *out = bufs[1];
for (out[0] = 1; in[0] > 0;) usleep(1000);
out[1] = 3;
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_has_no_session_whose_run_another_thread_was_in(
    compile_c: Compile, tmp_path: Path, threads: int
) -> None:
    launch = Launches()
    steps = (launch("waiting", (Ref("input"), Ref("output")), 1),)
    program = simple("waiting", steps, kernels=launch.kernels)
    build_library(program, [compile_c(kernel("waiting", WAITING))], tmp_path / "m.so", {})
    session = load(tmp_path / "m.so", threads=threads, profile=True)
    x, y = np.zeros((2, 8), np.float32)
    x[0] = 1
    feed = ({"x": x}, {"y": y})
    running = threading.Thread(target=session.run_into, args=feed, daemon=True)
    running.start()
    while y[0] == 0:
        sleep(0.001)

    def fails() -> bool:
        for call in (lambda: session.run(None, {"x": np.zeros(8, np.float32)}), session.profile):
            for _ in range(2):
                with pytest.raises(ModelError, match=r"fork|measured"):
                    call()
        session.close()
        with load(tmp_path / "m.so", threads=threads) as own:
            return bool(own.run(None, {"x": np.zeros(8, np.float32)})[0][1] == 3)

    assert in_child(fails)
    x[0] = 0
    running.join()
    assert y[1] == 3
    assert threads > 1 or in_child(lambda: session.run(None, {"x": x})[0][1] == 3)


def test_locks_that_another_thread_has_do_not_stop_a_child(doubling: Path) -> None:
    """As at a fork while one describes tensors, or opens a library."""
    session = load(doubling, threads=1)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with session._locked.lock, loader._locked.lock:
            held.set()
            done.wait()

    holding = threading.Thread(target=hold, daemon=True)
    holding.start()
    held.wait()

    def runs() -> bool:
        with load(doubling, threads=1) as own:
            found = [s.run(None, {"x": X})[0] for s in (session, own)]
        return all(np.array_equal(y, 2 * X) for y in found)

    assert in_child(runs)
    done.set()
    holding.join()


class Asking(dict[str, object]):
    """Inputs that use a session while they are read."""

    def __init__(self, x: object, use: Callable[[], object]) -> None:
        super().__init__(x=x)
        self.use = use

    def __getitem__(self, name: str) -> object:
        self.use()
        return super().__getitem__(name)

    def get(self, name: str, default: object = None) -> object:
        return self[name]


class Strided(np.ndarray):
    """An array of a class of its own, at which sessions take a closer look."""


@pytest.mark.parametrize("kind", [np.ndarray, Strided])
def test_a_call_in_the_middle_of_another_one_is_refused(
    doubling: Path, kind: type[np.ndarray]
) -> None:
    """It would wait for its own thread, or describe its tensors where those of the run are."""
    x, y = X.view(kind), np.zeros(8, np.float32)
    with load(doubling, threads=1) as session, load(doubling, threads=1) as other:
        binding = session.bind({"x": X}, {"y": np.empty(8, np.float32)})
        calls: list[Callable[[], object]] = [
            lambda: session.run(None, {"x": 3 * X}),
            lambda: session.run_into({"x": 3 * X}, {"y": y}),
            binding.run,
            session.profile,
            session.reset,
            session.close,
        ]
        refused: list[str] = []

        def use() -> None:
            for call in calls:
                with pytest.raises(ModelError, match="in the middle of another call") as error:
                    call()
                refused.append(str(error.value))
            np.testing.assert_array_equal(other.run(None, {"x": X})[0], 2 * X)

        def ends() -> bool:
            (z,) = session.run(None, Asking(x, use))
            session.run_into(Asking(x, use), {"y": y})
            binding.run()
            return len(refused) >= 2 * len(calls) and bool((z == 2 * X).all() and (y == z).all())

        assert in_child(ends)


def test_an_interrupted_run_leaves_the_session_to_others(doubling: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with load(doubling, threads=1) as session:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                session.run(None, Asking(X, interrupt))
            with pytest.raises(KeyboardInterrupt):
                session.run_into(Asking(X, interrupt), {"y": np.zeros(8, np.float32)})
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)


def test_a_library_that_is_gone_leaves_no_watch_for_forks(doubling: Path) -> None:
    """What is called at a fork goes with the library that asked for it."""
    code = """
import ctypes, os, sys, _ctypes
path = sys.argv[1]
library = ctypes.CDLL(path)
library.doubling_open.restype = ctypes.c_void_p
session = library.doubling_open(None)
assert session
library.doubling_close(ctypes.c_void_p(session))
_ctypes.dlclose(library._handle)
gone = path not in open("/proc/self/maps").read()
child = os.fork()
if child == 0:
    os._exit(0)
print(gone, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", code, str(doubling)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("True 0\n", 0), found.stderr


def test_sessions_are_collected_while_a_library_is_opened(
    doubling: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage is collected at any time, also while a library is opened and others have to wait."""
    another = tmp_path / "another.so"
    another.write_bytes(doubling.read_bytes())
    cycle: list[object] = [load(another, threads=1)]
    cycle.append(cycle)
    exchange, mapped = loader._exchange, []

    def collecting(handle: ctypes.CDLL) -> Objects | None:
        gc.collect()
        mapped.append(str(another) in Path("/proc/self/maps").read_text(encoding="utf-8"))
        return exchange(handle)

    monkeypatch.setattr(loader, "_exchange", collecting)
    del cycle
    results: list[np.ndarray] = []

    def run() -> None:
        with load(doubling, threads=1) as session:
            results.extend(session.run(None, {"x": X}))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    np.testing.assert_array_equal(results[0], 2 * X)
    assert mapped == [True]
    assert str(another) not in Path("/proc/self/maps").read_text(encoding="utf-8")
