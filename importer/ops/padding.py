"""Pad: elements put around a tensor, or cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.operands import axes_of, ints
from rutc.importer.ops.run_time_axes import for_every_axis
from rutc.importer.ops.size_operands import bound, elements, number
from rutc.importer.ops.size_operands import sizes as sizes_of
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply
from rutc.tensor_ir.indices.affine import ONE, ZERO, maximum, minimum, mod


@operator("Pad")
def pad(
    b: Builder,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    """`x` with elements put before and after each axis (or with negative pads cut off)."""
    if axes is not None and axes.known is None:
        places = elements(b, axes, "axes")
        given = elements(b, pads, "pads", 2 * len(places))
        sides = (given[: len(places)], given[len(places) :])
        every = for_every_axis(b, places, sides, (0, 0), x.rank)
        flat = [pair[k] for k in range(2) for pair in every]
        chosen = tuple(range(x.rank))
        amounts: Sequence[Index] = [bound(b, e, "pads", MOST, -MOST, usual=ZERO) for e in flat]
    else:
        chosen = axes_of(ints(axes, "axes"), x.rank) if axes is not None else tuple(range(x.rank))
        amounts = _amounts(b, pads, chosen)
    begin = dict(zip(chosen, amounts[: len(chosen)], strict=True))
    end = dict(zip(chosen, amounts[len(chosen) :], strict=True))
    if all(n == ZERO for n in amounts):
        return x
    shape = [
        e if i not in begin else _padded(b, e + begin[i] + end[i]) for i, e in enumerate(x.shape)
    ]
    if mode == "constant":
        return _filled(b, x, shape, begin, value)
    if mode not in ("reflect", "edge", "wrap"):
        raise OperatorError(f"mode {mode!r} is unknown")

    def source(o: Index, i: int) -> Index:
        if i not in begin:
            return o
        before, after = begin[i], end[i]
        # What negative pads cut off is not repeated.
        cut = maximum(-before, 0, b.ranges)
        n = x.shape[i] - cut - maximum(-after, 0, b.ranges)
        position = o - maximum(before, 0, b.ranges)
        if before.is_const and after.is_const and before.const <= 0 and after.const <= 0:
            return position + cut
        if not n.is_const:
            # There may be no element; then nothing is read, but divisions are made.
            n = maximum(n, 1, b.ranges)
        if mode == "edge":
            return minimum(maximum(position, 0, b.ranges), n - 1, b.ranges) + cut
        if mode == "wrap":
            return mod(position, n, b.ranges) + cut
        if n == ONE:
            return cut
        period = maximum(n - 1, 1, b.ranges) * 2
        folded = mod(position, period, b.ranges)
        # Of one element, to which the period gives two, only the first is there.
        return minimum(minimum(folded, period - folded, b.ranges), n - 1, b.ranges) + cut

    blank = None if all(n.is_const for n in amounts) else lit(0, x.dtype)
    return b.view(x, shape, lambda *out: [source(o, i) for i, o in enumerate(out)], fill=blank)


def _amounts(b: Builder, pads: Tensor, chosen: Sequence[int]) -> Sequence[Index]:
    """The pads before and after the chosen axes."""
    count = 2 * len(chosen)
    amounts = sizes_of(b, pads, "pads", -MOST, count, usual=count * [ZERO])
    if len(amounts) != 2 * len(chosen):
        raise OperatorError(f"{len(amounts)} pads for {len(chosen)} axes")
    return amounts


def _padded(b: Builder, extent: Index) -> Index:
    """An extent with its pads, which the program checks if it computes them."""
    if not extent.names() & b.bound.keys():
        return extent
    return bound(b, number(extent), "padded", usual=extent)


def _filled(
    b: Builder, x: Tensor, shape: Sequence[Index], begin: Mapping[int, Index], value: Tensor | None
) -> Tensor:
    """`x` from `begin` on, with one value (0 by default) around it that may be known in runs only.

    The dims are those of the `shape`.
    """
    out = b.axes(shape)
    at = [a.index - begin.get(i, 0) for i, a in enumerate(out)]
    if value is None:
        return b.nest(out, b.read(x, at, lit(0, x.dtype)))
    if value.array is not None:
        element = value.array.reshape(-1)[0]
        is_text = x.dtype is DType.STRING
        fill = Lit(str(element), x.dtype) if is_text else lit(element.item(), x.dtype)
        return b.nest(out, b.read(x, at, fill))
    inside: Expr = lit(1, DType.BOOL)
    for c, e in zip(at, x.shape, strict=True):
        if not b.inside(c, e):
            low = apply("ge", IndexValue(c), lit(0, DType.I64))
            high = apply("lt", IndexValue(c - e), lit(0, DType.I64))
            inside = apply("and", inside, apply("and", low, high))
    padding = b.read(value, [ZERO] * value.rank)
    return b.nest(out, apply("select", inside, b.read(x, at, lit(0, x.dtype)), padding))
