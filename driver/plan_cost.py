"""Rough counts of what a plan's groups cost, before they have schedules."""

from __future__ import annotations

from collections.abc import Mapping

from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    InTurn,
    Invoke,
    Joined,
    Learn,
    Plan,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
)
from rutc.tensor_ir.affine import ZERO, Index, Range, maximum, product
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, Cast, reads, walk
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.products import terms_of
from rutc.tensor_ir.running import running_nest

Extents = Mapping[str, Index]


def cycles_of(plan: Plan, machine: Machine) -> Index:
    """A rough count of cycles of one run on one thread, a formula of the graph's symbols."""
    return _cycles(plan.steps, dict(plan.graph.dims), dict(plan.graph.symbols), machine)


def _cycles(
    steps: tuple[PlanStep, ...], extents: Extents, sizes: Mapping[str, Range], machine: Machine
) -> Index:
    work, total = ZERO, ZERO
    for s in steps:
        match s:
            case Run(group):
                work += work_of(group, extents)
                total += machine.coefficients.sharing.gather * _gathers(group, extents)
            case Repeat():
                total += _cycles(s.steps, extents, sizes, machine) * s.trips
            case RepeatWhile() | InTurn():
                total += _cycles(s.steps, extents, sizes, machine)
            case Choose():
                then, orelse = (_cycles(x, extents, sizes, machine) for x in (s.then, s.orelse))
                total += maximum(then, orelse, sizes)
            case Write(node):
                total += product(extents[d] for d in node.dims)
            case FillHalo() | Invoke() | Learn() | Joined() | Fail():
                pass
    return total + work // int(machine.width * machine.fma_per_cycle)


def work_of(group: Group, extents: Extents) -> Index:
    """Floating-point operations of a group: arithmetic in bodies, and one per reduced element.

    All products of the parts of two numbers are one operation, and so is a product of rounded ones.
    """
    total = ZERO
    extents = _with_slices(group, extents)
    for n in group.stages:
        taken = n.out.dims if running_nest(n, extents.__getitem__) is not None else n.dims
        points = product(extents[d] for d in taken)
        each = sum(
            1 for e in n.body for x in walk(e) if isinstance(x, Apply | Cast) and x.dtype.is_float
        )
        if any(a.dtype is DType.BF16 for a, _ in terms_of(n.reducer, n.body) or ()):
            each = 1
        total += points * (each + (1 if n.reducer is not None else 0))
    return total


def _gathers(group: Group, extents: Extents) -> Index:
    """Elements that a group reads at places that depend on data."""
    extents = _with_slices(group, extents)
    total = ZERO
    for n in group.stages:
        found = sum(not isinstance(c, Index) for e in n.body for r in reads(e) for _, c in r.coords)
        total += product(extents[d] for d in n.dims) * found
    return total


def _with_slices(group: Group, extents: Extents) -> Extents:
    if not group.slices:
        return extents
    return {**extents, **{s.dim: Index.of(s.size) for s in group.slices}}
