"""Python's search for objects that only each other refer to, left out while much is made."""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Search:
    """The search of the process, which calls in several threads may have left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[int] = []
        """The thread of each."""
        self._was_on = False

    def leave_out(self) -> None:
        """No garbage is looked for until as many calls have ended as began."""
        with self._lock:
            if not self._calls:
                self._was_on = gc.isenabled()
                gc.disable()
            self._calls.append(threading.get_ident())

    def go_on(self) -> None:
        """A call has ended; after the last one the search is as it was."""
        with self._lock:
            self._calls.remove(threading.get_ident())
            if not self._calls and self._was_on:
                gc.enable()

    def begin_child(self) -> None:
        """A fork has made this process, where calls of other threads never end."""
        self._lock = threading.Lock()
        calls, own = self._calls, threading.get_ident()
        self._calls = [thread for thread in calls if thread == own]
        if calls and not self._calls and self._was_on:
            gc.enable()


_SEARCH = _Search()
os.register_at_fork(after_in_child=_SEARCH.begin_child)


def uncollected(function: Callable[P, T]) -> Callable[P, T]:
    """The function, during which no garbage in cycles is looked for in this process.

    What a compilation makes lives as long as it, and what does not is in no cycles, mostly: the
    search takes a seventh of a compiling process's time and finds next to nothing. It goes on when
    the last of such functions ends, in whatever way, if it was on before the first.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> T:
        _SEARCH.leave_out()
        try:
            return function(*args, **kwargs)
        finally:
            _SEARCH.go_on()

    return quiet
