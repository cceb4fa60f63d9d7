"""How far long work has got, which whoever asked for it may be told."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a stage, how many of its steps are done, and how many there are."""


def nobody(stage: str, done: int, total: int) -> None:
    """Tells nobody."""
