"""`--precision bf16`: which sums may be filtered by more outputs at a time, from a case.

The graph is brought into normal form and run on the first case of a calibration, in float32. What
the filters of rounded factors lose of the values there decides (`graph_opt.larger_filters`). It is
run only if such a filter is thought to be faster than others.
"""

from __future__ import annotations

import numpy as np

from rutc.driver.options import Calibration
from rutc.driver.precision.calibration import first_case
from rutc.errors import UserError
from rutc.graph_opt.larger_filters import larger_filters, may_have_windows, within_bits
from rutc.graph_opt.leeway import Looser
from rutc.graph_opt.quantise import normal, sites
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
    found = larger_filters(before, sites(before), machine, spread)
    if not found:
        return ()
    try:
        seen = tuple(first_case(before, (f.site.value for f in found), how))
    except UserError:
        # A model need not run on whatever is drawn: then nothing is known.
        if how.data is None:
            return ()
        raise
    energies: dict[tuple[str, str], np.ndarray] = {}
    rounded: dict[str, float] = {}
    for value, array in seen:
        if array.size and np.isfinite(array).all():
            rounded[value] = lost_by_rounding(array)
            own = (f for f in found if f.site.value == value)
            energies.update((f.algorithm, f.energies(array)) for f in own)
    return within_bits(found, energies, rounded)
