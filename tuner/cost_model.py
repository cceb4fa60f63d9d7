"""What the cost model says of scheduled kernels: their summaries, the estimate, and features."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.search import Judged


class Model:
    """The estimate of a machine, and its parts as features."""

    def __init__(self, machine: Machine) -> None:
        """For code of a machine."""
        self._machine = machine

    def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
        """Returns the logarithm of the cycles of each, and its features."""
        found = []
        for kernel in kernels:
            said = estimate(summarise(kernel, self._machine), self._machine)
            parts = tuple(log(1 + x) - log(1 + said.cycles) for x in said.parts.values())
            found.append(Judged(log(said.cycles), parts))
        return found
