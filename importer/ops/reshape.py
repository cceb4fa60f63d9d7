"""Reshape: how the axes of two shapes with the same elements in the same order correspond.

Axes are matched in groups of equal products from the left, so that a pure split reads
`x[e=h*64 + d]` and a pure merge `x[h=e // 64, d=e % 64]`; only within a group of several axes on
both sides is a position linearised.
"""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Shape, Tensor, shape_text
from rutc.tensor_ir import DType, Index, Lit
from rutc.tensor_ir.indices.affine import ONE, ZERO, floordiv, maximum, mod, product

Group = tuple[list[int], list[int]]


def reshape(b: Builder, x: Tensor, shape: Shape) -> Tensor:
    """`x` with another shape of as many elements. Raises OperatorError for any other."""
    if x.array is not None and all(e.is_const for e in shape):
        if product(x.shape) != product(shape):
            raise _misfit(x, shape)
        return b.constant(x.array.reshape([e.const for e in shape]), x.dtype)
    groups = _groups(x.shape, shape)
    if groups is None:
        if all(e.is_const for e in (*x.shape, *shape)):
            raise _misfit(x, shape)
        return linear(b, x, shape)
    if product(shape) == ZERO:
        return b.nest(b.axes(shape), lit(0, x.dtype))
    if all(len(old) == len(new) == 1 for old, new in groups):
        axes = list(b.axes((1,) * len(shape)))
        for (old,), (new,) in groups:
            axes[new] = x.axes[old]
        return b.reshaped(x, axes)

    def coords(*out: Index) -> Sequence[Index]:
        at = [ZERO] * x.rank
        for old, new in groups:
            if len(old) == len(new) == 1:
                at[old[0]] = out[new[0]]
                continue
            position = ZERO
            for n in new:
                position = position * shape[n] + out[n]
            for o in reversed(old[1:]):
                at[o] = mod(position, x.shape[o], b.ranges)
                position = floordiv(position, x.shape[o], b.ranges)
            at[old[0]] = position
        return at

    return b.view(x, shape, coords)


def linear(b: Builder, x: Tensor, shape: Shape) -> Tensor:
    """`x` with a shape of as many elements, of which nothing else is known."""

    def coords(*out: Index) -> Sequence[Index]:
        position = ZERO
        for o, e in zip(out, shape, strict=True):
            position = position * e + o
        at: list[Index] = []
        for e in reversed(x.shape[1:]):
            at.append(mod(position, e, b.ranges))
            position = floordiv(position, e, b.ranges)
        return [position, *reversed(at)] if x.rank else []

    zero = Lit("", x.dtype) if x.dtype is DType.STRING else lit(0, x.dtype)
    if ZERO in x.shape:
        return b.nest(b.axes(shape), zero)
    return b.view(x, shape, coords, fill=zero)


def _misfit(x: Tensor, shape: Shape) -> OperatorError:
    return OperatorError(f"{x} cannot be reshaped to {shape_text(shape)}")


def _groups(old: Shape, new: Shape) -> list[Group] | None:
    """The least runs of axes with equal products, units left out; None if the totals differ."""
    if product(old) == ZERO and product(new) == ZERO:
        return []
    left = [i for i, e in enumerate(old) if e != ONE]
    right = [i for i, e in enumerate(new) if e != ONE]
    groups: list[Group] = []
    i = j = 0
    while i < len(left) or j < len(right):
        found = _shortest(old, new, left[i:], right[j:])
        if found is None:
            return None
        groups.append(found)
        i, j = i + len(found[0]), j + len(found[1])
    return groups


def _shortest(old: Shape, new: Shape, left: list[int], right: list[int]) -> Group | None:
    """The shortest runs from the front whose products are equal."""
    sizes: dict[Index, int] = {}
    size = ONE
    for count, i in enumerate(left, 1):
        size = size * old[i]
        sizes.setdefault(size, count)
    size = ONE
    for count, j in enumerate(right, 1):
        size = size * new[j]
        if size in sizes:
            return left[: sizes[size]], right[:count]
    return None


def resolve(b: Builder, x: Tensor, target: Sequence[Index], *, allowzero: bool) -> Shape:
    """The shape that Reshape's operand means: 0 keeps an extent, -1 takes what is left.

    It may have another number of elements than `x`, in runs of some sizes or in all.
    """
    out: list[Index] = []
    for i, e in enumerate(target):
        if e == ZERO and not allowzero:
            if i >= x.rank:
                raise OperatorError(f"{shape_text(target)} keeps axis {i}, which {x} does not have")
            out.append(x.shape[i])
        else:
            out.append(e)
    open_ = [i for i, e in enumerate(out) if e.is_const and e.const == -1]
    if len(open_) > 1:
        raise OperatorError(f"{shape_text(target)} has more than one -1")
    if open_:
        rest = product(e for i, e in enumerate(out) if i != open_[0])
        total = x.size
        if rest.is_const and rest.const == 0:
            raise OperatorError(f"-1 in {shape_text(target)} has no single value")
        whole = floordiv(total, rest, b.ranges)
        if whole * rest != total:
            if total.is_const and rest.is_const:
                raise _misfit(x, tuple(target))
            # The run tells whether nothing is left over.
            whole = floordiv(total, maximum(rest, ONE, b.ranges), b.ranges)
        out[open_[0]] = whole
    return tuple(out)
