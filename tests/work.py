"""How much work is done, counted in function calls: the same under any load."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def calls_counted() -> Iterator[list[int]]:
    """Counts the function calls of a block: the only element of what it gives, from its end on."""
    made = [0]

    def called(frame: object, event: str, arg: object) -> None:
        made[0] += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(called)
    try:
        yield made
    finally:
        sys.setprofile(None)
        gc.enable()
