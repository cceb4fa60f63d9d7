"""Times of several runs in turns, each in a process of its own while the others are stopped.

On a shared machine the clock, the caches and the neighbours change from second to second. So the
peers take turns, round after round, and the ratio of the medians is what counts. A thread pool that
waits by spinning slows whatever runs beside it: a process is stopped by a signal until its turn
comes. A turn begins with runs that are not measured and warm the caches again.
"""

from __future__ import annotations

import importlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Self

import numpy as np

from rutc.base.processes import end_with_parent
from rutc.base.record import record
from rutc.errors import UserError

TURN_S = 0.2
"""A turn takes about so long, or one run."""
WARM_S = 0.02
ROUNDS = 3
"""Every peer has at least so many turns."""

Run = Callable[[], object]


@record
class Job:
    """What a process prepares: `prepare(*arguments)` gives the run, as does every later turn.

    Both are sent to the process by pickle: the function by its name in its module. The `package` is
    imported before the time until the first result is taken.
    """

    prepare: Callable[..., Run]
    arguments: tuple[object, ...] = ()
    package: str = ""


@record
class Latency:
    """The times of the measured runs, in microseconds."""

    runs: int
    median_us: float
    p10_us: float
    p90_us: float
    p99_us: float
    minimum_us: float

    @property
    def per_second(self) -> float:
        """Runs per second, one after the other, at the median."""
        return 1e6 / self.median_us if self.median_us else 0.0


@record
class Measured:
    """A peer's times, and the seconds until its first result; or why it has none."""

    ready_s: float
    latency: Latency | None
    failed: str = ""


def take_turns(jobs: Mapping[str, Job], seconds: float) -> dict[str, Measured]:
    """Returns what was measured of each job, `seconds` or more of its runs, in turns.

    A job that raises, or whose process ends, has failed; the others go on.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    rounds = 0
    with ExitStack() as stack:
        peers = {name: stack.enter_context(_Peer(job)) for name, job in jobs.items()}
        while going := [
            name
            for name, peer in peers.items()
            if not peer.failed and (rounds < ROUNDS or sum(times[name]) < seconds)
        ]:
            for name in going:
                times[name] += peers[name].turn()
            rounds += 1
    return {
        name: Measured(peer.ready_s, None, peer.failed)
        if peer.failed
        else Measured(peer.ready_s, latency(times[name]))
        for name, peer in peers.items()
    }


def require(measured: Measured) -> Latency:
    """Returns the times of a job that must not fail.

    Raises:
        UserError: it failed.
    """
    if measured.latency is None:
        raise UserError(measured.failed)
    return measured.latency


def latency(times: Sequence[float]) -> Latency:
    """Returns the summary of measured times in seconds."""
    micro = np.asarray(times) * 1e6
    p10, p90, p99 = (float(value) for value in np.percentile(micro, [10, 90, 99]))
    return Latency(len(times), float(statistics.median(micro)), p10, p90, p99, float(micro.min()))


class _Peer:
    """A process that prepares a job; it is stopped but for its turns."""

    def __init__(self, job: Job) -> None:
        self._channel, theirs = Pipe()
        command = "import sys; from rutc.verify.interleaved import serve; serve(int(sys.argv[1]))"
        number = theirs.fileno()
        # What a peer prints goes where messages go.
        self._process = subprocess.Popen(
            [sys.executable, "-c", command, str(number)], pass_fds=[number], stdout=2
        )
        theirs.close()
        self.failed = ""
        (self.ready_s,) = self._ask(sys.path, job) or [0.0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def turn(self) -> list[float]:
        """Returns the seconds of each run in one turn; none of a process that failed."""
        self._process.send_signal(signal.SIGCONT)
        return self._ask(TURN_S)

    def _ask(self, *questions: object) -> list[float]:
        """The answer to the last of the questions, after which the process is stopped."""
        try:
            for question in questions:
                self._channel.send(question)
            answer = self._channel.recv()
        except (EOFError, OSError):
            answer = f"its process ended with status {self._process.wait()}"
        if isinstance(answer, str):
            self.failed = answer
            return []
        assert isinstance(answer, list)
        self._process.send_signal(signal.SIGSTOP)
        # Threads on other cores go on for a moment after the signal is sent.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return answer


def serve(number: int) -> None:
    """Prepares the job that a file descriptor gives, and takes the turns that are asked for."""
    # A process that is stopped does not see that there is nobody left to ask.
    end_with_parent()
    channel = Connection(number)
    sys.path[:] = channel.recv()
    try:
        job = channel.recv()
        if job.package:
            importlib.import_module(job.package)
        begin = time.perf_counter()
        run = job.prepare(*job.arguments)
        run()
        channel.send([time.perf_counter() - begin])
        while True:
            channel.send(_turn(run, channel.recv()))
    except EOFError:
        return
    except Exception as error:  # Peers raise what they like: it counts as "does not run".
        channel.send((str(error).splitlines() or [""])[0][:200] or type(error).__name__)


def _turn(run: Run, seconds: float) -> list[float]:
    """The seconds of each run of one turn."""
    warm = time.perf_counter() + WARM_S
    run()
    while time.perf_counter() < warm:
        run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return times
