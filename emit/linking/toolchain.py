"""The C compiler that builds and links artifacts, and the folder of what can be built again."""

import errno
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from rutc.base.files import shown
from rutc.base.interrupts import uninterrupted
from rutc.base.record import record
from rutc.errors import InternalError, UserError

NO_SPACE = (
    os.strerror(errno.ENOSPC),
    os.strerror(errno.EDQUOT),
    os.strerror(errno.EFBIG),
    signal.strsignal(signal.SIGXFSZ) or "",
)
"""What compilers say that cannot write their results."""

KILLED = -signal.SIGKILL, 128 + signal.SIGKILL
"""The status of a command that was killed, and of a shell that ran it."""
PROBE_BYTES = 1 << 20
"""What fits, beside as much as there is, where a compiler could write."""


@record
class Running:
    """A compiler that runs in a directory, where its messages go to a file."""

    process: subprocess.Popen[bytes]
    command: str
    messages: Path

    def wait(self) -> None:
        """Waits for its end.

        Raises:
            UserError: it had no space left to write to, or the system ended it.
            InternalError: the compiler failed; the message holds its output.
        """
        status = self.process.wait()
        if status == 0:
            return
        output = self.messages.read_text(encoding="utf-8", errors="replace")
        lacking = next((text for text in NO_SPACE if text in output), None)
        if lacking is not None or not _has_space(self.messages.parent):
            raise UserError(
                f"the C compiler cannot write in {shown(self.messages.parent)}: "
                f"{lacking or NO_SPACE[0]}. Make room there, or write to another folder "
                "(-o for the result, TMPDIR for what is on the way)"
            )
        if status in KILLED or (signal.strsignal(signal.SIGKILL) or "") in output:
            raise UserError(
                "the C compiler was killed, as the system does where memory is short: do less "
                "beside it, or give it more memory"
            )
        raise InternalError(
            f"the C compiler failed with status {status}: {self.command[:500]}\n"
            f"{output.strip()[:4000]}"
        )

    def stop(self) -> None:
        """Ends it, and what it started, if it still runs."""
        with uninterrupted():
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@record
class Toolchain:
    """A C compiler driver: its command and what tells it from others (version and machine)."""

    command: tuple[str, ...]
    identity: str

    def begin(self, commands: Sequence[Sequence[str]], directory: Path) -> Running:
        """Starts the compiler in a directory, with one command's arguments after the other."""
        script = " && ".join(shlex.join([*self.command, *arguments]) for arguments in commands)
        messages = directory / f"messages-{os.urandom(4).hex()}.txt"
        # Its temporary files go where they are removed with the rest if it is ended.
        environment = {**os.environ, "TMPDIR": os.path.abspath(directory), "LC_ALL": "C"}
        with messages.open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-c", script],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        return Running(process, script, messages)

    def run(self, arguments: Sequence[str], directory: Path) -> None:
        """Runs the compiler in a directory.

        Raises:
            InternalError: the compiler fails; the message holds its output.
        """
        running: Running | None = None
        try:
            with uninterrupted():
                running = self.begin([arguments], directory)
            running.wait()
        finally:
            if running is not None:
                running.stop()


def _has_space(folder: Path) -> bool:
    """Whether a result can be written to a folder: not all compilers say what they lack."""
    try:
        there = sum(path.stat().st_size for path in folder.iterdir())
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, PROBE_BYTES + there)
    except OSError:
        return False
    return True


def find_toolchain(machine: str | None = None) -> Toolchain:
    """Returns the C compiler for a machine (`'x86_64'`, `'aarch64'`; default: this one).

    Looked for in this order: `$RUTC_CC`, `cc` (for another machine gcc by its common name, such as
    `aarch64-linux-gnu-gcc`), the PyPI package `ziglang`.

    Raises:
        UserError: there is none, or `$RUTC_CC` does not run.
    """
    wanted = machine or platform.machine()
    configured = os.environ.get("RUTC_CC")
    if configured:
        return _identified(tuple(shlex.split(configured)))
    native = wanted == platform.machine()
    common = "cc" if native else f"{wanted}-linux-gnu-gcc"
    if shutil.which(common):
        return _identified((common,))
    if importlib.util.find_spec("ziglang") is not None:
        target = () if native else ("-target", f"{wanted}-linux-gnu")
        return _identified((sys.executable, "-m", "ziglang", "cc", *target))
    where = "" if native else f" for {wanted} on this {platform.machine()} machine"
    raise UserError(
        f"no C compiler found{where}: rutc links models with $RUTC_CC, "
        f"{common}, or the PyPI package ziglang. "
        "Install a C compiler (for example gcc), or run `pip install ziglang`, or set RUTC_CC to a "
        "compiler's command."
    )


@functools.cache
def _identified(command: tuple[str, ...]) -> Toolchain:
    answers = []
    for question in ("--version", "-dumpmachine"):
        try:
            done = subprocess.run([*command, question], capture_output=True, text=True, check=False)
        except OSError as error:
            raise UserError(
                f"cannot run the C compiler {shlex.join(command)!r}: {error.strerror}. "
                "Set RUTC_CC to a compiler's command, or unset it to use cc."
            ) from error
        answers.append(done.stdout)
    if not any(answers):
        raise UserError(
            f"{shlex.join(command)!r} is no C compiler: it does not answer --version. "
            "Set RUTC_CC to a compiler's command, or unset it to use cc."
        )
    return Toolchain(command, "\n".join([shlex.join(command), *answers]))


def cache_directory() -> Path:
    """Returns the folder for files that can be built again: `$RUTC_CACHE` or the user's cache."""
    configured = os.environ.get("RUTC_CACHE")
    return Path(configured) if configured else Path(platformdirs.user_cache_dir("rutc"))
