"""Loops whose index decides which arm of a choice is computed: unrolled, only one arm is left."""

from __future__ import annotations

from collections.abc import Mapping

from rutc.tensor_ir.affine import Index, Mod
from rutc.tensor_ir.expr import Apply, IndexValue, walk
from rutc.tensor_ir.kernel import Kernel, Kind, exprs, walk_stmts
from rutc.tensor_ir.steps import Mark, Peel, Reorder, Split, Step

LONGEST = 16
"""The longest loop that is unrolled for the sake of its choices."""


def choosing_loops(kernel: Kernel, extents: Mapping[str, int]) -> dict[str, int]:
    """Loop -> period: an index, modulo the period, is compared with literals.

    select(i == 0, ..)        ->  i: its extent
    select(i % 4 == 0, ..)    ->  i: 4
    """
    found: dict[str, int] = {}
    for s in walk_stmts(kernel.body):
        for e in exprs(s):
            for x in walk(e):
                if isinstance(x, Apply) and x.op == "eq" and isinstance(x.args[0], IndexValue):
                    name, period = _period(x.args[0].index, extents)
                    if name in extents and period <= LONGEST:
                        found[name] = min(period, extents[name])
    return found


def _period(index: Index, extents: Mapping[str, int]) -> tuple[str, int]:
    """(loop, period) of `i` and `i % period`; no loop's name for other indices."""
    if index.as_var is not None:
        return index.as_var, extents.get(index.as_var, 0)
    match index.terms:
        case (((Mod(p, q),), 1),) if p.as_var is not None and q.is_const and index.const == 0:
            return p.as_var, q.value
        case _:
            return "", 0


def unrolled_arms(
    outer: list[str],
    vector: str,
    chosen: Mapping[str, int],
    extents: Mapping[str, int],
    width: int,
    *,
    parallel: bool,
) -> list[Step]:
    """The schedule: one vector at a time, and for it every value of the choosing loops.

    Values that several arms read, or compute from equal operands, are then shared.
    """
    steps: list[Step] = []
    order = list(outer)
    edges: list[str] = []
    inner: list[tuple[str, Kind]] = []
    for v, factor, kind in (
        *((v, f, Kind.UNROLL) for v, f in chosen.items()),
        (vector, width, Kind.VECTOR),
    ):
        if factor >= extents[v]:
            inner.append((v, kind))
            continue
        steps.append(Split(v, factor))
        order = [f"{v}.o" if x == v else x for x in order] if v in order else [*order, f"{v}.o"]
        inner.append((f"{v}.i", kind))
        if extents[v] % factor:
            edges.append(f"{v}.o")
    order = [v for v in order if v not in chosen]
    inner = [inner[-1], *inner[:-1]]
    if len(order) + len(inner) > 1:
        steps.append(Reorder((*order, *(v for v, _ in inner))))
    if parallel:
        steps += [Mark(v, Kind.PARALLEL) for v in order]
    steps += [Peel(v) for v in reversed(order) if v in edges]
    steps += [Mark(v, kind) for v, kind in inner]
    return steps
