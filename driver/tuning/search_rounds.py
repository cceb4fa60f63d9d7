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

    def another(self, after: float = 0.0, most: float = 1.0) -> float:
        """Returns how many times as large as the last one the next round may be, `most` at most.

        0 where there is to be none. The round before ends by this. What follows the last round
        takes `after` seconds.
        """
        now = monotonic()
        if self._began is not None:
            self._lengths.append(now - self._began)
        self._began = now
        left, length = self._end - after - now, max(self._lengths)
        return min(most, left / length if length else most) if length < left else 0.0
