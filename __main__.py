"""The command `rutc`, also as `python -m rutc`."""

import os
import sys

from rutc.base import interrupts

SLEEPING = ("OPENBLAS_THREAD_TIMEOUT", "4")
"""Numpy's threads sleep as long as there is nothing to multiply, 2**4 clocks after the last time.

They would wait in loops for 0.1 s first, from when numpy is imported on; to wake one takes 0.1 ms.
"""


def main() -> None:
    """Runs the command line; signals end it cleanly while it is still being imported, too."""
    interrupts.install()
    os.environ.setdefault(*SLEEPING)
    try:
        from rutc import cli
    except BaseException:
        # Imports turn what is raised in them into errors of their own.
        ending = interrupts.ending()
        if ending is None:
            raise
        sys.exit(ending.code if isinstance(ending, SystemExit) else 130)
    cli.main()


if __name__ == "__main__":
    main()
