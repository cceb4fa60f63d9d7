"""What the cost model says of scheduled kernels: the estimate, corrected by what was learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.nest_features import features
from rutc.tuner.ranker import Ranker
from rutc.tuner.search import Judged


class CostModel:
    """Judges scheduled kernels on a machine."""

    def __init__(self, machine: Machine) -> None:
        """For code of a machine."""
        self._machine = machine
        self._ranker = Ranker.load()

    def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
        """Returns the logarithm of the cycles of each, and its features."""
        if not kernels:
            return []
        regions = [summarise(kernel, self._machine).regions for kernel in kernels]
        found = np.array([features(r, self._machine) for r in regions])
        cycles, _ = self._ranker.scores(found)
        return [
            Judged(float(c), tuple(map(float, row)), own)
            for c, row, own in zip(cycles, found, regions, strict=True)
        ]
