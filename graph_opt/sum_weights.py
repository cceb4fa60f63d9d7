"""Constant factors of sums of products, and what it costs to scale them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log2, sqrt

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.rounding import Change
from rutc.tensor_ir import Const, DType, Index, Nest, Read
from rutc.tensor_ir.terms import factors

WIDE = (DType.F32, DType.F64)
INPUTS = 4.0
"""The size of what sums are taken to multiply their weights with."""
LEAST_SHARE = 2.0**-8
"""A result whose weights are smaller, beside most others', is one that training switched off."""


@record
class Weights:
    """A constant factor of a sum of products: the sum, which factor it is, and the constant."""

    sum: Nest
    position: int
    read: Read
    const: Const

    @property
    def summed(self) -> tuple[int, ...]:
        """The axes of the constant that are summed over."""
        bound = set(self.sum.bound)
        at = {d: c.names() for d, c in index_coords(self.read)}
        return tuple(i for i, d in enumerate(self.const.axes) if at[d] & bound)

    @property
    def largest(self) -> np.ndarray:
        """The largest magnitude that each result of the sum reads; axes stay."""
        array = self.const.data.array
        if array.size == 0:
            return np.zeros((1,) * array.ndim)
        high = array.max(axis=self.summed, keepdims=True).astype(np.float64)
        low = array.min(axis=self.summed, keepdims=True).astype(np.float64)
        return np.asarray(np.maximum(high, -low))

    def error(self, editor: Editor) -> np.ndarray:
        """What each result rounds in units of its type's relative precision; axes stay.

        Roundings of n terms of random signs add up to sqrt(n) times the terms' norm, about.
        """
        array = self.const.data.array
        axes = list(range(array.ndim))
        kept = [i for i in axes if i not in self.summed]
        squares = np.einsum(array, axes, array, axes, kept, dtype=np.float64, casting="same_kind")
        shape = [1 if i in self.summed else n for i, n in enumerate(array.shape)]
        norm = np.sqrt(squares).reshape(shape)
        return np.asarray(INPUTS * sqrt(editor.typical(self.sum.bound)) * norm)


def weights_of(n: Nest, editor: Editor) -> Iterator[Weights | Reason]:
    """Yields the constant factors of a sum of products that may be scaled, or why one may not."""
    for i, w in enumerate(factors(n.body[0])):
        c = editor.constant(w.value) if isinstance(w, Read) else None
        if c is None or not isinstance(w, Read) or w.dtype not in WIDE:
            continue
        if len(editor.readers(w.value)) > 1 or editor.is_output(w.value):
            yield Reason(f"%{w.value} has another reader")
        elif w.fill is not None and w.fill.value != 0:
            yield Reason(f"%{w.value} is padded with {w.fill.value}")
        elif not all(isinstance(at, Index) for _, at in w.coords):
            yield Reason(f"%{w.value} is read at data-dependent coordinates")
        else:
            yield Weights(n, i, w, c)


def cost_of_scaling(w: Weights, scale: np.ndarray) -> Change:
    """What a sum gives up whose weights are scaled rather than its results.

    Its terms overflow sooner by what scaled weights are above 1, and underflow sooner by what they
    are below 1.
    """
    factor = np.abs(scale)
    with np.errstate(all="ignore"):
        scaled = w.largest * factor
    if not np.all(np.isfinite(scaled)):
        return Change(top=inf)
    most = float(scaled.max(initial=1.0, where=factor > 1))
    least = float(scaled.min(initial=1.0, where=_live(w.largest) & (factor < 1) & (factor > 0)))
    return Change(top=log2(most), bottom=-log2(least))


def cost_of_joining(w: Weights, factor: np.ndarray) -> Change:
    """What a sum gives up one of whose terms' factors is multiplied into its weights."""
    with np.errstate(all="ignore"):
        scaled = w.largest * np.abs(factor)
    info = np.finfo(w.read.dtype.numpy)
    least = scaled.min(initial=1.0, where=_live(w.largest) & (factor != 0))
    return Change(
        top=0.0 if np.all(scaled <= info.max) else inf,
        bottom=0.0 if least >= info.tiny / info.eps else inf,
    )


def cost_of_shifting(w: Weights, offset: np.ndarray, editor: Editor) -> Change:
    """What it costs to scale a sum before it is shifted.

    The sum rounds relative to its terms; a shift that is no larger than that costs less than a
    bit. What is larger may cancel, or be meant to round.
    """
    if not np.any(offset):
        return Change()
    with np.errstate(all="ignore"):
        beside = np.where(_live(w.largest) & (offset > 0), offset / w.error(editor), 0.0)
    return Change(bits=float(np.log2(1.0 + beside.max(initial=0.0))))


def _live(largest: np.ndarray) -> np.ndarray:
    """Which results' weights are of the size of the others'."""
    some = largest[largest > 0]
    return largest > LEAST_SHARE * (np.median(some) if some.size else 0.0)
