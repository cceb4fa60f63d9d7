"""The plans of a model's versions, for a machine and a precision."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.driver.build import Alternative
from rutc.driver.plan_by_estimate import EstimateSearch
from rutc.driver.precision import TYPES, with_narrow_weights
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.decide import Change
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.plan import Plan
from rutc.graph_opt.versions import Version
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import Machine


def narrowed(machine: Machine, precision: str) -> Change | None:
    """What gives the weights of a plan the types of a precision; None: nothing does."""
    dtype = TYPES[precision]
    return None if dtype is DType.F32 else lambda found: with_narrow_weights(found, dtype, machine)


def searched(machine: Machine, seconds: float, before: Change | None) -> Change:
    """What searches by estimates for a better plan, from the one that is changed `before`.

    It does so for `seconds`; for 0 as far as on any machine. Plans whose sizes a run tells stay as
    they are: estimates are of one size.
    """

    def change(found: Realisation) -> Realisation:
        found = found if before is None else before(found)
        if found.graph.symbols:
            return found
        return EstimateSearch(found, machine).run(seconds).found

    return change


def planned(
    found: Sequence[Version],
    machine: Machine,
    precision: str = "fp32",
    search: float | None = None,
) -> tuple[Plan, tuple[Alternative, ...]]:
    """The plan of the last of the versions, and of those that run instead where they may.

    Better ones are searched for by estimates, so many seconds each, unless `search` is None.
    """
    change = narrowed(machine, precision)
    if search is not None:
        change = searched(machine, search, change)
    return decide(found[-1].graph, machine, found[-1].assigned, change), tuple(
        Alternative(decide(v.graph, machine, v.assigned, change), v.where)
        for v in found
        if v.where is not None
    )
