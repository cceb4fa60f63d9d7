"""Expressions of literals and of constants' elements, and the error of an operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.tensor import (
    Tensor,
)
from rutc.importer.reading.proto import MAX_RANK
from rutc.tensor_ir import (
    DType,
    Expr,
    Index,
    IndexValue,
    Lit,
    apply,
    cast,
)
from rutc.tensor_ir.indices.affine import ZERO

FEW = 64
"""So many operands are chosen from, or combined, one after the other in one expression."""


class OperatorError(ValueError):
    """An operator cannot be imported as it is used; the message says why."""


class KnownSizesError(OperatorError):
    """Extents that are known do not fit, whatever the sizes that are left open."""


def check_rank(rank: int) -> None:
    """Raises OperatorError where a tensor would have more axes than any may have."""
    if rank > MAX_RANK:
        raise OperatorError(f"a tensor would have {rank} axes; rutc takes at most {MAX_RANK}")


def lit(value: float, like: DType) -> Lit:
    """`value` as a literal of a type; the 0 of strings is ""."""
    if like is DType.STRING and value == 0:
        return Lit("", like)
    if like.is_float:
        return Lit(float(value), like)
    return Lit(bool(value) if like is DType.BOOL else int(value), like)


def literal(element: object, dtype: DType) -> Expr:
    """An element of a known tensor as an expression: a number, a text or a size."""
    if isinstance(element, Index):
        return cast(IndexValue(element), dtype)
    if dtype is DType.STRING:
        return Lit(element.decode() if isinstance(element, bytes) else str(element), dtype)
    number: float = element.item() if isinstance(element, np.generic) else element  # type: ignore[assignment]
    return lit(number, dtype)


def elements_of(t: Tensor) -> Expr:
    """The element of a tensor of index expressions as a choice over its row-major position."""
    assert t.known is not None
    position = ZERO
    for a in t.axes:
        position = position * a.extent + a.index
    items = t.known.reshape(-1).tolist()
    return _chosen(position, [literal(e, t.dtype) for e in items], 0)


def _chosen(position: Index, items: Sequence[Expr], first: int) -> Expr:
    """The item at a position, of which the first one is `first`; not deep where there are many."""
    if len(items) > FEW:
        half = len(items) // 2
        low = apply("lt", IndexValue(position), Lit(first + half, DType.I64))
        halves = (items[:half], first), (items[half:], first + half)
        return apply("select", low, *(_chosen(position, part, at) for part, at in halves))
    chosen = items[-1]
    for k in range(len(items) - 2, -1, -1):
        here = apply("eq", IndexValue(position), Lit(first + k, DType.I64))
        chosen = apply("select", here, items[k], chosen)
    return chosen
