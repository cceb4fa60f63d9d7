"""Processes that end with the one that started them, in whatever way that ends (Linux)."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1
"""The number of a request to Linux (`<linux/prctl.h>`)."""


def end_with_parent() -> None:
    """Lets the system kill this process when its parent ends.

    A parent that has ended already is not noticed: who may have one compares `os.getppid()`.

    Raises:
        AttributeError: The system is not Linux.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
