"""Room for the frames of Python's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

ROOM = 1 << 17
"""How many words of 8 bytes there is room for: recursion reaches its limit before."""


def with_room(function: Callable[P, T]) -> Callable[P, T]:
    """The function; all that it calls finds room for frames.

    Python keeps frames in chunks of 16 KiB. A call that finds the last one full maps another, and
    unmaps it as it returns: where a loop stands at the end of a chunk, each of its calls takes two
    system calls and a page fault. That was up to a sixth of what a compilation takes. A frame with
    a large stack gets a chunk of the next power of two, the rest of which is for the frames after
    it; pages of it that nobody uses take no memory.
    """

    def roomy(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    roomy.__code__ = roomy.__code__.replace(co_stacksize=ROOM)
    return functools.wraps(function)(roomy)
