"""Rough counts of what a plan's groups cost, before they have schedules."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    Invoke,
    Learn,
    Plan,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
)
from rutc.tensor_ir.affine import Index, Range, typical
from rutc.tensor_ir.expr import Apply, Cast, reads, walk
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.products import terms_of


def cycles_of(plan: Plan, machine: Machine) -> float:
    """A rough count of cycles of one run on one thread, at common sizes."""
    sizes = dict(plan.graph.symbols)
    extents = {d: typical(e, sizes) for d, e in plan.graph.dims}
    return _cycles(plan.steps, extents, sizes, machine)


def _cycles(
    steps: tuple[PlanStep, ...],
    extents: Mapping[str, int],
    sizes: Mapping[str, Range],
    machine: Machine,
) -> float:
    total = 0.0
    for s in steps:
        match s:
            case Run(group):
                total += work_of(group, extents, sizes) / (machine.width * machine.fma_per_cycle)
                total += _gathers(group, extents, sizes)
            case Repeat():
                trips = typical(s.trips, sizes)
                total += trips * _cycles(s.steps, extents, sizes, machine)
            case RepeatWhile():
                total += _cycles(s.steps, extents, sizes, machine)
            case Choose():
                branches = (_cycles(x, extents, sizes, machine) for x in (s.then, s.orelse))
                total += max(branches)
            case Write(node):
                total += prod(extents[d] for d in node.dims)
            case FillHalo() | Invoke() | Learn() | Fail():
                pass
    return total


def work_of(group: Group, extents: Mapping[str, int], sizes: Mapping[str, Range]) -> int:
    """Floating-point operations of a group: arithmetic in bodies, and one per reduced element.

    All products of the parts of two numbers are one operation.
    """
    total = 0
    extents = {**extents, **{s.dim: typical(s.size, sizes) for s in group.slices}}
    for n in group.stages:
        points = prod(extents[d] for d in n.dims)
        each = sum(
            1 for e in n.body for x in walk(e) if isinstance(x, Apply | Cast) and x.dtype.is_float
        )
        if len(terms_of(n.reducer, n.body) or ()) > 1:
            each = 1
        total += points * (each + (1 if n.reducer is not None else 0))
    return total


def _gathers(group: Group, extents: Mapping[str, int], sizes: Mapping[str, Range]) -> int:
    """Elements that a group reads at places that depend on data, each of some cycle."""
    extents = {**extents, **{s.dim: typical(s.size, sizes) for s in group.slices}}
    total = 0
    for n in group.stages:
        found = sum(not isinstance(c, Index) for e in n.body for r in reads(e) for _, c in r.coords)
        total += found * prod(extents[d] for d in n.dims)
    return total
