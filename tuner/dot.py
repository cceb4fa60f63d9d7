"""Sums of narrow products: several neighbours of the reduced loop go into one instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.tensor_ir.kernel import Buffer, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Cut, Mark, Pack, Split, Step
from rutc.tuner.access import Shape


def products_together(shape: Shape, machine: Machine) -> int:
    """How many products of the only reduction one instruction adds up; 1 where there is none."""
    if len(shape.reductions) != 1:
        return 1
    (r,) = shape.reductions
    return 1 if any(x.var in shape.symbolic for x in r.loops) else r.together(machine)


def dot_steps(var: str, extents: Mapping[str, int], group: int) -> list[Step]:
    """Steps that make a dot loop of the neighbours along `var`: whole groups, then the rest."""
    extent = extents[var]
    steps: list[Step] = [Split(var, min(group, extent))]
    if extent % group and extent > group:
        steps.append(Cut(f"{var}.o", (extent // group,)))
    return [*steps, Mark(f"{var}.i", Kind.DOT)]


def dot_packing(b: Buffer, bound: Sequence[str], lane: str | None, width: int, group: int) -> Pack:
    """The packing of a constant operand: a vector's groups lie together.

    `bound` are the reduced dims that it has, in the order of their loops, of which the last one
    makes the groups; `width` lanes of `lane` are a tile's.
    """
    dims = [d for d, _ in b.layout.extents]
    front = [d for d in dims if d not in bound and d != lane]
    if lane is None:
        return Pack(b.name, (*front, *bound))
    return Pack(b.name, (*front, lane, *bound), ((lane, width), (bound[-1], group)))
