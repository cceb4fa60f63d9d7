"""Rounds of a search that end in time."""

from collections import deque
from time import monotonic


class Rounds:
    """Rounds until a time: none is begun that would end after it if it took as long as the others.

    As the longer of the last two: what is made and learned in the first ones is there later. The
    first is thought to take `longest` seconds.
    """

    def __init__(self, end: float, longest: float = 0.0) -> None:
        """`end` is a time of the monotonic clock, in seconds."""
        self._end = end
        self._began: float | None = None
        self._lengths = deque([longest], maxlen=2)

    def another(self, after: float = 0.0) -> bool:
        """Whether to begin another round; the one before ends by this.

        What follows the last round takes `after` seconds.
        """
        now = monotonic()
        if self._began is not None:
            self._lengths.append(now - self._began)
        self._began = now
        return now + max(self._lengths) + after < self._end
