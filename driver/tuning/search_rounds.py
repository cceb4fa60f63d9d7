"""Rounds of a search that end in time."""

from collections import deque
from time import monotonic


class Rounds:
    """Rounds until a time: none is begun that would end after it if it took as long as the others.

    As the longer of the last two: what is made and learned in the first ones is there later. The
    first is thought to take `longest` seconds. A larger one takes longer by as much.
    """

    def __init__(self, end: float, longest: float = 0.0) -> None:
        """`end` is a time of the monotonic clock, in seconds."""
        self._end = end
        self._began: float | None = None
        self._lengths = deque([longest], maxlen=2)

    @property
    def left(self) -> float:
        """The seconds until the end."""
        return self._end - monotonic()

    def another(self, after: float = 0.0, most: float = 1.0, fixed: float | None = None) -> float:
        """Returns how many times as large as the last one the next round may be, `most` at most.

        0 where there is to be none; later there may be one where less follows. The round before
        ends by this. What follows the last round takes `after` seconds. Where a round takes `fixed`
        seconds however small it is, one may be smaller than the last: so that it ends in time.
        """
        now = monotonic()
        if self._began is not None:
            self._lengths.append(now - self._began)
        self._began = None
        left, length = self._end - after - now, max(self._lengths)
        found = 0.0
        if length < left:
            found = min(most, left / length if length else most)
        elif fixed is not None and fixed < min(left, length):
            found = min((left - fixed) / (length - fixed), 1.0)
        if found:
            self._began = now
        return found
