"""Broadcasting where a size of 1 may be found only when the model runs.

Two sizes that are one expression are equal, and one that cannot be 1 is the result's. Otherwise:

    %x{a} + %y{c}      ->  bind p = (a != 1);   bind q = (c != 1)         extent(e) = max(a, c)
                           %z{e} = %x[a=e*p] + %y[c=e*q]

A stride of 0 or 1 like p is bound once for each pair of sizes; where the size is neither 1 nor the
result's, the run ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rutc.importer.building.size_builder import SizeBuilder
from rutc.importer.building.tensor import Shape, shape_text
from rutc.importer.free_sizes.open_sizes import at_most, may_broadcast
from rutc.importer.free_sizes.overflow import equal
from rutc.tensor_ir import DType, Index, IndexValue, Lit, apply
from rutc.tensor_ir.indices.affine import ONE, ZERO, Range, maximum, minimum


def broadcast(b: SizeBuilder, shapes: Sequence[Shape]) -> Shape | None:
    """The shape that all broadcast to, the strides to it bound; None where there is none."""
    rank = max(map(len, shapes), default=0)
    columns = [
        [s[k] for s in shapes if (k := i - (rank - len(s))) >= 0 and s[k] != ONE]
        for i in range(rank)
    ]
    found = [_common(b, list(dict.fromkeys(column)), shapes) for column in columns]
    made = tuple(e for e in found if e is not None)
    return made if len(made) == rank else None


def broadcast_to(b: SizeBuilder, shape: Shape, whole: Shape) -> bool:
    """Whether a shape may broadcast to one of no lower rank; the strides to it are bound."""
    if len(shape) > len(whole):
        return False
    for e, w in zip(shape, whole[len(whole) - len(shape) :], strict=True):
        if e in (ONE, w):
            continue
        apart = (e - w).bounds(b.ranges)
        if apart is not None and not apart[0] <= 0 <= apart[1] and not may_be_one(b, e):
            return False
        learn_stride(b, e, w, (shape, whole))
    return True


def _common(b: SizeBuilder, extents: list[Index], shapes: Sequence[Shape]) -> Index | None:
    if len(extents) < 2:
        return extents[0] if extents else ONE
    for whole in extents:
        if all(e == whole or (e, whole) in b.strides for e in extents):
            return whole
    for e in extents:
        for other in extents:
            at_most(b, e, other)
    for other in extents[1:]:
        may_broadcast(b, extents[0], other)
    certain = [e for e in extents if not may_be_one(b, e)]
    whole = (
        next((e for e in certain if e.is_const), certain[0]) if certain else _largest(b, extents)
    )
    for e in certain:
        if e.is_const and whole.is_const and e != whole:
            return None
    for e in certain:
        whole = whole if e == whole or whole.is_const else b.same(whole, e)
    for e in extents:
        if e != whole:
            learn_stride(b, e, whole, shapes)
    return whole


def may_be_one(b: SizeBuilder, extent: Index) -> bool:
    """Whether a size may turn out to be 1."""
    return any(bounds is None or bounds[0] <= 1 <= bounds[1] for bounds in _cases(b, extent))


def _cases(b: SizeBuilder, extent: Index) -> Iterator[Range | None]:
    """The bounds of a size where all that it follows from is some, and where one of these is 0."""
    names = sorted(n for n in extent.names() if b.ranges[n][0] < 1)
    yield extent.bounds({**b.ranges, **{n: (1, max(b.ranges[n][1], 1)) for n in names}})
    for name in names:
        yield extent.subs({name: ZERO}).bounds(b.ranges)


def _largest(b: SizeBuilder, extents: Sequence[Index]) -> Index:
    """The largest of the sizes, or 0 where one is 0."""
    known = {b.equal.get((e, extents[0]), e) for e in extents}
    if len(known) == 1:
        return known.pop()
    whole, least = extents[0], extents[0]
    for e in extents[1:]:
        whole, least = maximum(whole, e, b.ranges), minimum(least, e, b.ranges)
    bounds = least.bounds(b.ranges)
    if (bounds is not None and bounds[0] > 0) or _empty_together(b, extents):
        return whole
    return whole * minimum(maximum(least, 0, b.ranges), 1, b.ranges)


def _empty_together(b: SizeBuilder, extents: Sequence[Index]) -> bool:
    """Whether each size is 0 where one of the symbols in them is, and nowhere else."""
    names = {n for e in extents for n in e.names() if b.ranges[n][0] < 1}
    for e in extents:
        some, *none = _cases(b, e)
        if some is None or some[0] < 1 or len(none) < len(names) or set(none) != {(0, 0)}:
            return False
    return True


def learn_stride(b: SizeBuilder, extent: Index, whole: Index, shapes: Sequence[Shape]) -> None:
    """Binds the stride from one element of an axis to the next where it is spread over `whole`."""
    if (extent, whole) in b.strides or (extent, whole) in b.equal or (whole, extent) in b.equal:
        return
    at_most(b, extent, whole)
    at_most(b, whole, extent)
    may_broadcast(b, extent, whole)
    one, zero = Lit(1, DType.I64), Lit(0, DType.I64)
    is_one = apply("eq", IndexValue(extent), one)
    fits = equal(extent, whole, b.ranges)
    if may_be_one(b, extent):
        fits = apply("or", is_one, fits)
    texts = " and ".join(map(shape_text, shapes))
    message = f"the shapes {texts} do not broadcast: {extent} and {whole} differ"
    stride = apply("select", is_one, zero, one)
    b.strides[extent, whole] = b.size(b.unless_failed(stride, fits, message), "step", 1)
