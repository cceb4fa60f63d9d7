"""What a terminal shows while a command works, and what it leaves."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from rutc.report.bars import Watch, bar
from tests.cli.conftest import Rutc


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_follows_from_what_this_process_compiled() -> None:
    clock = Clock()
    watch = Watch(clock)
    assert watch.look("import", 0, 1).share == 0
    clock.now += 2
    assert watch.look("import", 1, 1).times == "0:02"
    shown = watch.look("kernels", 20, 100)
    assert (shown.count, shown.times, shown.share) == ("20/100", "0:02", 0.2)
    clock.now += 10
    shown = watch.look("kernels", 40, 100)
    assert (shown.count, shown.times) == ("40/100", "0:12, 0:30 left")
    clock.now += 3600
    assert watch.look("kernels", 100, 100).times == "1:00:12"
    assert watch.look("verify", 1, 6).count == "1/6"


@pytest.mark.parametrize("width", [8, 20, 36, 59, 60, 100, 200])
def test_the_line_fits_into_the_terminal(width: int) -> None:
    clock = Clock()
    console = Console(width=width, height=20, force_terminal=True, _environ={})
    with console.capture() as capture, bar(console, clock) as report:
        for stage, total in (("import", 1), ("kernels", 120), ("a stage of a long name", 3)):
            for done in range(total + 1):
                clock.now += 0.5
                report(stage, done, total)
    lines = re.split(r"[\r\n]+", _plain(capture.get()))
    assert max(map(len, lines)) <= width
    shown = "\n".join(lines)
    if width >= 36:
        assert re.search(r"kernels .*60/120 .*0:31, 0:30 left", shown)
    assert ("━" in shown) == (width >= 60)


def _plain(text: str) -> str:
    """Text without what steers a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def _on_terminal(
    arguments: list[str], width: int, environment: Mapping[str, str]
) -> tuple[int, str]:
    """The exit status of rutc on a terminal, and all that was written to it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "CI", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-m", "rutc", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(ours)
    return process.wait(), written.decode()


@pytest.mark.parametrize("width", [30, 100])
def test_a_terminal_has_a_line_of_progress_and_then_the_result(
    model: Path, tmp_path: Path, width: int
) -> None:
    fresh = {"RUTC_CACHE": str(tmp_path / "cache")}
    status, written = _on_terminal(
        ["compile", str(model), "-o", str(tmp_path / "m.so")], width, fresh
    )
    assert status == 0
    seen = _plain(written)
    for stage in ("import", "kernels", "verify"):
        assert stage in seen
    assert "verified: " in seen
    before = written[: written.index("compiled in")]
    assert max(map(len, re.split(r"[\r\n]+", _plain(before[: before.index(".so:")])))) <= 200
    assert "\x1b[2K" in before or "\x1b[K" in before
    assert "\x1b[?25h" in before, "the cursor is shown again"
    assert "0:00" not in seen[seen.index("compiled in") :]


def test_without_colours_where_they_are_not_wanted(model: Path, tmp_path: Path) -> None:
    arguments = ["compile", str(model), "-o", str(tmp_path / "m.so"), "--no-verify"]
    _, written = _on_terminal(arguments, 100, {"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[(3[0-9]|9[0-9]|38;)[0-9;]*m", written)
    assert "compiled in" in written


@pytest.mark.parametrize("environment", [{}, {"TERM": "dumb"}])
def test_quiet_and_simple_terminals(
    model: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    arguments = ["compile", str(model), "-o", str(tmp_path / "m.so"), "--no-verify"]
    quiet = [] if environment else ["--quiet"]
    status, written = _on_terminal([*arguments, *quiet], 100, environment)
    assert status == 0
    assert "\x1b[2K" not in written
    assert ("link: 1/1 in" in written or "found in the cache: 1/1" in written) == bool(environment)


def test_quiet_commands_write_nothing_to_stderr(
    rutc: Rutc, model: Path, artifact: Path, tmp_path: Path
) -> None:
    for command in (
        ("compile", model, "-o", tmp_path / "m.so"),
        ("verify", model, artifact),
        ("bench", artifact, "--seconds", "0.1"),
        ("run", artifact),
        ("inspect", artifact),
        ("explain", model),
        ("cache",),
    ):
        loud, quiet = rutc(*command), rutc(*command, "--quiet")
        assert quiet.status == 0
        assert loud.stderr or command[0] not in ("compile", "verify", "bench")
        assert not quiet.stderr
        assert quiet.stdout
