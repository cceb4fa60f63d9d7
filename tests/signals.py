"""Signals as a shell's foreground has them, for processes that tests send some to."""

import signal


def as_in_foreground() -> None:
    """Ends this process at signals again that are ignored.

    Shells start background jobs with SIGINT and SIGQUIT ignored, `nohup` starts what it starts with
    SIGHUP ignored, and children inherit it.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
