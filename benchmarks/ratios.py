"""Schedules of a kernel timed in few runs, as ratios to the default one beside which they run.

What is much slower than the best so far is known to be after a run. What is near it is timed for
longer. Times are of the thread, operands are near, and both kernels take turns.
"""

import functools
from statistics import median
from time import thread_time_ns
from typing import NamedTuple

from benchmarks.timer import PreparedKernel, enough
from rutc.driver.timing.answering_process import Served, Unanswered
from rutc.driver.timing.trials import sample
from rutc.errors import RutcError
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine

HOPELESS, NEAR = 2.0, 1.15
"""How many times as slow as the best: what needs no second run, and what is timed for longer."""
SHORT, LONG = 5, 25
"""Samples of each."""
TIMEOUT_S = 20.0


class Ratio(NamedTuple):
    """A schedule's time by that of the default one, and the seconds that a thread took for it."""

    ratio: float | None
    seconds: float


class Ratios(Served):
    """A process that times schedules of one kernel, each beside the default one."""

    def __init__(self, default: Kernel, machine: Machine) -> None:
        """For code of a machine; the process begins with the first schedule."""
        super().__init__(lambda: _Timer(default, machine).answer)

    def of(self, kernel: Kernel, best: float, samples: int = 0) -> Ratio:
        """Returns what a scheduled kernel takes where the best is known to take so much.

        `samples` are taken in any case. No ratio is of what does not compile, crashes or hangs.
        """
        try:
            found = self.ask((kernel, best, samples), TIMEOUT_S)
        except (Unanswered, RutcError):
            return Ratio(None, 0.0)
        assert isinstance(found, Ratio)
        return found


class _Timer:
    """Times kernels in this process."""

    def __init__(self, default: Kernel, machine: Machine) -> None:
        self._machine = machine
        self._beside = Sampled(PreparedKernel(default, machine, ("near",)))

    def answer(self, question: tuple[Kernel, float, int]) -> Ratio:
        """The ratio of a kernel."""
        kernel, best, samples = question
        start = thread_time_ns()
        own = Sampled(PreparedKernel(kernel, self._machine, ("near",), self._beside.prepared))
        # Samples of a pair are next to each other in time: others slow both.
        pair = functools.partial(self._pair, own)
        found = [pair()]
        wanted = samples or SHORT
        while len(found) < wanted and (samples or median(found) < HOPELESS * best):
            found.append(pair())
            if len(found) == SHORT and median(found) < NEAR * best:
                wanted = max(wanted, LONG)
        return Ratio(median(found), (thread_time_ns() - start) / 1e9)

    def _pair(self, own: "Sampled") -> float:
        return own.sample() / self._beside.sample()


class Sampled:
    """A kernel and how many of its runs make a sample."""

    def __init__(self, prepared: PreparedKernel) -> None:
        """Run it until that is known."""
        self.prepared = prepared
        self._runs, _ = enough(prepared.runs["near"])

    def sample(self) -> float:
        """The thread's nanoseconds of a run."""
        return sample(self.prepared.runs["near"], self._runs)
