"""Pooling of regions that are given while running: RoiAlign and MaxRoiPool.

Along each axis a bin of a region is a few sample positions, so tables of positions and weights are
made per axis and region, and the pooling itself reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import scaled, shifted
from rutc.importer.ops.positions import column, element_at, position_in
from rutc.importer.ops.selection import most
from rutc.importer.ops.size_operands import number
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.reducer import lowest


@record
class _Samples:
    """Where the bins of all regions are sampled along one axis of the operand.

    `grid` {r} is the number of samples in a bin, `place` and `weight` {r, bin, sample, tap} the two
    elements around each sample (weight 0 for a sample outside), `counted` {r, bin, sample} says
    which samples there are, and `missed` {r, bin} whether a bin has samples outside of the operand
    that are not listed.
    """

    grid: Tensor
    place: Tensor
    weight: Tensor
    counted: Tensor
    missed: Tensor


@record
class _Sampling:
    """How RoiAlign samples: `ratio` samples in a bin along an axis, or 0 for one an element."""

    b: Builder
    rois: Tensor
    scale: float
    half_pixel: bool
    ratio: int

    def along(self, n: Index, bins: int, corner: int) -> _Samples:
        """The samples along an axis of `n` elements; corners are columns of the regions."""
        b, kind = self.b, self.rois.dtype

        def whole(e: Expr) -> Expr:
            return cast(e, kind)

        first, last = (self._corner(c) for c in (corner, corner + 2))
        size = b.map(lambda lo, hi: apply("sub", hi, lo), first, last)
        if not self.half_pixel:
            size = b.map(lambda e: apply("max", e, lit(1, kind)), size)
        width = b.map(lambda e: apply("div", e, lit(bins, kind)), size)
        if self.ratio:
            grid = b.map(lambda e: lit(self.ratio, kind), width)
        else:
            grid = b.map(lambda e: apply("ceil", e), width)
        r, p = b.axis(self.rois.shape[0], "r"), b.axis(bins, "p")

        def at(t: Tensor) -> Expr:
            return b.read(t, [r.index])

        start = b.nest(
            (r, p), apply("add", at(first), apply("mul", whole(IndexValue(p.index)), at(width)))
        )
        begin = b.read(start, [r.index, p.index])
        # A region may be much larger than the operand: list the samples from its edge on.
        skipped = b.nest((r, p), lit(0, kind))
        samples = Index.of(self.ratio)
        if not self.ratio:
            before = apply(
                "div", apply("mul", shifted(apply("neg", begin), -1), at(grid)), at(width)
            )
            known = apply("ge", at(grid), lit(1, kind))
            earlier = apply("max", shifted(apply("floor", before), -1), lit(0, kind))
            skipped = b.nest((r, p), apply("select", known, earlier, lit(0, kind)))
            samples = n + 6
        q = b.axis(samples, "q")
        listed = b.nest(
            (r, p, q),
            apply("add", b.read(skipped, [r.index, p.index]), whole(IndexValue(q.index))),
        )
        here = b.read(listed, [r.index, p.index, q.index])
        step = apply("mul", shifted(here, 0.5), at(width))
        position = b.nest((r, p, q), apply("add", begin, apply("div", step, at(grid))))
        counted = b.nest((r, p, q), apply("lt", here, at(grid)))
        place, weight = self._taps(position, counted, n)
        end = apply("add", begin, at(width))
        limit = apply("sub", end, apply("div", scaled(at(width), 0.5), at(grid)))
        low = apply("gt", b.read(skipped, [r.index, p.index]), lit(0, kind))
        missed = b.nest((r, p), apply("or", low, apply("gt", limit, cast(number(n), kind))))
        return _Samples(grid, place, weight, counted, missed)

    def _corner(self, column: int) -> Tensor:
        b, kind = self.b, self.rois.dtype
        r = b.axis(self.rois.shape[0], "r")
        scale = lit(self.scale, kind)
        y = b.nest((r,), apply("mul", b.read(self.rois, [r.index, column]), scale))
        return b.map(lambda e: shifted(e, -0.5), y) if self.half_pixel else y

    def _taps(self, position: Tensor, counted: Tensor, n: Index) -> tuple[Tensor, Tensor]:
        """(place, weight) of the two elements around every position."""
        b, kind = self.b, position.dtype
        last = cast(number(n - 1), kind)
        axes = b.axes(position.shape)
        t = b.axis(2, "t")
        here = [a.index for a in axes]
        at = b.read(position, here)
        clamped = apply("max", at, lit(0, kind))
        low = apply("min", apply("floor", clamped), last)
        tap = cast(IndexValue(t.index), kind)
        place = apply("min", apply("add", low, tap), last)
        part = apply(
            "select",
            apply("lt", low, last),
            apply("sub", clamped, low),
            lit(0, kind),
        )
        first = apply("eq", IndexValue(t.index), lit(0, DType.I64))
        weight = apply("select", first, apply("sub", lit(1, kind), part), part)
        inside = apply(
            "and", apply("ge", at, lit(-1, kind)), apply("le", at, cast(number(n), kind))
        )
        valid = apply("and", inside, b.read(counted, here))
        return (
            b.nest((*axes, t), cast(place, DType.I64)),
            b.nest((*axes, t), apply("select", valid, weight, lit(0, kind))),
        )


@operator("RoiAlign")
def roi_align(
    b: Builder,
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """out{r,c,p,q} = mean (or maximum) of interpolated samples of x[batch[r], c] in bin p, q.

    The maximum is taken over the weighted elements of all samples, as ONNX Runtime takes it.
    """
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        raise OperatorError(f"mode {coordinate_transformation_mode!r} is unknown")
    if mode not in ("avg", "max"):
        raise OperatorError(f"mode {mode!r} is unknown")
    if (x.rank, rois.rank) != (4, 2):
        raise OperatorError(f"the operand {x} and the regions {rois} have other ranks than 4 and 2")
    b.number(rois.shape[1], 4, "the number of coordinates of a region")
    height, width = x.shape[2:]
    kind = x.dtype
    wide = DType.F32 if kind.bits < 32 else kind
    rois = b.map(lambda e: cast(e, wide), rois)
    how = _Sampling(
        b, rois, spatial_scale, coordinate_transformation_mode == "half_pixel", sampling_ratio
    )
    rows = how.along(height, output_height, 1)
    columns = how.along(width, output_width, 0)
    x = b.map(lambda e: cast(e, wide), x)
    if mode == "max":
        y = _largest(b, x, batch, rows, columns)
    else:
        y = _mean(b, x, batch, rows, columns, dense=sampling_ratio == 0)
    return b.map(lambda e: cast(e, kind), y)


def _axes(b: Builder, x: Tensor, rows: _Samples, columns: _Samples) -> tuple[Axis, ...]:
    shape = (rows.place.shape[0], x.shape[1], rows.place.shape[1], columns.place.shape[1])
    return b.axes(shape, ("r", "c", "y", "x"))


def _mean(
    b: Builder, x: Tensor, batch: Tensor, rows: _Samples, columns: _Samples, *, dense: bool
) -> Tensor:
    r, c, p, q = _axes(b, x, rows, columns)
    count = apply("mul", b.read(rows.grid, [r.index]), b.read(columns.grid, [r.index]))
    count = apply("max", count, lit(1, x.dtype))
    if dense:
        total = _contracted(b, x, batch, rows, columns)
    else:
        element, taps = _weighted(b, x, batch, rows, columns, (r, c, p, q))
        total = b.nest((r, c, p, q), element, taps)
    out = b.axes(total.shape)
    share = b.nest((r,), count)
    return b.nest(out, apply("div", b.spread(total, out), b.read(share, [out[0].index])))


def _contracted(b: Builder, x: Tensor, batch: Tensor, rows: _Samples, columns: _Samples) -> Tensor:
    """The weighted sum with one weight for every element of an axis, one axis after the other."""
    r, c, p, q = _axes(b, x, rows, columns)
    h, w = b.axis(x.shape[2], "h"), b.axis(x.shape[3], "w")
    image = position_in(b, batch, [r.index], x.shape[0], signed=False)
    element = element_at(b, x, [image, c.index, h.index, w.index])
    tall = b.read(_dense(b, rows, x.shape[2]), [r.index, p.index, h.index])
    half = b.nest((r, c, p, w), apply("mul", tall, element), (h,))
    wide = b.read(_dense(b, columns, x.shape[3]), [r.index, q.index, w.index])
    part = b.read(half, [r.index, c.index, p.index, w.index])
    return b.nest((r, c, p, q), apply("mul", wide, part), (w,))


def _dense(b: Builder, samples: _Samples, n: Index) -> Tensor:
    """The weight of every element {r, bin, element}."""
    r, p = b.axes(samples.place.shape[:2])
    q, t = b.axes(samples.place.shape[2:])
    h = b.axis(n, "h")
    at = [r.index, p.index, q.index, t.index]
    weight = b.read(samples.weight, at)
    hit = apply("eq", b.read(samples.place, at), IndexValue(h.index))
    return b.nest((r, p, h), apply("select", hit, weight, lit(0, weight.dtype)), (q, t))


def _weighted(
    b: Builder,
    x: Tensor,
    batch: Tensor,
    rows: _Samples,
    columns: _Samples,
    out: Sequence[Axis],
) -> tuple[Expr, tuple[Axis, ...]]:
    """(weighted element, the axes of samples and taps)."""
    r, c, p, q = out
    taps = (*b.axes(rows.place.shape[2:]), *b.axes(columns.place.shape[2:]))
    tall = [r.index, p.index, taps[0].index, taps[1].index]
    wide = [r.index, q.index, taps[2].index, taps[3].index]
    image = position_in(b, batch, [r.index], x.shape[0], signed=False)
    places = b.read(rows.place, tall), b.read(columns.place, wide)
    element = element_at(b, x, [image, c.index, *places])
    weight = apply("mul", b.read(rows.weight, tall), b.read(columns.weight, wide))
    return apply("mul", weight, element), taps


def _largest(b: Builder, x: Tensor, batch: Tensor, rows: _Samples, columns: _Samples) -> Tensor:
    out = _axes(b, x, rows, columns)
    r, p, q = out[0], out[2], out[3]
    element, taps = _weighted(b, x, batch, rows, columns, out)
    listed = apply(
        "and",
        b.read(rows.counted, [r.index, p.index, taps[0].index]),
        b.read(columns.counted, [r.index, q.index, taps[2].index]),
    )
    most = b.nest(out, apply("select", listed, element, lowest(x.dtype)), taps, "max")
    axes = b.axes(most.shape)
    r, p, q = axes[0], axes[2], axes[3]
    value = b.spread(most, axes)
    zero = lit(0, x.dtype)
    missed = apply(
        "or",
        b.read(rows.missed, [r.index, p.index]),
        b.read(columns.missed, [r.index, q.index]),
    )
    value = apply("select", missed, apply("max", value, zero), value)
    fewest = apply("min", b.read(rows.grid, [r.index]), b.read(columns.grid, [r.index]))
    return b.nest(axes, apply("select", apply("lt", fewest, lit(1, x.dtype)), zero, value))


@operator("MaxRoiPool")
def max_roi_pool(
    b: Builder,
    x: Tensor,
    rois: Tensor,
    *,
    pooled_shape: Sequence[int],
    spatial_scale: float = 1.0,
) -> Tensor:
    """out{r,c,p,q} = max of x[rois[r, 0], c] in bin p, q of a region; 0 for an empty bin."""
    if (x.rank, rois.rank) != (4, 2):
        raise OperatorError(f"the operand {x} and the regions {rois} have other ranks than 4 and 2")
    b.number(rois.shape[1], 5, "the number of coordinates of a region, its image the first,")
    kind = DType.F32 if rois.dtype.bits < 32 else rois.dtype
    rois = b.map(lambda e: cast(e, kind), rois)
    tall = _bins(b, rois, 2, pooled_shape[0], x.shape[2], spatial_scale)
    wide = _bins(b, rois, 1, pooled_shape[1], x.shape[3], spatial_scale)
    r, c = b.axis(rois.shape[0], "r"), b.axis(x.shape[1], "c")
    p, q = b.axes(tuple(pooled_shape), ("y", "x"))
    images = b.map(lambda e: cast(e, DType.I64), column(b, rois, 0))
    image = position_in(b, images, [r.index], x.shape[0], signed=False)
    i, j = b.axes((_longest(b, tall, x.shape[2]), _longest(b, wide, x.shape[3])), ("i", "j"))
    places = _place(b, tall, (r, p, i)), _place(b, wide, (r, q, j))
    value = b.nest((r, c, p, q), element_at(b, x, [image, c.index, *places]), (i, j), "max")
    r, c, p, q = out = b.axes(value.shape)

    def empty(bins: tuple[Tensor, Tensor], bin_: Axis) -> Expr:
        first, last = (b.read(t, [r.index, bin_.index]) for t in bins)
        return apply("ge", first, last)

    nothing = apply("or", empty(tall, p), empty(wide, q))
    return b.nest(out, apply("select", nothing, lit(0, x.dtype), b.spread(value, out)))


def _longest(b: Builder, bins: tuple[Tensor, Tensor], n: Index) -> Index:
    """The most elements, of `n`, that any bin of a region has."""
    r, p = b.axes(bins[0].shape)
    first, last = (b.read(t, [r.index, p.index]) for t in bins)
    longest = b.nest((), apply("sub", last, first), (r, p), "max")
    # There may be no region.
    return b.count(b.map(lambda e: apply("max", e, lit(0, DType.I64)), longest), "bin", most(b, n))


def _place(b: Builder, bins: tuple[Tensor, Tensor], at: Sequence[Axis]) -> Expr:
    """The element number i of a bin {r, p, i}; behind its last one this one again, or any."""
    r, p, i = b.axes([a.extent for a in at])
    first, last = (b.read(t, [r.index, p.index]) for t in bins)
    here = apply("add", first, IndexValue(i.index))
    place = apply("max", apply("min", here, shifted(last, -1)), lit(0, DType.I64))
    return b.read(b.nest((r, p, i), place), [a.index for a in at])


def _bins(
    b: Builder, rois: Tensor, column: int, count: int, n: Index, scale: float
) -> tuple[Tensor, Tensor]:
    """The first element of every bin {r, bin} along an axis, and the one after its last."""
    kind = rois.dtype
    r = b.axis(rois.shape[0], "r")

    def rounded(at: int) -> Tensor:
        y = b.nest((r,), apply("mul", b.read(rois, [r.index, at]), lit(scale, kind)))
        # Halves go away from zero.
        return b.map(
            lambda e: apply("mul", apply("sign", e), apply("floor", shifted(apply("abs", e), 0.5))),
            y,
        )

    first, last = rounded(column), rounded(column + 2)
    size = b.map(
        lambda lo, hi: apply("max", shifted(apply("sub", hi, lo), 1), lit(1, kind)), first, last
    )
    width = b.map(lambda e: apply("div", e, lit(count, kind)), size)
    edges: list[Tensor] = []
    for offset, how in ((0, "floor"), (1, "ceil")):
        r, p = b.axis(rois.shape[0], "r"), b.axis(count, "p")
        at = cast(IndexValue(p.index + offset), kind)
        edge = apply(how, apply("mul", at, b.read(width, [r.index])))
        place = cast(apply("add", edge, b.read(first, [r.index])), DType.I64)
        inside = apply("min", apply("max", place, lit(0, DType.I64)), IndexValue(n))
        edges.append(b.nest((r, p), inside))
    return edges[0], edges[1]
