"""Reads beyond the edges of a value: by a halo of its fill, or by masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from rutc.graph_opt.exprs import index_coords, is_gathered
from rutc.tensor_ir.affine import Index, Range, Size, typical
from rutc.tensor_ir.coefficients import Coefficients
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.graph import Nest, Value
from rutc.tensor_ir.lower import beyond
from rutc.tensor_ir.machine import FEWEST_LANES, NARROWEST_MASKED, NEAR_STRIDES
from rutc.tensor_ir.outside import adds_nothing
from rutc.tensor_ir.ranges import common_sizes
from rutc.tensor_ir.windows import MOST_TAPS, partners, share_inside, window

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


def needed_halo(
    nest: Nest,
    r: Read,
    sizes: Mapping[str, Size],
    values: Mapping[str, Value],
    symbols: Mapping[str, Range],
    inner: str | None,
    finite: Callable[[str], bool],
    coefficients: Coefficients,
    *,
    whole: bool = False,
) -> Halo | None:
    """How far the read goes outside of its value, per dim; None where that is not constant.

    It is none either where the halo would take far more than the value does, or than what is read
    of it at common sizes, unless windows are taken `whole` whatever it takes. A reduction that
    gains nothing outside of a value leaves out what lies there (the step `inside`), where that is
    much and larger than the value; then memory's `inner` dim alone has a halo, for tiles of rows
    along it.
    """
    halo = reach(nest, r, sizes, symbols)
    if halo is None or whole:
        return halo
    value = values[r.value]
    common = {name: (size, size) for name, size in common_sizes(symbols).items()}
    usual = reach(nest, r, sizes, common) or {}
    if any(sum(n) > MOST_HALO * sum(usual.get(d, (0, 0))) for d, n in halo.items()):
        return None
    open_ = {d for d in halo if _is_mostly_inside(nest, r, d, halo, sizes, symbols)}
    most = MOST_HALO * _elements(value, {}, sizes, symbols)

    def fits(found: Halo) -> bool:
        # A halo is as long at any size, and a value that is short at common ones may be long.
        known = {d: n for d, n in found.items() if d not in open_}
        return _elements(value, known, sizes, symbols) <= most

    shares = shares_inside(nest, r, halo, sizes, values, symbols, coefficients)
    rest = {d: n for d, n in halo.items() if d == inner or d not in shares}
    if (
        len(rest) < len(halo)
        and fits(rest)
        and nest.reducer is not None
        and adds_nothing(nest.reducer, nest.body, r, finite)
    ):
        return rest
    return halo if fits(halo) else None


def reach(
    nest: Nest, r: Read, sizes: Mapping[str, Size], symbols: Mapping[str, Range]
) -> Halo | None:
    """How far the read goes outside of its value, per dim; None where that is not constant."""
    extents = {d: typical(sizes[d], symbols) for d in {*nest.dims, *dict(r.coords)}}
    ranges = {d: (0, extents[d] - 1) for d in nest.dims if extents[d] > 0}
    halo: Halo = {}
    for d, c in r.coords:
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


def growth(
    value: Value, halo: Halo, sizes: Mapping[str, Size], symbols: Mapping[str, Range]
) -> float:
    """How many times its own memory a value takes with a halo, at common sizes."""
    return _elements(value, halo, sizes, symbols) / _elements(value, {}, sizes, symbols)


def shares_inside(
    nest: Nest,
    r: Read,
    halo: Halo,
    sizes: Mapping[str, Size],
    values: Mapping[str, Value],
    symbols: Mapping[str, Range],
    coefficients: Coefficients,
) -> dict[str, float]:
    """The dims along which a loop over windows leaves out what lies outside, and what is left.

    There are none unless the halo would be larger than the value, nor along dims that may be much
    longer than it.
    """
    if nest.reducer is None or growth(values[r.value], halo, sizes, symbols) <= 2:
        return {}
    extents = {d: typical(sizes[d], symbols) for d in {*nest.dims, *dict(r.coords)}}
    short = [d for d in halo if not _is_mostly_inside(nest, r, d, halo, sizes, symbols)]
    shares = {d: _share_inside(nest, r, d, extents) for d in short}
    least = coefficients.windows.least_gain
    return {d: share for d, share in shares.items() if share < least}


def _is_mostly_inside(
    nest: Nest,
    r: Read,
    d: str,
    halo: Halo,
    sizes: Mapping[str, Size],
    symbols: Mapping[str, Range],
) -> bool:
    """Whether taps lie side by side along a dim that a run may make longer than the halo.

    However short it commonly is. Taps far apart are outside for whole tiles, which is worth more.
    """
    c, size = r.coord(d), sizes[d]
    if isinstance(size, int) or not isinstance(c, Index):
        return False
    bounds = size.bounds(symbols)
    steps = {abs(c.coefficient(b) or 0) for b in nest.bound if b in c.names()}
    return steps == {1} and bounds is not None and bounds[1] > sum(halo[d])


def _elements(
    value: Value, halo: Halo, sizes: Mapping[str, Size], symbols: Mapping[str, Range]
) -> int:
    # What has no element at common sizes may have some at others.
    own = {d: max(typical(sizes[d], symbols), 1) for d in value.dims}
    return prod(e + sum(halo.get(d, (0, 0))) for d, e in own.items())


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
