"""Signals that end the command: raised as exceptions, so that all is cleaned up on the way out.

The first of them raises KeyboardInterrupt (SIGINT) or SystemExit with status 128 + its number;
those that follow are ignored, so that nothing ends the cleaning up. What must not be torn apart
(to create something and to remember that it has to be removed, or to rename several files) is
done under `uninterrupted`: what comes meanwhile is raised at its end.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Final

ENDING: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGXCPU,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What ends a process by default and can be handled, but for faults and what Python ignores."""

AGAIN_S = 0.05
"""After what time an ending that an object's last moment has swallowed is raised again."""

_depth = 0
_pending: BaseException | None = None
_ending: BaseException | None = None


def install() -> None:
    """Lets signals end the process by exceptions, where nobody had them ignored (`nohup`)."""
    for number in ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    sys.unraisablehook = _not_raised


def ending() -> BaseException | None:
    """What a signal has raised: errors after it are its consequences."""
    return _ending


def ignore() -> None:
    """Lets signals pass; for a process that somebody else ends."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


class uninterrupted:  # noqa: N801 - reads as a statement
    """A block that no ending tears apart; they nest. Python handles signals in one thread only."""

    def __enter__(self) -> None:
        global _depth
        self._main = threading.current_thread() is threading.main_thread()
        _depth += self._main

    def __exit__(self, *error: object) -> None:
        global _depth, _pending
        _depth -= self._main
        if self._main and _depth == 0 and _pending is not None:
            late, _pending = _pending, None
            raise late


def _end(number: int, frame: FrameType | None) -> None:
    global _pending, _ending
    if _ending is not None:
        return
    _ending = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    if _depth > 0:
        _pending = _ending
    else:
        raise _ending


def _not_raised(lost: sys.UnraisableHookArgs) -> None:
    """Raises once more what ends the command: what is raised while an object goes is ignored."""
    swallowed = lost.exc_value
    if not isinstance(swallowed, SystemExit | KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return

    def again(number: int, frame: FrameType | None) -> None:
        raise swallowed

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
