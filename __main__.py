"""The command `rutc`, also as `python -m rutc`."""

import sys

from rutc.emit import interrupts


def main() -> None:
    """Runs the command line; signals end it cleanly while it is still being imported, too."""
    interrupts.install()
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
