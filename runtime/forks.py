"""Locks that no thread waits for in vain: not in a child of a fork, and not for itself."""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rutc.runtime.errors import ModelError


class Locked:
    """What has a `lock`, another one in each process that a fork makes.

    Who held it in the parent is not there, and would never let go. The thread that holds it may ask
    for it again: a signal's handler, or a method of what the caller passes, runs in the middle of
    anything. So whoever takes it asks before whether it has it, in these words where a run takes a
    microsecond, a tenth of which a context manager of Python's would be:

        if locked.lock._is_owned():
            raise locked.again()
        with locked.lock:
            ...
    """

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        """Any, as types do not tell of `_is_owned`, which the conditions of `threading` ask."""
        _all.add(self)

    def again(self) -> ModelError:
        """Returns the error of a thread that is at work already."""
        return ModelError(
            "this thread is in the middle of another call with it (a handler of a signal, or a "
            "method of what was passed, cannot use it); use another session there"
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lets one thread at a time in, and nobody twice.

        Raises:
            ModelError: this thread is inside.
        """
        if self.lock._is_owned():
            raise self.again()
        with self.lock:
            yield


_all: Final[weakref.WeakSet[Locked]] = weakref.WeakSet()


def _renew() -> None:
    for locked in _all:
        locked.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
