"""Limits of time and memory: a process of its own does the work, and is watched.

What the work takes is spread over processes (kernels, the C compiler) and over code that ends
its process where memory runs out (LLVM), so that no limit inside of one process would do:

    rutc compile --limit-memory 2G  ->  the command      a process that compiles
                                        waits, watches   and its own processes

The watching process adds up the memory of all of them, ends all at a limit, and says which it was.
No process gets more than the limit at once: the system then refuses memory to it.
"""

from __future__ import annotations

import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn, Self, TypeVar, cast

from rutc.base import interrupts
from rutc.base.files import Workplace
from rutc.base.processes import end_with_parent
from rutc.base.progress import Progress, nobody
from rutc.base.record import record
from rutc.errors import CheckFailed, InternalError, OutOfMemory, UserError

T = TypeVar("T")

LOOK_S = 0.05
"""How often the memory is looked at."""
GRACE_S = 2.0
"""How long a process that has to end may remove what it has written."""
LEAST_BYTES = 1 << 28
"""The work cannot do with less: so much takes what all of it loads."""
MOST_BYTES = 1 << 62
"""The system knows no larger limit."""
SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
STARTING = "start"
_LACKS_MEMORY = re.compile(r"out of memory|bad_alloc|bad allocation|[Cc]annot allocate|MemoryError")
"""What C++, LLVM, C compilers and the system say where they are refused memory."""


@record
class Limits:
    """The most seconds and bytes that work may take; None: any.

    Memory is what all processes of the work hold that is no mapped file.
    """

    seconds: float | None = None
    memory_bytes: int | None = None

    @classmethod
    def of(cls, seconds: float | None, memory: int | str | None) -> Self:
        """The limits as users write them. Raises UserError for such as nothing can keep."""
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UserError(f"--limit-time {seconds:g}: write a positive number of seconds")
        count = parse_size(memory, "--limit-memory") if isinstance(memory, str) else memory
        if count is not None and count < LEAST_BYTES:
            raise UserError(
                f"--limit-memory {memory}: the work needs at least {size_text(LEAST_BYTES)}; "
                "write bytes, or a number with K, M, G or T, such as 8G"
            )
        return cls(seconds, None if count is None else min(count, MOST_BYTES))


class LimitExceeded(UserError):
    """Work took more than one of its limits; it was ended."""


def parse_size(text: str, what: str) -> int:
    """The bytes that `8G`, `512M`, `1.5G` or `1000000` mean. Raises UserError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UserError(f"{what} {text}: write bytes, or a number with K, M, G or T, such as 8G")
    return int(Decimal(found[1]) * SUFFIXES[found[2].upper()])


def size_text(count: int) -> str:
    """Bytes in the largest unit of which there is one: `1.5G`."""
    unit, size = max(
        ((u, s) for u, s in SUFFIXES.items() if s <= max(count, 1)), key=lambda item: item[1]
    )
    return f"{count / size:.3g}{unit}"


def within(
    limits: Limits, on_progress: Progress | None, call: Callable[..., T], *args: object
) -> T:
    """What `call(*args, on_progress)` returns, which another process does within limits.

    The function and its arguments are sent there, so it is one that a module defines.

    Raises:
        LimitExceeded: it took more; all its processes were ended.
        InternalError: the process ended in another way.
        Exception: what the function raised.
    """
    ours, theirs = Pipe()
    with Workplace() as place:
        told = place.path / "stderr.txt"
        with told.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", "from rutc.driver.limits import serve; serve()"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "RUTC_LIMITED": str(theirs.fileno()),
                    "TMPDIR": str(place.path),
                },
            )
        theirs.close()
        watch = _Watch(process, ours, limits, told)
        try:
            ours.send((limits.memory_bytes, call, args))
            return cast(T, watch.result(on_progress or nobody))
        finally:
            ours.close()
            watch.end()


class _Watch:
    """A process that works within limits, and the stage in which it is."""

    def __init__(
        self, process: subprocess.Popen[bytes], pipe: Connection, limits: Limits, told: Path
    ) -> None:
        self.process = process
        self.pipe = pipe
        self.limits = limits
        self.told = told
        self.stage = STARTING

    def result(self, on_progress: Progress) -> object:
        start = monotonic()
        deadline = None if self.limits.seconds is None else start + self.limits.seconds
        while True:
            left = float("inf") if deadline is None else deadline - monotonic()
            if left <= 0:
                self.exceeded("time", f"{self.limits.seconds:g} seconds")
            wait = min(left, LOOK_S) if self.limits.memory_bytes is not None else min(left, 1.0)
            if self.pipe.poll(wait):
                try:
                    kind, *content = self.pipe.recv()
                except (EOFError, ConnectionError):
                    self.lost()
                if kind == "done":
                    return content[0]
                if kind == "failed":
                    self.failed(content[0])
                self.stage = content[0]
                on_progress(*content)
            most = self.limits.memory_bytes
            if most is not None and _takes_more(self.process.pid, most):
                self.exceeded("memory", size_text(most))

    def exceeded(self, which: str, limit: str) -> NoReturn:
        raise LimitExceeded(
            f"more than --limit-{which} ({limit}) was needed, in the stage {self.stage!r}; all of "
            f"it was ended and nothing was written. {_advice(which, self.stage)}"
        )

    def failed(self, error: Exception) -> NoReturn:
        """Raises what the work raised, or what it means."""
        most = self.limits.memory_bytes
        if most is not None:
            known = isinstance(error, UserError | CheckFailed)
            refused = isinstance(error, MemoryError | OutOfMemory)
            if refused or (not known and self.lacks_memory(str(error))):
                self.exceeded("memory", size_text(most))
        raise error

    def lost(self) -> NoReturn:
        """Raises what the end of the process means."""
        self.process.wait()
        code = self.process.returncode
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        if self.limits.memory_bytes is not None and self.lacks_memory(""):
            self.exceeded("memory", size_text(self.limits.memory_bytes))
        raise InternalError(
            f"the process that does the work ended in the stage {self.stage!r}: {name}\n"
            f"{self.output()[-2000:]}"
        )

    def lacks_memory(self, text: str) -> bool:
        return _LACKS_MEMORY.search(text) is not None or (
            _LACKS_MEMORY.search(self.output()) is not None
        )

    def output(self) -> str:
        with suppress(OSError):
            return self.told.read_text(encoding="utf-8", errors="replace")
        return ""

    def end(self) -> None:
        """Ends what is left of the process and of those that it started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        while others := list(_session(self.process.pid)):
            for other in others:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
            self.process.poll()
            sleep(0.002)
        self.process.wait()


def _advice(which: str, stage: str) -> str:
    more = "Give it more"
    if stage in ("verify", "cache"):
        more = "Give it more, compile with --no-verify (nothing is compared then)"
    narrower = "or fix the model's sizes, or narrow their ranges, with --dim or --shape"
    fewer = ", use fewer processes with --jobs" if which == "memory" else ""
    return f"{more}{fewer}, {narrower}."


# -- the other process
def serve() -> None:
    """Does the work that comes through the pipe, and tells its stages and what it came to."""
    with suppress(AttributeError, OSError):
        end_with_parent()
    interrupts.install()
    pipe = Connection(int(os.environ.pop("RUTC_LIMITED")))
    memory_bytes, call, args = pipe.recv()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # Only the super-user may raise a limit that is there already.
        most = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def on_progress(stage: str, done: int, total: int) -> None:
        pipe.send(("stage", stage, done, total))

    try:
        answer = pickle.dumps(("done", call(*args, on_progress)))
    except Exception as error:
        error.add_note(traceback.format_exc())
        try:
            answer = pickle.dumps(("failed", error))
        except Exception:
            answer = pickle.dumps(("failed", InternalError(f"{type(error).__name__}: {error}")))
    pipe.send_bytes(answer)


# -- what processes take
def _takes_more(leader: int, most: int) -> bool:
    """Whether the processes of a session hold more memory than they may.

    What they share with each other, because one is a copy of the other, counts once.
    """
    processes = list(_session(leader))
    return sum(map(_held, processes)) > most and sum(map(_own_share, processes)) > most


def _held(process: int) -> int:
    """The bytes that a process holds that are no file's."""
    with suppress(OSError, ValueError):
        _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
        return (int(resident) - int(shared)) * resource.getpagesize()
    return 0


def _own_share(process: int) -> int:
    """`_held`, of what several processes share the share of one."""
    with suppress(OSError, ValueError):
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        found = re.search(r"^Pss_Anon: *(\d+) kB", text, flags=re.MULTILINE)
        if found is not None:
            return int(found[1]) << 10
    return _held(process)


def _session(leader: int) -> Iterator[int]:
    """The processes of a session that still run."""
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with suppress(OSError):
            text = Path(f"/proc/{entry}/stat").read_text()
            state, _, _, session = text.rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                yield int(entry)
