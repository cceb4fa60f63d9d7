"""Reads beyond the edges of a value: by a halo of its fill, or by masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords, is_gathered
from rutc.tensor_ir.coefficients import Coefficients
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.facts.outside import adds_nothing
from rutc.tensor_ir.facts.windows import MOST_TAPS, partners, share_inside, window
from rutc.tensor_ir.graph import Nest, Value
from rutc.tensor_ir.indices.affine import Index, Range, Size, plain, typical
from rutc.tensor_ir.indices.ranges import common_sizes
from rutc.tensor_ir.lower import beyond
from rutc.tensor_ir.machine import FEWEST_LANES, NARROWEST_MASKED, NEAR_STRIDES

MOST_HALO = 4
"""A value takes at most so many times its own memory with a halo."""
UNKNOWN = 8
"""What a dim has where no window goes along it and the run tells how many indices: more than 1."""


def masked_at_edges(
    nest: Nest,
    r: Read,
    sizes: Mapping[str, Size],
    inner: Mapping[str, str | None],
) -> bool:
    """Whether masks at the edges of a window cost less than a halo of the operand.

    They do where every element is used a few times only: to fill a halo takes lines that are not
    at hand, and a copy with one costs as much as the nest does. The vector has to run along the
    memory of both the operand and the result. Sizes are known but for those of dims of which the
    read has the same index as the result: no window goes along them.
    """
    if r.dtype.bytes < NARROWEST_MASKED or is_gathered(r):
        return False
    coords = dict(index_coords(r))
    names = {*nest.dims, *coords, *(v for c in coords.values() for v in c.names())}
    extents = {d: e for d in names if isinstance(e := sizes.get(d), int)}
    same = {x for d, c in coords.items() for x in (d, c.as_var) if _is_same(d, c, sizes)}
    if not names <= extents.keys() | same:
        return False
    names -= extents.keys()
    if any(names & c.names() for d, c in coords.items() if d not in same):
        return False
    extents |= dict.fromkeys(names, UNKNOWN)
    bound = {d for d in nest.bound if extents[d] > 1}
    lane, along = inner.get(nest.out.name), inner.get(r.value)
    if not bound or prod(extents[d] for d in bound) > MOST_TAPS or lane is None or along is None:
        return False
    if lane in names or along in names or extents[lane] < FEWEST_LANES:
        return False
    steps = {d: c.coefficient(lane) for d, c in coords.items()}
    if steps.pop(along) not in (1, *NEAR_STRIDES) or any(step != 0 for step in steps.values()):
        return False
    free = {d for d in nest.out.dims if extents[d] > 1}
    moving = {v for c in coords.values() for v in c.names()}
    if free <= moving and bound <= {c.as_var for c in coords.values()}:
        # Each tap of each result has elements of its own.
        return True
    return bool(partners([x for e in nest.body for x in reads(e)], free, bound))


def _is_same(d: str, c: Index, sizes: Mapping[str, Size]) -> bool:
    """Whether a coordinate is the index of a loop that is as long as the dim."""
    return c.as_var is not None and sizes.get(c.as_var) == sizes.get(d)


Halo = dict[str, tuple[int, int]]
"""Indices before and after each dim."""


@record
class Edges:
    """A read of a nest that may go outside of its `value`, at sizes that have these ranges."""

    nest: Nest
    read: Read
    value: Value
    sizes: Mapping[str, Size]
    symbols: Mapping[str, Range]

    @cached_property
    def reach(self) -> Halo | None:
        """How far the read goes outside of its value, per dim; None where that is not constant."""
        return self._reach(self.symbols)

    def needed_halo(
        self, inner: str | None, finite: Callable[[str], bool], coefficients: Coefficients
    ) -> Halo | None:
        """How far the value has a halo, per dim, if the read is to need no masks.

        It is none where the read goes outside unequally far, nor where the halo would take far more
        than the value does, or than what is read of it at common sizes. A reduction that gains
        nothing outside of a value leaves out what lies there (the step `inside`), where that is
        much and larger than the value; then memory's `inner` dim alone has a halo, for tiles of
        rows along it.
        """
        halo = self.reach
        if halo is None:
            return None
        common = {name: (size, size) for name, size in common_sizes(self.symbols).items()}
        usual = self._reach(common) or {}
        if any(sum(n) > MOST_HALO * sum(usual.get(d, (0, 0))) for d, n in halo.items()):
            return None
        open_ = {d for d in halo if self._is_mostly_inside(d, halo)}
        most = MOST_HALO * self._elements({})

        def fits(found: Halo) -> bool:
            # A halo is as long at any size, and a value that is short at common ones may be long.
            return self._elements({d: n for d, n in found.items() if d not in open_}) <= most

        shares = self.shares_inside(coefficients)
        rest = {d: n for d, n in halo.items() if d == inner or d not in shares}
        nest = self.nest
        if (
            len(rest) < len(halo)
            and fits(rest)
            and nest.reducer is not None
            and adds_nothing(nest.reducer, nest.body, self.read, finite)
        ):
            return rest
        return halo if fits(halo) else None

    @property
    def growth(self) -> float:
        """How many times its own memory the value takes with all that is read, at common sizes."""
        return self._elements(self.reach or {}) / self._elements({})

    def shares_inside(self, coefficients: Coefficients) -> dict[str, float]:
        """The dims along which a loop over windows leaves out what lies outside, and what is left.

        There are none unless the halo would be larger than the value, nor along dims that may be
        much longer than it.
        """
        halo = self.reach
        if halo is None or self.nest.reducer is None or self.growth <= 2:
            return {}
        short = [d for d in halo if not self._is_mostly_inside(d, halo)]
        extents = self._extents(self.symbols)
        shares = {d: _share_inside(self.nest, self.read, d, extents) for d in short}
        least = coefficients.windows.least_gain
        return {d: share for d, share in shares.items() if share < least}

    def _extents(self, symbols: Mapping[str, Range]) -> dict[str, int]:
        dims = {*self.nest.dims, *dict(self.read.coords)}
        return {d: typical(self.sizes[d], symbols) for d in dims}

    def _reach(self, symbols: Mapping[str, Range]) -> Halo | None:
        sizes, extents = self.sizes, self._extents(symbols)
        ranges = {d: (0, extents[d] - 1) for d in self.nest.dims if extents[d] > 0}
        halo: Halo = {}
        for d, c in self.read.coords:
            if not isinstance(c, Index):
                return None
            if all(isinstance(sizes[x], int) for x in (d, *c.names() & sizes.keys())):
                bounds = c.bounds(ranges)
                if bounds is None:
                    return None
                lo, hi = max(0, -bounds[0]), max(0, bounds[1] - (extents[d] - 1))
            else:
                found = beyond(c, sizes[d], sizes, symbols)
                if found is None:
                    return None
                lo, hi = found
            if lo or hi:
                halo[d] = (lo, hi)
        return halo

    def _is_mostly_inside(self, d: str, halo: Halo) -> bool:
        """Whether taps lie side by side along a dim that a run may make longer than the halo.

        However short it commonly is. Taps far apart are outside for whole tiles, which is worth
        more.
        """
        c, size = self.read.coord(d), self.sizes[d]
        if isinstance(size, int) or not isinstance(c, Index):
            return False
        bounds = size.bounds(self.symbols)
        steps = {abs(c.coefficient(b) or 0) for b in self.nest.bound if b in c.names()}
        return steps == {1} and bounds is not None and bounds[1] > sum(halo[d])

    def _elements(self, halo: Halo) -> int:
        """The elements of the value with a halo, at common sizes."""
        # What has no element at common sizes may have some at others.
        own = {d: max(typical(self.sizes[d], self.symbols), 1) for d in self.value.dims}
        return prod(e + sum(halo.get(d, (0, 0))) for d, e in own.items())


def edges_of(nest: Nest, read: Read, editor: Editor) -> Edges:
    """A read of a nest, at the sizes of the graph that is edited."""
    sizes = {d: plain(e) for d, e in editor.extents.items()}
    return Edges(nest, read, editor.values[read.value], sizes, editor.symbols)


def _share_inside(nest: Nest, r: Read, d: str, extents: Mapping[str, int]) -> float:
    """What a loop over windows along a dim does if it goes over what is inside of the value.

    Registers for matrices, which multiply narrower numbers, take whole windows.
    """
    c = r.coord(d)
    if not isinstance(c, Index) or r.dtype.bits < 32:
        return 1.0
    w = window(c, nest.bound, nest.out.dims, extents[d])
    if w is None:
        return 1.0
    if max((extents[b] for b in nest.bound if b != w.bound), default=1) == 1:
        return 1.0
    return share_inside(w, extents[w.bound], extents[w.free])
