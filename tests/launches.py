"""Programs written out by hand: launches, and the table that they name kernels of."""

from typing import Any

from rutc.emit.host_program.host_steps import Launch
from rutc.emit.host_program.kernel_call import KernelCall, KernelId


class Launches:
    """Makes launches of functions, and the table of what they call."""

    def __init__(self) -> None:
        self._calls: list[KernelCall] = []

    def __call__(self, function: str, *facts: Any, **more: Any) -> Launch:
        """A launch of a function; the rest is as in `KernelCall`."""
        self._calls.append(KernelCall(function, *facts, **more))
        return Launch(KernelId(len(self._calls) - 1))

    @property
    def kernels(self) -> tuple[KernelCall, ...]:
        """The table of all launches so far."""
        return tuple(self._calls)
