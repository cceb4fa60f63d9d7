"""Locks in a process that a fork has made: who held one is not there, and would never let go."""

import os
import threading
import weakref
from typing import Final


class Locked:
    """What has a `lock`, another one in each process that a fork makes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        _all.add(self)


_all: Final[weakref.WeakSet[Locked]] = weakref.WeakSet()


def _renew() -> None:
    for locked in _all:
        locked.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)
