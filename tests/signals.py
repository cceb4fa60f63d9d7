"""Processes that tests send signals to, and what becomes of them."""

import faulthandler
import os
import signal
from pathlib import Path
from typing import NoReturn


def as_in_foreground() -> None:
    """Ends this process at signals again that are ignored.

    Shells start background jobs with SIGINT and SIGQUIT ignored, `nohup` starts what it starts with
    SIGHUP ignored, and children inherit it.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def crash() -> NoReturn:
    """Ends this process as a fault in machine code does, without pytest's report of the stack."""
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("still alive")


def is_gone(process: int) -> bool:
    """Whether a process has ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"
