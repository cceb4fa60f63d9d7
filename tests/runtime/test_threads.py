"""How many threads a session uses by default, and that idle ones rest."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Copy, Step
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.host_runtime import HOST_SOURCES
from rutc.emit.linking.library import build_library
from rutc.runtime import load
from tests.launches import Launches
from tests.runtime.conftest import Compile, kernel, simple

X = np.arange(8, dtype=np.float32)


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def test_default_threads_follow_the_affinity_mask(doubling: Path) -> None:
    before, mask = _thread_count(), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        with load(doubling):
            assert _thread_count() == before
    finally:
        os.sched_setaffinity(0, mask)
    with load(doubling, threads=3):
        assert _thread_count() == before + 2
    assert _thread_count() == before


def test_pinned_threads_stay_on_one_cpu(doubling: Path) -> None:
    before = set(os.listdir("/proc/self/task"))
    with load(doubling, threads=3, pin_threads=True) as session:
        session.run(None, {"x": X})
        workers = set(os.listdir("/proc/self/task")) - before
        masks = [os.sched_getaffinity(int(worker)) for worker in workers]
    assert [len(mask) for mask in masks] == [1, 1]


def test_idle_sessions_use_no_cpu_time(doubling: Path) -> None:
    with load(doubling, threads=2) as session:
        session.run(None, {"x": X})
        start = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - start < 0.1


EXITING = """
import atexit, sys, threading, time
# What is registered first is called last: the process goes on for a while after all others.
atexit.register(time.sleep, 0.5)
import numpy as np
from rutc.runtime import load
session = load(sys.argv[1], threads=2)
def work():
    while True:
        session.run(None, {"x": np.zeros(8, np.float32)})
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def test_the_interpreter_may_exit_during_a_run(compile_c: Compile, tmp_path: Path) -> None:
    slow = kernel("slow", "extern int usleep(unsigned); usleep(100000);")
    launch = Launches()
    steps = (launch("slow", (Ref("input"), Ref("output")), 8),)
    build_library(
        simple("slow", steps, kernels=launch.kernels), [compile_c(slow)], tmp_path / "m.so", {}
    )
    command = [sys.executable, "-c", EXITING, str(tmp_path / "m.so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def quota_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints the CPUs which the cgroups from argv[2] up to argv[1] allow."""
    folder = tmp_path_factory.mktemp("quota")
    source = '#include "cpu.c"\nint main(int argc, char **argv) {'
    source += 'return argc < 3 || printf("%d", quota_upwards(argv[1], argv[2])) < 1; }'
    (folder / "quota.c").write_text(source)
    command = ["cc", "-I", HOST_SOURCES, "quota.c", "-o", "quota"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "quota"


@pytest.mark.parametrize(
    ("files", "group", "cpus"),
    [
        ({"a/b/cpu.max": "350000 100000"}, "/a/b", 3),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, "/a/b", 2),
        ({"a/b/cpu.max": "50000 100000", "a/cpu.max": "800000 100000"}, "/a/b", 1),
        ({"cpu.max": "400000 100000"}, "/path/of/the/host", 4),
        ({"cpu.max": "400000 100000"}, "/", 4),
        ({"cpu.cfs_quota_us": "600000", "cpu.cfs_period_us": "100000"}, "/a", 6),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, "/", 0),
        ({"cpu.max": "nonsense"}, "/", 0),
        ({}, "/a", 0),
    ],
)
def test_cgroup_quotas(
    quota_program: Path, tmp_path: Path, files: dict[str, str], group: str, cpus: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    done = subprocess.run(
        [quota_program, tmp_path, group], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == cpus


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_task_runs_once_however_turns_share_them(
    compile_c: Compile, tmp_path: Path, threads: int
) -> None:
    """Runs of fewer tasks than threads, of one more, of primes; claims that span many turns."""
    cases = [(turns, run) for turns in (0, 1, 2, 7, 40) for run in (1, 2, 3, 5, 6, 23)]
    add = kernel(
        "count",
        "_Atomic int32_t *out = bufs[0]; for (int64_t i = begin; i < end; i++) out[i]++;",
    )
    outputs = tuple(Port(f"y{t}x{r}", "int32", (max(t, 1) * r,)) for t, r in cases)
    launch = Launches()
    steps: list[Step] = []
    for number, (turns, run) in enumerate(cases):
        place, tasks = Ref("output", number), max(turns, 1) * run
        steps.append(Copy(place, Ref("weights"), 4 * tasks))
        steps.append(launch("count", (place,), tasks, turns=turns))
    zeros = bytes(4 * 40 * 23)
    program = Program(
        "counts", (), outputs, 0, tuple(steps), ((0, zeros),), len(zeros), kernels=launch.kernels
    )
    build_library(program, [compile_c(add)], tmp_path / "m.so", {})
    with load(tmp_path / "m.so", threads=threads) as session:
        for _ in range(20):
            for found in session.run(None, {}):
                np.testing.assert_array_equal(found, 1)
