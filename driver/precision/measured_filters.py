"""`--precision bf16`: which sums may be filtered by more outputs at a time, from a case.

The graph is brought into normal form and run on the first case of a calibration, in float32. What
the filters of rounded factors lose of the values there decides (`graph_opt.larger_filters`). It is
run only if such a filter is thought to be faster than others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rutc.driver.options import Calibration
from rutc.driver.precision.calibration import first_case
from rutc.errors import UserError
from rutc.graph_opt.larger_filters import larger_filters, may_have_windows, within_bits
from rutc.graph_opt.leeway import Looser
from rutc.graph_opt.quantise import Site, normal, sites
from rutc.graph_opt.rounded_filters import lost_by_rounding
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine


def measured_filters(
    graph: Graph, machine: Machine, how: Calibration, spread: tuple[str, ...] = ()
) -> Looser:
    """Returns the filters that an imported graph's sums may have, as a case shows.

    None of those whose inputs are `spread`, or are not finite there; none at all if the model does
    not run on a generated case.

    Raises:
        UserError: the case that is given does not fit the model, or the model does not run on it.
    """
    if not may_have_windows(graph):
        return ()
    before = normal(graph, machine)
    found = LargerFilters(before, sites(before), machine, spread)
    if not found.values:
        return ()
    try:
        for value, array in first_case(before, found.values, how):
            found.see(value, array)
    except UserError:
        # A model need not run on whatever is drawn: then nothing is known.
        if how.data is None:
            return ()
        raise
    return found.within_bits()


class LargerFilters:
    """Filters of more outputs at a time that sums of a graph in normal form may have.

    What they lose is told by what `values` are in a case.
    """

    def __init__(
        self, graph: Graph, sites: Iterable[Site], machine: Machine, spread: tuple[str, ...]
    ) -> None:
        """Find those that are thought to be faster than others."""
        self._found = larger_filters(graph, sites, machine, spread)
        self._energies: dict[tuple[str, str], np.ndarray] = {}
        self._rounded: dict[str, float] = {}

    @property
    def values(self) -> tuple[str, ...]:
        """What they filter, each once."""
        return tuple(dict.fromkeys(f.site.value for f in self._found))

    def see(self, value: str, array: np.ndarray) -> None:
        """Take into account what a value is in the case; one that is not finite tells nothing."""
        own = [f for f in self._found if f.site.value == value]
        if own and array.size and np.isfinite(array).all():
            self._rounded[value] = lost_by_rounding(array)
            self._energies.update((f.algorithm, f.energies(array)) for f in own)

    def within_bits(self) -> Looser:
        """Those that lose no more bits than any filter may."""
        return within_bits(self._found, self._energies, self._rounded)
