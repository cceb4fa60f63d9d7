"""Locks that no thread waits for in vain: not in a child of a fork, and not for itself."""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rutc.runtime.errors import ModelError


class Locked:
    """What has a `lock`, another one in each process that a fork makes.

    Who held it in the parent is not there, and would never let go. A thread that holds it may ask
    for it again: a signal's handler, or a method of what the caller passes, runs in the middle of
    anything. So whoever has it looks at `inside` first, and sets that until it lets go:

        with locked.lock:
            if locked.inside:
                raise locked.again()
            try:
                locked.inside = True
                ...
            finally:
                locked.inside = False
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.inside = False
        """Whether the thread that has the lock is at work with what it is for."""
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
        with self.lock:
            if self.inside:
                raise self.again()
            try:
                self.inside = True
                yield
            finally:
                self.inside = False


_all: Final[weakref.WeakSet[Locked]] = weakref.WeakSet()


def _renew() -> None:
    for locked in _all:
        locked.lock = threading.RLock()
        locked.inside = False


os.register_at_fork(after_in_child=_renew)
