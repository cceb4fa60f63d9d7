"""Whatever ends a command: nothing is left behind, and what a kill leaves is removed later."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import rutc as package
from rutc.base import files
from tests.cli.conftest import build, weight
from tests.signals import as_in_foreground

BEGIN = "import os, signal, sys, time, rutc.cli"
WAIT = "(open('reached', 'w').close(), time.sleep(60))"
"""What a stage does instead: it tells that it is reached, and never ends."""

STAGES = {
    "import": f"import rutc.driver.plans.planning as c\nc.import_model = lambda *a, **m: {WAIT}",
    "kernels": f"import rutc.driver.parts.compilation as c\nc.make = lambda *a: {WAIT}",
    "link": f"import rutc.emit.linking.library as l\nl.append_segment = lambda *a: {WAIT}",
    "cache": f"import rutc.driver.reuse as r\nr.archive.store = lambda *a: {WAIT}",
    "verify": f"import rutc.verify as v\nv.verify_model = lambda *a, **m: {WAIT}",
}
ENDING = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A cache that has the host runtime, and no kernels of `kernels`."""
    folder = tmp_path_factory.mktemp("parts")
    patch = pytest.MonkeyPatch()
    patch.setenv("RUTC_CACHE", str(folder / "cache"))
    package.compile(model, folder / "small.so", verify=False)
    patch.undo()
    return folder / "cache"


@pytest.fixture
def folder(tmp_path: Path, parts: Path) -> Path:
    """A folder for all that a command may leave behind."""
    shutil.copytree(parts, tmp_path / "cache")
    return tmp_path


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of several kernels, so that several processes make them."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    path = tmp_path_factory.mktemp("kernels") / "kernels.onnx"
    onnx.save(build(nodes, {"w": weight(), "v": weight().T.copy()}), path)
    return path


class Command:
    """`rutc compile` in a session of its own."""

    def __init__(self, folder: Path, model: Path, change: str = "", *options: str) -> None:
        self.folder = folder
        for name in ("tmp", "out"):
            (folder / name).mkdir(exist_ok=True)
        program = f"{BEGIN}\n{change}\nrutc.cli.main()"
        arguments = ["compile", model, "-o", folder / "out" / "net.so", "--jobs", "2", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=folder,
            env={
                **os.environ,
                "TMPDIR": str(folder / "tmp"),
                "RUTC_CACHE": str(folder / "cache"),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=as_in_foreground,
        )

    def reached(self) -> None:
        """Waits for the stage that never ends."""
        deadline = time.monotonic() + 60
        while not (self.folder / "reached").exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """The exit status and what was told."""
        _, told = self.process.communicate(timeout=60)
        return self.process.returncode, told

    @property
    def left(self) -> list[str]:
        """Files, and processes that are not dead yet, after a moment to die in."""
        for _ in range(100):
            others = _session(self.process.pid)
            if not others:
                break
            time.sleep(0.02)
        # ONNX Runtime keeps a file of its own among the temporary ones.
        temporary = [name for name in os.listdir(self.folder / "tmp") if name != ".ses"]
        return [*temporary, *os.listdir(self.folder / "out"), *others]


def _session(leader: int) -> list[str]:
    """The living processes of a session but for its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and int(entry.name) != leader:
                state, *numbers = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(numbers[2]) == leader and state not in "ZX":
                    found.append(entry.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_leaves_nothing(folder: Path, kernels: Path, stage: str) -> None:
    command = Command(folder, kernels, STAGES[stage])
    command.reached()
    # Terminals send to all processes of a group, and people send again.
    for _ in range(3):
        os.killpg(command.process.pid, signal.SIGTERM)
    status, told = command.end()
    assert status == 128 + signal.SIGTERM, told
    assert "Traceback" not in told
    assert command.left == []


@pytest.mark.parametrize("number", ENDING)
def test_any_signal_leaves_nothing(folder: Path, kernels: Path, number: signal.Signals) -> None:
    command = Command(folder, kernels, STAGES["kernels"])
    command.reached()
    command.process.send_signal(number)
    status, told = command.end()
    assert status == 128 + number, told
    assert "error: interrupted" in told or number != signal.SIGINT
    assert command.left == []


def test_signals_that_are_ignored_change_nothing(folder: Path, kernels: Path) -> None:
    """Python ignores two of them; `nohup` has SIGHUP ignored, which stays so."""
    change = """
from rutc.base import interrupts
signal.signal(signal.SIGHUP, signal.SIG_IGN)
interrupts.install()
for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
    os.kill(os.getpid(), number)
"""
    command = Command(folder, kernels, change, "--no-verify")
    assert command.end()[0] == 0
    assert sorted(command.left) == ["net.h", "net.so"]


def test_commands_may_write_to_one_place_at_once(folder: Path, kernels: Path) -> None:
    both = [Command(folder, kernels, "", "--no-verify") for _ in range(2)]
    assert [command.end()[0] for command in both] == [0, 0]
    assert sorted(both[0].left) == ["net.h", "net.so"]
    with package.load(folder / "out" / "net.so", threads=1, check_integrity=True) as session:
        session.run(None, {"x": np.zeros((4, 8), np.float32)})


def test_an_error_that_a_signal_becomes_is_no_bug(folder: Path, kernels: Path) -> None:
    """Python makes errors of what is raised while it creates a class."""
    change = """
import rutc.driver.plans.planning as c

class Name:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)

c.import_model = lambda *a, **m: type("Owner", (), {"name": Name()})
"""
    command = Command(folder, kernels, change)
    status, told = command.end()
    assert status == 128 + signal.SIGTERM, told
    assert told == ""
    assert command.left == []


@pytest.mark.parametrize("stage", ["kernels", "verify"])
def test_what_a_kill_leaves_is_removed_later(folder: Path, kernels: Path, stage: str) -> None:
    command = Command(folder, kernels, STAGES[stage])
    command.reached()
    (folder / "out" / ".rutc-mine").mkdir()
    command.process.kill()
    assert command.end()[0] == -signal.SIGKILL
    assert len(command.left) > 1
    assert _session(command.process.pid) == []
    (folder / "reached").unlink()
    next_one = Command(folder, kernels, "", "--no-verify")
    status, told = next_one.end()
    assert status == 0, told
    assert sorted(next_one.left) == [".rutc-mine", "net.h", "net.so"]


def _older(folder: Path) -> None:
    for name in ("net.so", "net.h"):
        (folder / name).write_text("older")


PUBLISH = """
import rutc.base.files as files
moved = files.Path.replace

def replace(self, target):
    found = moved(self, target)
    if {last!r} in str(target) and "/.rutc-" not in str(target):
        os.kill(os.getpid(), {number})
    return found

files.Path.replace = replace
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_pair_is_whole_in_the_end(folder: Path, kernels: Path, number: signal.Signals) -> None:
    """The process ends when the header is new and the library is not."""
    change = PUBLISH.format(last="out/net.h", number=int(number))
    (folder / "out").mkdir()
    _older(folder / "out")
    command = Command(folder, kernels, change, "--no-verify")
    status, told = command.end()
    assert status == (143 if number == signal.SIGTERM else -signal.SIGKILL), told
    if number == signal.SIGKILL:
        assert (folder / "out" / "net.so").read_text() == "older"
        files.sweep(folder / "out")
    assert sorted(command.left) == ["net.h", "net.so"]
    assert "net_run" in (folder / "out" / "net.h").read_text()
    with package.load(folder / "out" / "net.so", threads=1) as session:
        session.run(None, {"x": np.zeros((4, 8), np.float32)})


def _killed(action: Callable[[], object]) -> None:
    """Runs an action in a process that is then killed."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_only_what_nobody_holds_is_swept(tmp_path: Path) -> None:
    def half() -> None:
        files.Workplace(tmp_path).open()
        with files.temporary_file(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    _killed(half)
    assert len(list(tmp_path.iterdir())) == 2
    with files.Workplace(tmp_path) as place, files.temporary_file(tmp_path) as (_, file):
        (tmp_path / ".rutc-0123456789abcdeg").touch()
        (tmp_path / ".rutc-0123456789abcdef").symlink_to(tmp_path)
        files.sweep(tmp_path)
        kept = {".rutc-0123456789abcdeg", ".rutc-0123456789abcdef", place.path.name, file.name}
        assert set(os.listdir(tmp_path)) == kept


def test_what_stands_in_the_way_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def publish() -> None:
        with files.Workplace(tmp_path) as place:
            (place.path / "a.so").write_text("new")
            place.path = place.path.rename(f"{place.path}{files.PUBLISHING}")
            os.kill(os.getpid(), signal.SIGKILL)

    _killed(publish)
    os.mkfifo(tmp_path / "a.so")
    files.sweep(tmp_path)
    assert os.listdir(tmp_path) == ["a.so"]
    assert (tmp_path / "a.so").is_fifo()
