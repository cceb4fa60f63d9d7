"""What the cost model says of scheduled kernels: the estimate, corrected by what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.indices.ranges import with_common
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner.search.nest_features import features
from rutc.tuner.search.ranker import Ranker
from rutc.tuner.search.search import Judged


class CostModel:
    """Judges scheduled kernels on a machine."""

    def __init__(
        self,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        ranker: Ranker | None = None,
    ) -> None:
        """For code of a machine; symbols have these sizes, or common ones.

        What was learned is what rutc comes with, unless it is given.
        """
        self._machine, self._sizes = machine, sizes or {}
        self._ranker = ranker or Ranker.load()

    def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
        """Returns the logarithm of the cycles of each, and its features."""
        if not kernels:
            return []
        regions = [summarise(self._at_sizes(k), self._machine).regions for k in kernels]
        found = np.array([features(r, self._machine) for r in regions])
        cycles, _ = self._ranker.scores(found)
        return [
            Judged(float(c), tuple(map(float, row)), own)
            for c, row, own in zip(cycles, found, regions, strict=True)
        ]

    def _at_sizes(self, kernel: Kernel) -> Kernel:
        symbols = tuple((n, with_common(r, self._sizes.get(n))) for n, r in kernel.symbols)
        return replace(kernel, symbols=symbols) if self._sizes else kernel
