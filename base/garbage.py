"""Python's search for objects that only each other refer to, left out while much is made."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def uncollected(function: Callable[P, T]) -> Callable[P, T]:
    """The function, during which no garbage in cycles is looked for.

    What a compilation makes lives as long as it, and what does not is in no cycles, mostly: the
    search takes a seventh of a compiling process's time and finds next to nothing. It goes on when
    the function ends, in whatever way, if it was on before.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> T:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return quiet
