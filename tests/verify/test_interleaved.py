"""Peers in processes of their own, which take turns."""

import itertools
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from rutc.driver.compiler import Options, compile_model
from rutc.errors import UserError
from rutc.verify.bench import (
    aligned,
    allocated,
    room_for,
    run_in_place,
    run_onnxruntime,
    run_rutc,
)
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.interleaved import ROUNDS, Job, Run, require, take_turns

FEW_FAULTS = 16
"""Pages; large arrays have at least twice as many, of the largest size."""
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x) => (float[2, 3] y, float[2] s) {
  y = Neg (x)
  axes = Constant <value_ints = [1]> ()
  s = ReduceMax <axes = [1], keepdims = 0> (x)
}
"""


def note(place: Path) -> Run:
    """A run that says when it ran and where."""

    def run() -> object:
        with place.open("a") as file:
            file.write(f"{time.monotonic()} {os.getpid()}\n")
        return time.sleep(0.01)

    return run


def spin(place: Path) -> Run:
    """A run whose process goes on counting when it is done."""
    from threading import Thread

    def count() -> None:
        with place.open("a", buffering=1) as file:
            while True:
                file.write(f"{time.monotonic()} {os.getpid()}\n")
                time.sleep(0.001)

    Thread(target=count, daemon=True).start()
    return partial(time.sleep, 0.01)


def refuse() -> Run:
    raise ValueError("this peer has no such operator\nat all")


def die() -> Run:
    os._exit(7)


def die_later() -> Run:
    begin = time.monotonic()
    return lambda: os._exit(8) if time.monotonic() > begin + 0.1 else time.sleep(0.01)


def read(place: Path) -> list[tuple[float, int]]:
    lines = (line.split() for line in place.read_text().splitlines() if line.count(" ") == 1)
    return [(float(when), int(process)) for when, process in lines]


def test_peers_take_turns_and_are_stopped_between_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    found = take_turns({"a": Job(note, (first,)), "b": Job(spin, (second,))}, 0.1)
    assert all(require(m).runs >= ROUNDS for m in found.values())
    ours, theirs = read(first), read(second)
    assert len({process for _, process in (*ours, *theirs)}) == 2
    assert os.getpid() not in {ours[0][1], theirs[0][1]}
    # Every turn of the first is one stretch of time in which the second's thread does nothing.
    assert not any(
        before < when < after
        for (before, _), (after, _) in itertools.pairwise(ours)
        for when, _ in theirs
        if after - before < 0.05
    )


def test_what_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    jobs = {
        "good": Job(note, (tmp_path / "good",)),
        "refuses": Job(refuse),
        "dies": Job(die),
        "dies later": Job(die_later),
        "missing": Job(refuse, package="no_such_package"),
    }
    found = take_turns(jobs, 0.1)
    assert require(found["good"]).runs >= ROUNDS
    assert {name: m.failed for name, m in found.items() if m.latency is None} == {
        "refuses": "this peer has no such operator",
        "dies": "its process ended with status 7",
        "dies later": "its process ended with status 8",
        "missing": "No module named 'no_such_package'",
    }
    with pytest.raises(UserError, match="no such operator"):
        require(found["refuses"])


def test_bound_runs_write_into_the_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    library = compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(), None).library
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    room = room_for(library, {"x": x})
    assert room == {"y": ("float32", (2, 3)), "s": ("float32", (2,))}
    outputs = run_onnxruntime(tmp_path / "m.onnx", 1, {"x": x}, room)()
    assert isinstance(outputs, dict)
    np.testing.assert_array_equal(outputs["y"], -x)
    np.testing.assert_array_equal(outputs["s"], x.max(axis=1))
    made = allocated(room)
    monkeypatch.setattr("rutc.verify.bench.allocated", lambda _: made)
    run_rutc(library, 1, {"x": x}, room)()
    np.testing.assert_array_equal(made["y"], -x)
    np.testing.assert_array_equal(made["s"], x.max(axis=1))


def test_unbound_runs_are_those_that_programs_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    library = compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(), None).library
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    run = run_rutc(library, 1, {"x": x}, None)
    for name in ("run", "step", "taken", "given"):
        monkeypatch.delattr(WholeSession, name)
    outputs = run()
    assert isinstance(outputs, list)
    np.testing.assert_array_equal(outputs[0], -x)
    np.testing.assert_array_equal(outputs[1], x.max(axis=1))


FAULTS = """
import sys
from resource import RUSAGE_THREAD, getrusage
import numpy as np
from rutc.verify.bench import run_in_place
from rutc.verify.feeding.whole import WholeSession
x = np.ones((16, 1048576), np.float32)
with WholeSession(sys.argv[1], threads=1) as session:
    run = run_in_place(session, {"x": x})
    counts = [getrusage(RUSAGE_THREAD).ru_minflt]
    for call in (run, lambda: session.run(None, {"x": x})):
        call()
        counts.append(getrusage(RUSAGE_THREAD).ru_minflt)
print(*np.diff(counts))
"""


def test_what_runs_in_place_writes_no_new_memory(tmp_path: Path) -> None:
    """In a process of its own, whose heap has no room that others left."""
    # So large that the system gives new pages for each array, and takes them back.
    large = MODEL.replace("2, 3", "16, 1048576").replace("[2] s", "[16] s")
    onnx.save(parser.parse_model(large), tmp_path / "m.onnx")
    library = compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(), None).library
    command = [sys.executable, "-c", FAULTS, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    in_place, with_new_arrays = map(int, done.stdout.split())
    assert in_place < FEW_FAULTS < with_new_arrays


@pytest.mark.parametrize("dtype", ["f4", "i8", "?", "f2"])
def test_aligned_copies_begin_at_cache_lines(dtype: str) -> None:
    array = np.ones((3, 5), dtype)
    copy = aligned(array)
    assert copy.ctypes.data % 64 == 0
    assert copy is not array
    np.testing.assert_array_equal(copy, array)


def test_runs_from_states_that_grow_are_bound(tmp_path: Path) -> None:
    """Though a run appends to them, each begins where the first did: the mask says how long."""
    text = """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[1, all] mask, float[1, 1] x, float[1, past] old) => (float[1] y, float[1, all] new)
        {
          new = Concat <axis = 1> (old, x)
          masked = Mul (new, mask)
          axes = Constant <value_ints = [1]> ()
          y = ReduceSum <keepdims = 0> (masked, axes)
        }
    """
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    options = Options(dims={"past": (0, 9), "all": "past+1"}, states={"old": "new"})
    library = compile_model(tmp_path / "m.onnx", tmp_path / "m.so", options, None).library
    inputs = {n: np.ones((1, k), np.float32) for n, k in (("mask", 5), ("x", 1), ("old", 4))}
    room = room_for(library, inputs)
    assert room is not None
    with WholeSession(library, threads=1) as session:
        run = run_in_place(session, inputs)
        first, second = run(), run()
        assert session.get_state("old").shape == (1, 5)
    assert first is second, "outputs are where they were before"
