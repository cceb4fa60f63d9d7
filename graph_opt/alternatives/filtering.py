"""Filters over small windows become products of transformed tiles, where that is cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import ceil, log2, prod

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives import Offer
from rutc.graph_opt.alternatives.bf16_pairs import are_neighbours
from rutc.graph_opt.alternatives.ways import ChoosesWays, Way
from rutc.graph_opt.bf16_parts import parts_of
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.leeway import Looser
from rutc.graph_opt.minimal_filter import (
    Bounds,
    Filter,
    bounds,
    points_shape,
    stays_finite,
    transform_weights,
    transformed,
)
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.rounding import rounds
from rutc.graph_opt.weighted import weighted
from rutc.tensor_ir import (
    Const,
    Data,
    DType,
    Expr,
    Index,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
    cast,
)
from rutc.tensor_ir.indices.affine import floordiv, mod
from rutc.tensor_ir.machine import Machine

MOST_GROWTH = 4.0
"""How much larger than the weights the transformed weights may be."""
UNIT_STRIDE = range(1, 2)
UNIT_POINTS = (4, 6)
"""Points of the filters to consider for windows of unit stride."""
SAID_IN_BF16 = " in bf16"
"""What the name of a filter ends in whose factors are rounded."""
MOST_FILTERED = 2
"""Window dims to transform: with each, errors and tiles at the edges grow."""


@record
class Window:
    """A bound dim `tap` that the input is read at along its dim `along`, an offset away.

    %x[along = stride * out + tap + offset]
    """

    tap: str
    out: str
    along: str
    offset: int
    axis: str
    """The dim of the weights that is read at `tap`."""
    stride: int = 1


@rounds(
    changes="Sums over small windows are made of fewer products of sums, whose errors are relative "
    "to the largest input of a tile (filtering.md).",
    refused="It gains too little, weights are not finite, or inputs of the verification are spread "
    "too far within a tile.",
)
@matches("reduction")
@record
class MinimalFiltering(ChoosesWays["Filtered"]):
    """A sum over a small window becomes sums over channels at fewer points per output.

    %y{o,z} = sum{c,k} %x[c, x=z+k-1 else 0] * %w[c, k, o]
      ->  %x.points{c,p,t} = select(p == 0, %x[c, x=2*t+1 else 0] - .., ..)     (B^T d, per tile t)
          %y.points{o,p,t} = sum{c} %x.points[c, p, t] * %w.points[c, p, o]
          %y{o,z} = select(z % 2 == 0, %y.points[o, p=0, t=z//2] + .., ..)      (A^T m)

    With 2 (or 4) outputs per tile of a window of 3, it takes 4/6 (6/12) of the products per dim.
    For one or two dims of the window, where the estimated time is less than `share` of the direct
    sum's, and `saving` cycles less: constants and code are larger. Of filters that take about as
    long, the one whose errors grow less is taken: a bit of them is worth `bit` of the time. The
    inputs of the values that `spread` names differ so much within a tile that only filters are
    taken whose outputs depend on nothing outside of their own windows.

    Errors are relative to the largest input of a tile: they grow up to twofold on average where
    inputs are of one magnitude, and hide what is far below (`minimal_filter.Bounds`). An input that
    is no finite number makes NaN of the tiles that it is in.

    If factors are `rounded` to bf16, as pairs of their products are added up then, tiles and
    weights are so once they are transformed: where all windows are filtered, and lose no more than
    `most_bits` by it, or are `looser`; of sums that `only` names, if it names any.
    """

    share: float = 0.8
    saving: float = 40_000.0
    bit: float = 0.02
    spread: tuple[str, ...] = ()
    rounded: bool = False
    most_bits: float = 1.0
    looser: Looser = ()
    only: tuple[str, ...] | None = None

    def may_choose(self, way: Way[Filtered]) -> bool:
        """Whether inputs of the value are spread so that it needs another filter."""
        filters = way.form.filters.values()
        return way.offer.value not in self.spread or all(x.reach == x.taps for x in filters)

    def weight(self, way: Way[Filtered]) -> float:
        """The cycles, and more for errors."""
        return way.offer.cost * (1 + self.bit * lost_bits(way.form.filters))

    def choice(self, n: Node, editor: Editor) -> Way[Filtered] | Reason:
        """What is filtered how, or why nothing."""
        found = super().choice(n, editor)
        if isinstance(found, Reason) or found.form.const.data.is_finite:
            return found
        return Reason(f"not all of %{found.form.const.out.name} is finite")

    def made(self, form: Filtered, editor: Editor) -> tuple[Node, ...]:
        """The weights and three nests."""
        return filtered(form, editor)

    def ways(self, n: Node, editor: Editor) -> Sequence[Way[Filtered]] | Reason:
        """Every filter of a nest."""
        if not isinstance(n, Nest) or not n.is_sum:
            return Reason("not a sum")
        operands = weighted(n, editor)
        if isinstance(operands, Reason):
            return operands
        source, weights, const = operands
        windows = windows_of(n, source, weights, editor)
        if not windows:
            return Reason("no bound dim is a window of unit stride")
        work = Work(n, source, const, tuple(windows), editor, self.machine)
        known = [f for f in filters_of(windows, editor) if work.growth(f) <= MOST_GROWTH]
        if not known:
            return Reason("its windows are too long")
        cycles = [(work.cycles(f), f, False) for f in known]
        able = self.rounded and (self.only is None or n.out.name in self.only)
        if able and are_neighbours(n, source, weights, editor, self.machine):
            faster = self.machine.pairs_by_singles
            pairs = replace(work, faster=faster, bytes=float(DType.BF16.bytes))
            taken = (f for f in known if len(f) == len(windows) and self._may_round(n, f))
            cycles += [(pairs.cycles(f), f, True) for f in taken]
        direct = work.cycles({})
        return [
            Way(
                Offer(n.out.name, said(f, rounded=rounded), each, direct),
                Filtered(n, source, weights, const, f, rounded),
            )
            for each, f, rounded in cycles
        ]

    def _may_round(self, n: Nest, filters: Mapping[Window, Filter]) -> bool:
        """Whether a sum may lose what it does by filters of rounded factors."""
        own = n.out.name, said(filters, rounded=True)
        assigned = self.assigned is not None and self.assigned.has(*own)
        return assigned or own in self.looser or lost_bits(filters) <= self.most_bits


def said(filters: Mapping[Window, Filter], *, rounded: bool = False) -> str:
    """The name of an algorithm: `filter ky by 4, kx by 4` has 4 x 4 outputs a tile."""
    named = "filter " + ", ".join(f"{w.tap} by {f.outputs}" for w, f in filters.items())
    return named + SAID_IN_BF16 if rounded else named


@record
class Filtered:
    """A sum that becomes sums at fewer points."""

    nest: Nest
    source: Read
    weights: Read
    const: Const
    filters: Mapping[Window, Filter]
    rounded: bool = False
    """Whether what is transformed is rounded to bf16."""

    def bounds(self) -> Bounds:
        """What the filters may cost."""
        axes = {self.const.axes.index(w.axis): f for w, f in self.filters.items()}
        summed = {d for d, c in index_coords(self.weights) if c.as_var in self.nest.bound}
        sums = tuple(i for i, d in enumerate(self.const.axes) if d in summed and i not in axes)
        return bounds(axes, self.const.data.array, sums)


def lost_bits(filters: Mapping[Window, Filter]) -> float:
    """The bits that the worst output of a tile loses, where inputs are of one magnitude."""
    return log2(prod(f.typical for f in filters.values()))


def windows_of(
    n: Nest, source: Read, weights: Read, editor: Editor, strides: range = UNIT_STRIDE
) -> list[Window]:
    """The bound dims along which the source is read as a window of such a stride."""
    coords = index_coords(source)
    found: list[Window] = []
    for axis, loop in index_coords(weights):
        tap = loop.as_var
        at = [(d, c) for d, c in coords if tap in c.names()]
        if tap not in n.bound or len(at) != 1 or editor.size((tap,)) is None:
            continue
        d, c = at[0]
        rest = c - Index.of(tap)
        out = next(iter(rest.names()), None)
        stride = rest.coefficient(out) if out is not None else None
        if out is None or stride is None or out not in n.out.dims or stride not in strides:
            continue
        if rest != Index.of(out) * stride + rest.const:
            continue
        elsewhere = [x for e, x in (*coords, *index_coords(weights)) if e != d or x != c]
        if any(out in x.names() for x in elsewhere):
            continue
        found.append(Window(tap, out, d, rest.const, axis, stride))
    return found


def filters_of(windows: list[Window], editor: Editor) -> Iterator[dict[Window, Filter]]:
    """The filters to consider for every window; windows without one are summed directly."""
    sizes: list[list[Filter | None]] = []
    for w in windows:
        taps = editor.size((w.tap,)) or 0
        sizes.append([None, *_filters(taps, w.stride)])
    for choice in product(*sizes):
        chosen = {w: f for w, f in zip(windows, choice, strict=True) if f is not None}
        if 1 <= len(chosen) <= MOST_FILTERED and all(f.outputs > 1 for f in chosen.values()):
            yield chosen


@cache
def _filters(taps: int, stride: int) -> tuple[Filter, ...]:
    """The filters of windows of such a stride: a few outputs at a time, of several taps.

    They are the same objects each time, which have computed their matrices once.
    """
    if stride == 1:
        return tuple(Filter(n - taps + 1, taps) for n in UNIT_POINTS if 2 <= taps < n)
    # Every phase has two taps at most.
    return (Filter(2, taps, stride),) if stride < taps < 2 * stride + 1 else ()


@record
class Work:
    """What the nest costs, in cycles of one core, with some of its windows filtered.

    `faster` is how many products a sum makes for each one of f32.
    """

    nest: Nest
    source: Read
    const: Const
    windows: tuple[Window, ...]
    editor: Editor
    machine: Machine
    faster: float = 1.0
    bytes: float = 4.0
    """Bytes of an element of what is transformed, as far as it goes beyond the second cache."""

    def growth(self, filters: Mapping[Window, Filter]) -> float:
        """The transformed weights' size in sizes of the weights."""
        return prod(f.points / f.taps for f in filters.values())

    def cycles(self, filters: Mapping[Window, Filter]) -> float:
        """The time of the sum, or of the transforms and the sums that take its place."""
        loops = {d: self._least(d) for d in self.nest.dims}
        loops |= {w.out: max(self.editor.typical((w.out,)), 1) for w in self.windows}
        for w, f in filters.items():
            loops[w.out] = ceil(loops[w.out] / f.outputs)
            loops[w.tap] = f.points
        mine = {v for _, c in index_coords(self.source) for v in c.names()}
        kept = {v for _, c in index_coords(self.source) if (v := c.as_var) is not None}
        wide = prod(loops[d] for d in self.nest.out.dims if d not in mine)
        tiles = prod(loops[d] for d in self.nest.out.dims if d in mine)
        deep = prod(loops[d] for d in self.nest.bound if d in kept)
        points = prod(f.points for f in filters.values())
        around = prod(loops.values()) / (wide * tiles * deep)
        width, costs = self.machine.width, self.machine.coefficients.filtering
        lanes = ceil(wide / width)
        reached = costs.reached * self.machine.fma_per_cycle * self.faster
        cycles = tiles * deep * around * lanes / reached
        weights = self.const.data.array.nbytes * self.growth(filters)
        cycles = max(cycles, self._far(weights))
        if filters:
            moved = tiles * (ceil(deep / width) + lanes)
            cycles += moved * costs.transform * points
            cycles += moved * (points + prod(f.outputs for f in filters.values()))
            cycles += self._far(moved * points * width * self.bytes)
        return cycles

    def _far(self, size: float) -> float:
        """Cycles to move so many bytes if they do not fit the second cache."""
        return max(size - self.machine.l2, 0.0) / self.machine.coefficients.filtering.far_bytes

    def _least(self, d: str) -> int:
        """A dim's extent, the least that a run may well have: what pays then always pays."""
        return max(self.editor.fewest((d,)), 1)


def filtered(found: Filtered, editor: Editor) -> tuple[Node, ...]:
    """The transformed weights, and nests of transformed tiles, of sums per point, and of outputs.

    Of integers, weights are whole multiples of what they are else, by which outputs are divided.
    """
    n, source, filters = found.nest, found.source, found.filters
    kind = n.out.dtype
    whole = kind is DType.I32
    order = list(filters)
    points = {w: editor.fresh_dim(f"{w.out}.point", Index.of(filters[w].points)) for w in order}
    tiles: dict[Window, str] = {}
    for w in order:
        tiles[w] = editor.fresh_dim(f"{w.out}.tile", _count(w, filters[w], editor))
    factor = DType.BF16 if found.rounded else None
    new_const, new_weights = _transformed_weights(
        found.const, found.weights, filters, points, editor, factor
    )
    tiled, read = _transformed_input(n, source, filters, points, tiles, editor, factor)
    # One sum per point.
    out_dims = {*n.out.dims, *points.values(), *tiles.values()} - {w.out for w in order}
    summed = Value(editor.fresh_value(f"{n.out.name}.points"), kind, tuple(sorted(out_dims)))
    bound = tuple(d for d in n.bound if d not in {w.tap for w in order})
    products = apply("mul", *(cast(r, kind) for r in (read, new_weights)))
    reducer = n.reducer if bound else None
    sums = Nest((summed,), bound, reducer, (products,), n.origin)
    # The outputs of each tile.
    axes = [
        (filters[w].of_output, mod(Index.of(w.out), Index.of(filters[w].outputs), editor.ranges))
        for w in order
    ]
    place = {d: Index.of(d) for d in summed.dims}
    for w in order:
        size = Index.of(filters[w].outputs)
        place[tiles[w]] = floordiv(Index.of(w.out), size, editor.ranges)

    def element(at: tuple[int, ...]) -> Expr:
        here = place | {points[w]: Index.of(p) for w, p in zip(order, at, strict=True)}
        return Read(summed.name, tuple(sorted(here.items())), kind)

    body = transformed(axes, element)
    multiple = prod(f.denominator for f in filters.values())
    if whole and multiple > 1:
        body = apply("shr", body, Lit(multiple.bit_length() - 1, kind))
    result = Nest(n.outs, (), None, (body,), n.origin)
    return new_const, tiled, sums, result


def _transformed_weights(
    const: Const,
    weights: Read,
    filters: Mapping[Window, Filter],
    points: Mapping[Window, str],
    editor: Editor,
    factor: DType | None,
) -> tuple[Const, Read]:
    along = {w.axis: w for w in filters}
    position = {const.axes.index(w.axis): f for w, f in filters.items()}
    axes = tuple(points[along[d]] if d in along else d for d in const.axes)
    name = editor.fresh_value(f"{const.out.name}.points")

    def made() -> np.ndarray:
        points_ = transform_weights(position, const.data.array)
        return parts_of(points_, 1)[0] if factor is DType.BF16 else points_

    # Several sums may have the same weights, as those over maps of several sizes do.
    key = "points", tuple(position.items()), factor

    def found(weights: np.ndarray) -> Data:
        if factor is not None or const.out.dtype is not DType.F32:
            return Data(made(), again=made)
        if not stays_finite(position, const.data):
            return Data(made(), again=made)
        # Until kernels have their own, nothing is read of them but their shape.
        shape = points_shape(position, weights.shape)
        return Data.later((key, const.data), shape, weights.dtype, made)

    data = const.data.once(key, found)
    kind = DType.of(data.dtype)
    value = Value(name, kind, tuple(sorted(axes)))
    coords = [
        (points[along[d]], Index.of(points[along[d]])) if d in along else (d, c)
        for d, c in weights.coords
    ]
    read = Read(name, tuple(sorted(coords, key=lambda p: p[0])), kind)
    return Const(value, axes, data, const.origin), read


def _transformed_input(
    n: Nest,
    source: Read,
    filters: Mapping[Window, Filter],
    points: Mapping[Window, str],
    tiles: Mapping[Window, str],
    editor: Editor,
    factor: DType | None,
) -> tuple[Nest, Read]:
    """The nest of transformed tiles, with the input's own other dims, and the read of it."""
    order = list(filters)
    along = {w.along: w for w in order}
    others = [d for d, _ in source.coords if d not in along]
    dims = (*others, *points.values(), *tiles.values())
    name = editor.fresh_value(f"{source.value}.points")
    kind = source.dtype
    stored = factor or kind
    value = Value(name, stored, tuple(sorted(dims)))
    outside = any(_reaches_out(w, filters[w], editor) for w in order)
    fill = Lit(0.0 if kind.is_float else 0, kind) if outside else None

    def element(at: tuple[int, ...]) -> Expr:
        place = {d: Index.of(d) for d in others}
        for w, i in zip(order, at, strict=True):
            place[w.along] = Index.of(tiles[w]) * filters[w].advance + (i + w.offset)
        read = Read(source.value, tuple(sorted(place.items())), kind, fill)
        return read if kind.is_float else cast(read, DType.I32)

    axes = [(filters[w].of_input, Index.of(points[w])) for w in order]
    tiled = Nest((value,), (), None, (cast(transformed(axes, element), stored),), n.origin)
    coords = {d: c for d, c in index_coords(source) if d not in along}
    inside = all(_stays_inside(d, c, editor) for d, c in coords.items())
    coords |= {d: Index.of(d) for d in (*points.values(), *tiles.values())}
    kept = None if inside or source.fill is None else replace(source.fill, dtype=stored)
    return tiled, Read(name, tuple(sorted(coords.items())), stored, kept)


def _count(w: Window, f: Filter, editor: Editor) -> Index:
    """The tiles along a window, the last one partly outside of the output."""
    return floordiv(editor.extents[w.out] + (f.outputs - 1), Index.of(f.outputs), editor.ranges)


def _reaches_out(w: Window, f: Filter, editor: Editor) -> bool:
    """Whether tiles may contain elements outside of the input."""
    last = (_count(w, f, editor) - 1) * f.advance + (f.inputs - 1 + w.offset)
    beyond = (last - editor.extents[w.along]).bounds(editor.symbols)
    return w.offset < 0 or beyond is None or beyond[1] >= 0


def _stays_inside(d: str, c: Index, editor: Editor) -> bool:
    bounds = c.bounds(editor.ranges)
    extent = editor.extents[d]
    if c.as_var is not None and editor.extents.get(c.as_var) == extent:
        return True
    return extent.is_const and bounds is not None and bounds[0] >= 0 and bounds[1] < extent.const
