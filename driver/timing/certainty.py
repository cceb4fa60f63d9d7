"""What runs in turns tell of candidates, and whether more of them would tell more.

A candidate that is no faster than the best before it, for sure, is known well enough, however wide
its interval is: of those that may be faster, the intervals decide how long a round goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.base.record import record
from rutc.driver.timing.launch_times import LEAST_US, Enough, Profiled, TimedLibrary
from rutc.driver.timing.trials import interval

CERTAIN = 0.015
"""So much faster than what is usual, at least, the fastest has to be when both take turns."""
MOST_RUNS = 1000
"""Of a library in one process: what more of them told would be of how values lie in that one."""
LEAST_RATIO = 0.02
"""Of the time of a kernel in a chain: what it is found to take is not exact."""


@record
class Asked:
    """The launches that a candidate has instead of which, by their numbers in two libraries.

    It has a `share` in them: all of it, unless they are chains. Its ratio is asked for if that may
    be below the `goal`; None: in any case, as exactly as time allows.
    """

    usual: tuple[int, ...]
    other: tuple[int, ...]
    share: float = 1.0
    goal: float | None = 1 - CERTAIN

    def before(self, usual: np.ndarray) -> np.ndarray:
        """Microseconds {run} of the usual launches, of those of all {run, launch}."""
        found: np.ndarray = usual[:, list(self.usual)].sum(axis=1)
        return found

    def ratios(self, usual: np.ndarray, other: np.ndarray) -> np.ndarray:
        """What the others take by the usual ones {run}, of microseconds of all {run, launch}.

        Turns are next to each other in time: what slows the processor slows both.
        """
        after = other[:, list(self.other)].sum(axis=1)
        ratios = after / np.maximum(self.before(usual), LEAST_US)
        found: np.ndarray = np.maximum(1 + (ratios - 1) / self.share, LEAST_RATIO)
        return found


def known(asked: Sequence[Asked], usual: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether runs so far tell enough of all candidates together.

    What intervals leave open below their goals is less than `CERTAIN` of what all take.
    """
    open_us = all_us = 0.0
    for each in asked:
        if each.goal is None:
            return False
        us = float(np.median(each.before(usual)))
        low, high = interval(list(each.ratios(usual, other)))
        all_us += us
        open_us += us * max(0.0, min(high, each.goal) - low)
    return bool(open_us <= CERTAIN * all_us)


def clear(ratios: np.ndarray) -> bool:
    """Returns whether ratios {run} tell faster from slower beyond doubt.

    More runs would not change it: the interval of the median is farther from 1 than it is wide.
    """
    low, high = interval(list(ratios))
    return low - 1 > high - low or 1 - high > high - low


@record
class Question:
    """A library to run in turns with the usual one, and the candidates that it is asked about.

    None: the whole run, as exactly as time allows. If `clearly`, whether each candidate and the
    whole run is faster or slower. Of either there are at most about `MOST_RUNS`, in a `share` of
    the seconds that they may take.
    """

    artifact: TimedLibrary
    asked: tuple[Asked, ...] | None = None
    clearly: bool = False
    share: float = 1.0

    def launches(
        self, us: Sequence[np.ndarray], default: TimedLibrary, profiled: Sequence[Profiled]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds {run, launch} of the default library and this one, of steps {run, step}."""
        libraries = default, self.artifact
        usual, other = (
            own[:, p.steps_of(x.launches)]
            for own, p, x in zip(us, profiled, libraries, strict=True)
        )
        return usual, other

    def enough(self, default: TimedLibrary, profiled: Sequence[Profiled]) -> Enough:
        """What tells whether runs of the two libraries so far tell what is asked."""

        def told(us: Sequence[np.ndarray]) -> bool:
            asked, many = self.asked, len(us[0]) >= MOST_RUNS
            if asked is None or (self.clearly and many):
                return many
            launches = self.launches(us, default, profiled)
            if not self.clearly:
                return known(asked, *launches)
            usual, other = (own.sum(axis=1) for own in us)
            every = [other / np.maximum(usual, LEAST_US), *(x.ratios(*launches) for x in asked)]
            return all(map(clear, every))

        return told
