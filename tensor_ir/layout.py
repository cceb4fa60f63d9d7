"""Memory layouts: where the elements of a value lie.

A layout orders a value's dims outermost first; a dim may be blocked, that is appear twice, once
divided by the block and once modulo it, and may carry a halo, that is stored elements before index
0 and after the last one, all equal to the halo's fill, so that a window may read past the edge
without a test. Blocked dims are padded up to whole blocks.

    [n, y(+1+1), x(+1+1), c]      channels last, one halo row and column on each side, fill 0
    [co/32, ky, kx, ci, co%32]    weights packed in blocks of 32 output channels
    [k/2, n, k%2] nibbles         4-bit weights, two to a byte: those of two neighbours along k
    [h, t(of 1024), k]            a value that may grow along t: rows of h are 1024*k apart

In *nibbles*, element number e lies in byte e//2, in the lower half if e is even. The last byte of
an odd number of elements is half full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Lit
from rutc.tensor_ir.indices.affine import (
    ZERO,
    Index,
    Monomial,
    Range,
    Size,
    collect,
    floordiv,
    mod,
    plain,
)

ALIASING_LINES = 16
"""Rows of a multiple of this many cache lines share at most a quarter of a cache's sets."""
PIECE_BYTES = 1 << 18
"""What is copied at once into another order: a second cache holds it and where it goes."""


@record
class Axis:
    """One axis: position ((index + halo) // div) % extent along `dim`, `stride` elements apart."""

    dim: str
    extent: Size
    stride: Size
    div: int = 1
    whole: bool = True
    """Whether this axis takes the whole quotient, so that no remainder needs to be taken."""


@record
class Layout:
    """The axes outermost first, the halo (dim, before, after) and what it is filled with."""

    axes: tuple[Axis, ...]
    halo: tuple[tuple[str, int, int], ...] = ()
    fill: Lit | None = None
    extents: tuple[tuple[str, Size], ...] = ()
    """Every dim's extent, halo and padding left out."""
    nibbles: bool = False
    """Whether two elements, of 4 bits, share a byte."""
    capacity: tuple[tuple[str, int], ...] = ()
    """The dims for which memory has room for more than their extents, and for how many."""

    @cached_property
    def size(self) -> Size:
        """Elements from the first to one past the last, padding included.

        Of a layout with symbolic extents, which are dense: all elements.
        """
        if any(a.extent == 0 for a in self.axes):
            return 0
        total = 1
        for a in self.axes:
            if isinstance(a.extent, Index) or isinstance(a.stride, Index):
                return plain(self.axes[0].extent * self.axes[0].stride)
            total += (a.extent - 1) * a.stride
        return total

    @cached_property
    def elements(self) -> int:
        """`size` where it is constant. Raises ValueError where it is symbolic."""
        return Index.of(self.size).value

    def names(self) -> frozenset[str]:
        """The symbols of the extents and strides."""
        sizes = [x for a in self.axes for x in (a.extent, a.stride)]
        found = [x.names() for x in (*sizes, *dict(self.extents).values()) if isinstance(x, Index)]
        return frozenset().union(*found)

    def at(self, symbols: Mapping[str, int]) -> Layout:
        """The layout for given values of its symbols."""

        def value(x: Size) -> int:
            return x if isinstance(x, int) else int(x.evaluate(symbols))

        if not self.names():
            return self
        axes = tuple(replace(a, extent=value(a.extent), stride=value(a.stride)) for a in self.axes)
        return replace(self, axes=axes, extents=tuple((d, value(e)) for d, e in self.extents))

    @cached_property
    def before(self) -> Mapping[str, int]:
        """Halo elements before index 0, by dim."""
        return {d: lo for d, lo, _ in self.halo}

    @cached_property
    def after(self) -> Mapping[str, int]:
        """Halo elements after the last index, by dim."""
        return {d: hi for d, _, hi in self.halo}

    def room(self, d: str, fill: Lit | None) -> tuple[int, int]:
        """How many elements of a fill there are before and after a dim: its halo, if it is of that.

        Nothing is known to be around what is read without a fill.
        """
        if fill is None or fill != self.fill:
            return 0, 0
        return self.before.get(d, 0), self.after.get(d, 0)

    def holds(
        self, d: str, fill: Lit | None, first: Index, last: Index, ranges: Mapping[str, Range]
    ) -> bool:
        """Whether memory is known to have a dim from `first` to `last`, its halo included."""
        before, after = self.room(d, fill)
        low, high = first.bounds(ranges), (last - dict(self.extents)[d]).bounds(ranges)
        return low is not None and high is not None and low[0] >= -before and high[1] < after

    @cached_property
    def plain(self) -> bool:
        """Whether no dim is blocked."""
        return all(a.div == 1 and a.whole for a in self.axes)

    def address(self, coords: Mapping[str, Index], ranges: Mapping[str, Range]) -> Index:
        """The element number of the element at `coords`."""
        return self.element(coords, ranges).simplify(ranges)

    def element(self, coords: Mapping[str, Index], ranges: Mapping[str, Range]) -> Index:
        """The same as the layout says it, which may be written shorter."""
        if self.plain:
            terms: list[tuple[Monomial, int]] = []
            const = 0
            for a in self.axes:
                place, before, stride = coords[a.dim], self.before.get(a.dim, 0), a.stride
                if isinstance(stride, int):
                    # Most are: nothing is made of a place alone.
                    if stride:
                        terms += [(mono, c * stride) for mono, c in place.terms]
                        const += (place.const + before) * stride
                    continue
                scaled = (place + before) * stride
                terms += scaled.terms
                const += scaled.const
            return collect(terms, const)
        total = ZERO
        for a in self.axes:
            position = coords[a.dim] + self.before.get(a.dim, 0)
            if a.div != 1:
                position = floordiv(position, Index.of(a.div), ranges)
            if not a.whole:
                position = mod(position, Index.of(a.extent), ranges)
            total = total + position * a.stride
        return total

    def position(self, coords: Mapping[str, int]) -> int:
        """The element number at constant coordinates."""
        total = 0
        for dim, before, div, extent, stride, whole in self._constant_axes:
            position = (coords[dim] + before) // div
            total += (position if whole else position % extent) * stride
        return total

    @cached_property
    def _constant_axes(self) -> tuple[tuple[str, int, int, int, int, bool], ...]:
        """Each axis's dim, the halo before it, its div, extent and stride, and whether it is whole.

        Raises ValueError where these are symbolic.
        """
        return tuple(
            (
                a.dim,
                self.before.get(a.dim, 0),
                a.div,
                Index.of(a.extent).value,
                Index.of(a.stride).value,
                a.whole,
            )
            for a in self.axes
        )

    def stride(self, dim: str) -> Size | None:
        """Elements between neighbours along `dim`; None where the dim is blocked."""
        own = [a for a in self.axes if a.dim == dim]
        return own[0].stride if len(own) == 1 else 0 if not own else None

    def __str__(self) -> str:
        parts: list[str] = []
        seen: set[str] = set()
        for a in self.axes:
            text = a.dim
            if a.div != 1:
                text += f"/{a.div}"
            if not a.whole:
                text += f"%{a.extent}"
            if a.dim not in seen and (a.dim in self.before or a.dim in self.after):
                text += f"(+{self.before[a.dim]}+{self.after[a.dim]})"
            if a.dim in dict(self.capacity):
                text += f"(of {dict(self.capacity)[a.dim]})"
            seen.add(a.dim)
            parts.append(text)
        fill = f" fill {self.fill.value}" if self.halo and self.fill is not None else ""
        return f"[{', '.join(parts)}]{fill}{' nibbles' if self.nibbles else ''}"


def dense(
    order: Sequence[str],
    extents: Mapping[str, Size],
    *,
    halo: Mapping[str, tuple[int, int]] | None = None,
    fill: Lit | None = None,
    blocks: Mapping[str, int] | None = None,
    line: int = 0,
    whole: int = 1,
    capacity: Mapping[str, int] | None = None,
) -> Layout:
    """The layout with `order` outermost first; the inner axes of `blocks` come last, in its order.

    `line` is the number of elements in a cache line: rows whose length is a large power of two are
    made a line longer, or else the same column of neighbouring rows would fall into few cache sets.
    Rows are made a multiple of `whole` elements long. Strides are those of a value whose dims have
    the extents of `capacity` where it names them.
    """
    own = tuple([(d, extents[d]) for d in order])
    around = tuple([(d, halo[d]) for d in sorted(halo)]) if halo else ()
    inner = tuple(blocks.items()) if blocks else ()
    larger = tuple(sorted(capacity.items())) if capacity else ()
    return _dense(own, around, fill, inner, line, whole, larger)


@lru_cache(maxsize=1 << 12)
def _dense(
    extents: tuple[tuple[str, Size], ...],
    halos: tuple[tuple[str, tuple[int, int]], ...],
    fill: Lit | None,
    inner: tuple[tuple[str, int], ...],
    line: int,
    whole: int,
    capacity: tuple[tuple[str, int], ...],
) -> Layout:
    """`dense` of one shape: most values of a model have that of others."""
    halo, blocks, order = dict(halos), dict(inner), [d for d, _ in extents]
    sizes = {d: size + sum(halo.get(d, (0, 0))) for d, size in extents}
    last = sizes[order[-1]] if order else 0
    if line and len(order) > 1 and isinstance(last, int) and last % (ALIASING_LINES * line) == 0:
        sizes[order[-1]] = last + line
    if whole > 1 and len(order) > 1 and isinstance(last, int) and last > 1:
        sizes[order[-1]] = -(-sizes[order[-1]] // whole) * whole
    counts = {d: (sizes[d] + (n - 1)) // n for d, n in inner}
    plan = [(d, counts.get(d, sizes[d]), blocks.get(d, 1), True) for d in order]
    plan += [(d, size, 1, False) for d, size in blocks.items()]
    axes: list[Axis] = []
    stride: Size = 1
    larger = dict(capacity)
    for d, extent, div, whole in reversed(plan):
        axes.append(Axis(d, extent, stride, div, whole))
        extent = larger.get(d, extent)
        stride = plain(stride * (max(extent, 1) if isinstance(extent, int) else extent))
    kept = tuple((d, *halo[d]) for d in sorted(halo) if halo[d] != (0, 0))
    return Layout(
        tuple(reversed(axes)),
        kept,
        fill if kept else None,
        tuple(sorted(extents)),
        capacity=capacity,
    )


def in_nibbles(layout: Layout) -> Layout:
    """The layout with two elements to a byte; plain rows become whole bytes.

    [k, n] of 5 x 3   ->   [k, n] nibbles, in which a row has room for 4
    """
    own = layout.axes[-1:]
    if len(layout.axes) > 1 and own[0].whole and own[0].div == 1 and own[0].stride == 1:
        extent = own[0].extent
        if isinstance(extent, int) and extent % 2 and extent > 1:
            axes = tuple(_wider(a, extent) for a in layout.axes[:-1])
            layout = replace(layout, axes=(*axes, replace(own[0], extent=extent + 1)))
    return replace(layout, nibbles=True)


def _wider(a: Axis, row: int) -> Axis:
    """An axis around rows that have room for one element more."""
    return replace(a, stride=plain(Index.of(a.stride) // row * (row + 1)))


def nibble_pairs(flat: np.ndarray) -> np.ndarray:
    """Bytes of two 4-bit elements each, the first one in the lower half."""
    patterns = flat.astype(np.int8).view(np.uint8) & 15
    patterns = np.pad(patterns, (0, patterns.size % 2))
    return patterns[::2] | patterns[1::2] << 4


def from_nibbles(pairs: np.ndarray, dtype: DType) -> np.ndarray:
    """The elements of `nibble_pairs`, and one more if their number is odd."""
    patterns = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1).astype(np.int8)
    return (patterns - 16 * (patterns > 7) if dtype.is_signed else patterns).astype(dtype.numpy)


def pack(array: np.ndarray, axes: Sequence[str], layout: Layout) -> np.ndarray:
    """`array` (axes named in order) laid out in memory: a flat array of `layout.size` elements.

    Of a layout in nibbles: an array of bytes.
    """
    order: list[str] = []
    for a in layout.axes:
        if a.dim not in order:
            order.append(a.dim)
    pads: dict[str, tuple[int, int]] = {}
    shape: list[int] = []
    positions: list[tuple[Axis, int]] = []
    for d in order:
        own = sorted((a for a in layout.axes if a.dim == d), key=lambda a: -a.div)
        total = Index.of(own[0].extent).value * own[0].div
        lo = layout.before.get(d, 0)
        pads[d] = lo, total - lo - array.shape[list(axes).index(d)]
        for a in own:
            positions.append((a, len(shape)))
            shape.append(Index.of(a.extent).value)
    if any(p != (0, 0) for p in pads.values()):
        value = layout.fill.value if layout.fill is not None else 0
        array = np.pad(array, [pads[d] for d in axes], constant_values=value)
    x = array.transpose([list(axes).index(d) for d in order])
    x = x.reshape(shape).transpose([p for a in layout.axes for b, p in positions if b is a])
    flat = _contiguous(x).reshape(-1)
    return nibble_pairs(flat) if layout.nibbles else flat


def _contiguous(x: np.ndarray) -> np.ndarray:
    """The elements of `x` side by side in its order; `x` itself if they are."""
    if x.flags.c_contiguous:
        return x
    found = np.empty(x.shape, x.dtype)
    _copy(x, found)
    return found


def _copy(x: np.ndarray, target: np.ndarray) -> None:
    """Copies in pieces of which caches hold all lines, however far apart neighbours are in `x`."""
    if x.nbytes <= PIECE_BYTES:
        target[...] = x
        return
    longest = max(range(x.ndim), key=lambda n: x.shape[n])
    middle = x.shape[longest] // 2
    for part in (slice(middle), slice(middle, None)):
        at = (slice(None),) * longest + (part,)
        _copy(x[at], target[at])
