"""Limits of time and memory: what takes more is ended, with all its processes, and says so."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import rutc
from rutc.base.progress import Progress
from rutc.driver.limits import LimitExceeded, Limits, parse_size, size_text, within
from rutc.errors import InternalError, UserError
from tests.cli.conftest import write_small
from tests.signals import as_in_foreground, crash, is_gone

MIB = 1 << 20
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[209715200] x) => (float[209715200] y) { y = Relu (x) }"""


def add(a: int, b: int, on_progress: Progress) -> int:
    on_progress("adding", 1, 1)
    return a + b


def wait(folder: Path, on_progress: Progress) -> None:
    """Starts a process that waits, and waits, too."""
    on_progress("waiting", 0, 1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    child.wait()


def deaf(on_progress: Progress) -> None:
    """Does not end when it is asked to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    on_progress("waiting", 0, 1)
    time.sleep(600)


def hold(count: int, on_progress: Progress) -> int:
    """Holds so many bytes at once."""
    on_progress("holding", 0, 1)
    return int(np.ones(count, np.uint8).sum())


def hold_together(count: int, on_progress: Progress) -> None:
    """Holds as many bytes in each of two processes, which one of them could."""
    on_progress("holding", 0, 1)
    child = os.fork()
    kept = np.ones(count, np.uint8)
    time.sleep(600 if child else 601)
    assert kept.size


def hard_limit(on_progress: Progress) -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[1]


def fault(on_progress: Progress) -> None:
    on_progress("crashing", 0, 1)
    crash()


def refuse(on_progress: Progress) -> None:
    raise UserError("node 'a' is wrong")


def test_what_is_within_limits_is_done() -> None:
    told: list[tuple[str, int, int]] = []
    limits = Limits.of(60, "1G")
    assert within(limits, lambda *stage: told.append(stage), add, 2, 3) == 5
    assert told == [("adding", 1, 1)]


def test_sizes_that_no_machine_has_are_no_limit() -> None:
    for size in ("9" * 400, "99999999T"):
        assert within(Limits.of(60, size), None, add, 2, 3) == 5


def test_a_limit_that_is_there_already_stays() -> None:
    limits = f"({1 << 30}, {1 << 30})"
    begin = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, {limits})"
    code = f"{begin}\nfrom rutc.driver.limits import *\n"
    code += "from tests.driver.test_limits import hard_limit\n"
    code += "for size in ('512M', '8G'): print(within(Limits.of(60, size), None, hard_limit))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(1 << 29), str(1 << 30)], done.stderr


def test_errors_come_through() -> None:
    with pytest.raises(UserError, match="node 'a' is wrong"):
        within(Limits.of(60, None), None, refuse)


def test_a_crash_is_no_limit() -> None:
    with pytest.raises(InternalError, match=r"'crashing': SIGSEGV"):
        within(Limits.of(60, "1G"), None, fault)


def test_time(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(LimitExceeded, match=r"--limit-time \(3 seconds\).*'waiting'"):
        within(Limits.of(3, None), None, wait, tmp_path)
    assert time.monotonic() - begin < 60
    assert all(is_gone(int(p)) for p in (tmp_path / "pids").read_text().split())


def test_time_of_a_process_that_does_not_listen() -> None:
    with pytest.raises(LimitExceeded, match="--limit-time"):
        within(Limits.of(3, None), None, deaf)


WAITING = """
from pathlib import Path
from rutc.driver.limits import Limits, within
from tests.driver.test_limits import wait
within(Limits.of(600, None), None, wait, Path({folder!r}))
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_nothing_goes_on_without_who_asked_for_it(tmp_path: Path, ending: signal.Signals) -> None:
    code = WAITING.format(folder=str(tmp_path))
    root = str(Path(__file__).parents[2])
    asking = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=root,
        stderr=subprocess.DEVNULL,
        preexec_fn=as_in_foreground,
    )
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        time.sleep(0.05)
    working, other = map(int, (tmp_path / "pids").read_text().split())
    asking.send_signal(ending)
    asking.wait(timeout=60)
    deadline = time.monotonic() + 30
    while not is_gone(working) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_gone(working)
    with suppress(ProcessLookupError):
        os.kill(other, signal.SIGKILL)


def test_memory_at_once() -> None:
    assert within(Limits.of(None, "1G"), None, hold, 100 * MIB) == 100 * MIB
    with pytest.raises(LimitExceeded, match=r"--limit-memory \(512M\).*'holding'"):
        within(Limits.of(None, "512M"), None, hold, 600 * MIB)


def test_memory_of_several_processes() -> None:
    with pytest.raises(LimitExceeded, match=r"--limit-memory \(512M\).*'holding'"):
        within(Limits.of(60, "512M"), None, hold_together, 300 * MIB)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8G", 8 << 30),
        ("512M", 512 << 20),
        ("1.5g", 3 << 29),
        ("2KiB", 2048),
        ("300000000", 3 * 10**8),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text, "--limit-memory") == count
    assert parse_size(size_text(count), "") == pytest.approx(count, rel=5e-3)


@pytest.mark.parametrize(
    ("seconds", "memory", "words"),
    [
        (0, None, "--limit-time 0"),
        (float("nan"), None, "--limit-time nan"),
        (None, "8X", "such as 8G"),
        (None, "-1", "--limit-memory -1"),
        (None, "1M", "at least 256M"),
        (None, 5, "at least 256M"),
    ],
)
def test_bad_limits(seconds: float | None, memory: str | int | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Limits.of(seconds, memory)


def test_compile_within_limits(tmp_path: Path) -> None:
    model = write_small(tmp_path / "m.onnx")
    plain = rutc.compile(model, tmp_path / "plain.so")
    made = rutc.compile(model, tmp_path / "made.so", limit_time=300, limit_memory="4G")
    assert made.library == tmp_path / "made.so"
    assert made.verification is not None
    assert made.report.kernels == plain.report.kernels
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"m.onnx", "plain.so", "plain.h", "made.so", "made.h"}


@pytest.mark.parametrize(("option", "value"), [("--limit-time", "0.3"), ("--limit-memory", "300M")])
def test_the_command_says_what_was_exceeded(tmp_path: Path, option: str, value: str) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    (tmp_path / "m.so").write_text("what was there before")
    command = [sys.executable, "-m", "rutc.cli", "compile", "m.onnx", option, value]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error:") == 1
    for word in (option, "in the stage", "--dim"):
        assert word in done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.so"}
    assert (tmp_path / "m.so").read_text() == "what was there before"


ENDLESS = """
<ir_version: 10, opset_import: ["" : 21]>
m (float[4] x) => (float[4] y)
<int64 trips = {1099511627776}, bool go = {1}>
{
    y = Loop(trips, go, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
        d = Identity(c)
        w = Cos(v)
    }>
}
"""


def test_a_model_that_never_ends_is_given_up_by_verify(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(ENDLESS), tmp_path / "m.onnx")
    rutc.compile(tmp_path / "m.onnx", tmp_path / "m.so", verify=False)
    command = [sys.executable, "-m", "rutc.cli", "verify", "m.onnx", "m.so", "--limit-time", "8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("error:") == 1
    for word in ("--limit-time (8 seconds)", "'verify'", "--no-verify"):
        assert word in done.stderr


def test_verify_within_limits(tmp_path: Path) -> None:
    model = write_small(tmp_path / "m.onnx")
    found = rutc.driver.api.verify(model, limit_time=300, limit_memory="4G")
    assert found.passed
    assert found.values
