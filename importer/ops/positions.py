"""Positions along an axis that elements tell: what gathers read at and scatters write at.

One out of range ends the run, as in ONNX Runtime, which a routine sees to: it takes the worst
position and gives the length of the axis, with which the positions are then made.

    %w = max{i} w(%at[i]);   %n = call check_position(%w, %l);   %x[d=%at[i] + (%at[i] < 0)*%n]

w(p) is 2*p, or 2*(-1 - p) + 1 for a negative p: in order of how far out it lies, and its sign.
Nothing is checked that is known to be in range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.free_sizes.open_sizes import at_most
from rutc.importer.ops.operands import axis_of, indices
from rutc.importer.ops.value_range import affine_in, as_index, definition, inside
from rutc.tensor_ir import Call, Cast, Coord, DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, minimum

MOST = (1 << 61) - 1
"""Positions farther out count as this one."""


def gathered(b: Builder, x: Tensor, at: Tensor, axis: int, *, trusted: bool = False) -> Tensor:
    """x[.., at[..], ..] along an axis; `trusted` positions are in range, whatever computed them."""
    a = axis_of(axis, x.rank)
    shape = (*x.shape[:a], *at.shape, *x.shape[a + 1 :])
    axes = b.axes(shape)
    if any(e == ZERO for e in shape):
        return b.empty(axes, x.dtype)
    inner = axes[a : a + at.rank]
    position = position_in(b, at, [i.index for i in inner], x.shape[a], trusted=trusted)
    before, after = axes[:a], axes[a + at.rank :]
    coords: list[Coord] = [i.index for i in before]
    coords += [position, *(i.index for i in after)]
    return b.nest(axes, element_at(b, x, coords))


def position_in(
    b: Builder,
    at: Tensor,
    coords: Sequence[Index],
    extent: Index,
    *,
    trusted: bool = False,
    signed: bool = True,
) -> Coord:
    """The position at[coords] along an axis.

    Negative ones count from its end, or with `signed=False` are out of range.

    Raises:
        OperatorError: A position is known to be out of range.
    """
    least = -extent if signed else ZERO
    if at.known is not None and at.known.size == 1:
        (i,) = indices(at, "the position")
        place = _place(b, i, extent)
        if place is not None:
            if b.inside(place, extent) and (signed or place is i):
                return place
            beyond = (place - extent).bounds(b.ranges)
            below = place.is_const and place.const < 0
            if below or (beyond is not None and beyond[0] >= 0):
                raise OperatorError(f"the index {i} is out of range for {extent} elements")
    if at.array is not None and at.array.size and extent.is_const:
        low, high = int(at.array.min()), int(at.array.max())
        for p in (low, high):
            if not least.const <= p < extent.const:
                raise OperatorError(f"the index {p} is out of range for {extent} elements")
        line = affine_in(np.where(at.array < 0, at.array + extent.const, at.array), coords)
        if line is not None and b.inside(line, extent):
            return line
    element = cast(b.read(at, coords), DType.I64)
    found = as_index(b, element)
    place = None if found is None else _place(b, found, extent)
    if place is not None and b.inside(place, extent) and (signed or place is found):
        return place
    negative = apply("lt", element, lit(0, DType.I64))
    if trusted or inside(b, element, least, extent):
        if extent == ONE:
            return ZERO
        if not signed or (at.array is not None and bool((at.array >= 0).all())):
            return element
        return apply("select", negative, apply("add", element, IndexValue(extent)), element)
    _narrow(b, at, extent)
    length = checked_length(b, at, extent, signed=signed)
    # The position must need the length, or nothing would be checked where it is found to be known.
    kept = apply("min", element, length)
    return apply("select", negative, apply("add", element, length), kept) if signed else kept


def _place(b: Builder, i: Index, extent: Index) -> Index | None:
    """A position from the beginning, of one that may count from the end; None if it may be both."""
    bounds = i.bounds(b.ranges)
    if bounds is None or bounds[0] < 0 <= bounds[1]:
        return None
    return i if bounds[0] >= 0 else i + extent


def _narrow(b: Builder, at: Tensor, extent: Index) -> None:
    """Tell of a size that nobody stated that positions 0, 1, .. up to it are read."""
    bodies = definition(b, at.name)
    e = bodies[0] if bodies is not None and len(bodies) == 1 else None
    while isinstance(e, Cast) and e.dtype.is_int:
        e = e.arg
    if isinstance(e, IndexValue) and extent.is_const and e.index.as_var in b.extents:
        size = b.extents[e.index.as_var]
        at_most(b, minimum(extent, size), size)


def checked_length(b: Builder, at: Tensor, extent: Index, *, signed: bool) -> Expr:
    """The length of an axis, or the end of the run where an element of `at` is no index of it."""
    bound = b.axes(at.shape)
    p = b.read(at, [a.index for a in bound])
    low, high = (b.read(b.nest((), p, bound, how), []) for how in ("min", "max"))
    lowest, highest = cast(low, DType.I64), cast(high, DType.I64)
    farther = apply("max", _farness(lowest, signed=signed), _farness(highest, signed=signed))
    # Of no elements, the least one is more than the largest.
    none = apply("gt", lowest, highest)
    worst = b.nest((), apply("select", none, lit(-1, DType.I64), farther))
    length = b.nest((), IndexValue(extent))
    out = b.tensor(DType.I64, ())
    attributes = (("offset", 0 if signed else MOST),)
    names = (b.defined(worst).name, b.defined(length).name)
    b.nodes.append(Call((b.value(out),), "check_position", names, attributes, b.origin))
    return b.read(out, [])


def _farness(p: Expr, *, signed: bool) -> Expr:
    """How far out a position is, times 2, and 1 for one that counts from the end.

    Of those on one side, the one farther from 0 is farther out.
    """
    below = apply("lt", p, lit(0, DType.I64))
    far = apply("min", apply("select", below, apply("bitnot", p), p), lit(MOST, DType.I64))
    # Out of range where negative ones are not allowed.
    outside = far if signed else apply("add", far, lit(MOST, DType.I64))
    twice = apply("mul", apply("select", below, outside, far), lit(2, DType.I64))
    return apply("add", twice, cast(below, DType.I64))


def checked_lengths(b: Builder, lengths: Tensor, most: Index) -> Tensor:
    """`lengths`, or the end of the run where one is less than 0 or more than `most`.

    Raises:
        OperatorError: One is known to be.
    """
    if lengths.array is not None and most.is_const:
        outside = (lengths.array < 0) | (lengths.array > most.const)
        if outside.any():
            length = lengths.array[outside].reshape(-1)[0]
            raise OperatorError(f"the length {length} is not from 0 to {most}")
        return lengths
    axes = b.axes(lengths.shape)
    # A length is a place among the ends of the elements, and the beginning.
    found = position_in(b, lengths, [a.index for a in axes], most + 1, signed=False)
    hint = b.hints.get(lengths.name)
    return b.nest(axes, IndexValue(found) if isinstance(found, Index) else found, hint=hint)


def column(b: Builder, at: Tensor, k: int) -> Tensor:
    """at[.., k]."""
    if at.array is not None:
        return b.constant(at.array[..., k])
    return b.view(at, at.shape[:-1], lambda *here: [*here, Index.of(k)])


def element_at(b: Builder, x: Tensor, coords: Sequence[Coord], *, padded: bool = False) -> Expr:
    """The element of `x` at positions, which all count in the run, also those along 1 element.

    They are inside, or `x` is `padded` with 0.
    """
    zero = lit(0, x.dtype)
    element = b.read(x, coords, zero if padded else None)
    for c, a in zip(coords, x.axes, strict=True):
        if a.dim is None and not isinstance(c, Index):
            here = apply("eq", c, lit(0, DType.I64))
            element = apply("select", here, element, zero)
    return element
