"""The plans of a model's versions, for a machine and a precision."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.driver.build import Alternative
from rutc.driver.precision import TYPES, with_narrow_weights
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.decide import Change
from rutc.graph_opt.plan import Plan
from rutc.graph_opt.versions import Version
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import Machine


def narrowed(machine: Machine, precision: str) -> Change | None:
    """What gives the weights of a plan the types of a precision; None: nothing does."""
    dtype = TYPES[precision]
    return None if dtype is DType.F32 else lambda found: with_narrow_weights(found, dtype, machine)


def planned(
    found: Sequence[Version], machine: Machine, precision: str = "fp32"
) -> tuple[Plan, tuple[Alternative, ...]]:
    """The plan of the last of the versions, and of those that run instead where they may."""
    change = narrowed(machine, precision)
    return decide(found[-1].graph, machine, found[-1].assigned, change), tuple(
        Alternative(decide(v.graph, machine, v.assigned, change), v.where)
        for v in found
        if v.where is not None
    )
