"""Comparisons of indices with numbers: what they give where ranges tell, and what that chooses."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_

from rutc.tensor_ir.expr import Apply, Cast, Expr, IndexValue, Lit
from rutc.tensor_ir.indices.ranges import Range


def compared(op: str, bounds: Range, edge: int) -> bool | None:
    """What comparing an index of these bounds with `edge` gives; None where it may be either.

    `compared("lt", (0, 3), 4)` -> True, `compared("lt", (0, 4), 4)` -> None
    """
    low, high = bounds
    match op:
        case "eq" | "ne" if low == high or not low <= edge <= high:
            return (low == high == edge) == (op == "eq")
        case "lt" | "ge" if high < edge or low >= edge:
            return (high < edge) == (op == "lt")
        case "le" | "gt" if high <= edge or low > edge:
            return (high <= edge) == (op == "le")
        case _:
            return None


def chosen(e: Expr, ranges: Mapping[str, Range]) -> Expr:
    """`e` without the choices that comparisons decide wherever variables are in these ranges.

    select(index(v) < 4, x, y), v in 0..3  ->  x
    """
    return _chosen(e, ranges, {})


def _chosen(e: Expr, ranges: Mapping[str, Range], done: dict[int, Expr]) -> Expr:
    """`chosen`, the operations in `done` by identity being so already."""
    match e:
        case Apply():
            known = done.get(id(e))
            if known is None:
                known = done[id(e)] = _chosen_operation(e, ranges, done)
            return known
        case Cast():
            arg = _chosen(e.arg, ranges, done)
            return e if arg is e.arg else Cast(arg, e.dtype)
        case _:
            return e


def _chosen_operation(e: Apply, ranges: Mapping[str, Range], done: dict[int, Expr]) -> Expr:
    match e:
        case Apply("select", (Apply(op, (IndexValue(index), Lit(value))), yes, no)):
            bounds = index.bounds(ranges)
            holds = None if bounds is None else compared(op, bounds, int(value))
            if holds is not None:
                return _chosen(yes if holds else no, ranges, done)
        case _:
            pass
    args = tuple([_chosen(x, ranges, done) for x in e.args])
    return e if all(map(is_, args, e.args)) else Apply(e.op, args)
