"""Reads beyond the edges of a value: by a halo of its fill, or by masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from rutc.tensor_ir.affine import Index, Range, Size, typical
from rutc.tensor_ir.coefficients import Coefficients, Windows
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.graph import Nest, Value
from rutc.tensor_ir.lower import beyond
from rutc.tensor_ir.machine import NARROWEST_MASKED, NEAR_STRIDES
from rutc.tensor_ir.outside import adds_nothing
from rutc.tensor_ir.windows import partners, share_inside, window

UNKNOWN = 8
"""What a dim has where no window goes along it and the run tells how many indices: more than 1."""


def masked_at_edges(
    nest: Nest,
    r: Read,
    sizes: Mapping[str, Size],
    inner: Mapping[str, str | None],
    coefficients: Coefficients,
) -> bool:
    """Whether masks at the edges of a window cost less than a halo of the operand.

    They do where every element is used a few times only: to fill a halo takes lines that are not
    at hand, and a copy with one costs as much as the nest does. The vector has to run along the
    memory of both the operand and the result. Sizes are known but for those of dims of which the
    read has the same index as the result: no window goes along them.
    """
    if r.dtype.bytes < NARROWEST_MASKED or not all(isinstance(c, Index) for _, c in r.coords):
        return False
    coords = {d: c for d, c in r.coords if isinstance(c, Index)}
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
    most = coefficients.windows.most_taps
    if not bound or prod(extents[d] for d in bound) > most or lane is None or along is None:
        return False
    if lane in names or along in names or extents[lane] < coefficients.fusion.least_lanes:
        return False
    steps = {d: c.coefficient(lane) for d, c in coords.items()}
    if steps.pop(along) not in (1, *NEAR_STRIDES) or any(step != 0 for step in steps.values()):
        return False
    free = {d for d in nest.out.dims if extents[d] > 1}
    return bool(partners([x for e in nest.body for x in reads(e)], free, bound))


def _is_same(d: str, c: Index, sizes: Mapping[str, Size]) -> bool:
    """Whether a coordinate is the index of a loop that is as long as the dim."""
    return c.as_var is not None and sizes.get(c.as_var) == sizes.get(d)


def needed_halo(
    nest: Nest,
    r: Read,
    sizes: Mapping[str, Size],
    values: Mapping[str, Value],
    symbols: Mapping[str, Range],
    inner: str | None,
    finite: Callable[[str], bool],
    coefficients: Coefficients,
) -> dict[str, tuple[int, int]] | None:
    """How far the read goes outside of its value, per dim; None where that is not constant.

    It is none either where the halo would take far more than the value does. A reduction that
    gains nothing outside of a value leaves out what lies there (the step `inside`), where that is
    much and larger than the value; then memory's `inner` dim alone has a halo, for tiles of rows
    along it.
    """
    extents = {d: typical(sizes[d], symbols) for d in {*nest.dims, *dict(r.coords)}}
    ranges = {d: (0, extents[d] - 1) for d in nest.dims if extents[d] > 0}
    halo: dict[str, tuple[int, int]] = {}
    for d, c in r.coords:
        if not isinstance(c, Index):
            return None
        if all(isinstance(sizes[x], int) for x in (d, *c.names() & sizes.keys())):
            bounds = c.bounds(ranges)
            if bounds is None:
                return None
            lo, hi = max(0, -bounds[0]), max(0, bounds[1] - (extents[d] - 1))
        else:
            reach = beyond(c, sizes[d], sizes, symbols)
            if reach is None:
                return None
            lo, hi = reach
        if lo or hi:
            halo[d] = (lo, hi)
    # What has no element at common sizes may have some at others.
    own = {d: max(extents[d], 1) for d in values[r.value].dims}
    size = prod(own.values())

    def total(found: Mapping[str, tuple[int, int]]) -> int:
        return prod(e + sum(found.get(d, (0, 0))) for d, e in own.items())

    def fits(found: Mapping[str, tuple[int, int]]) -> bool:
        return total(found) <= coefficients.fusion.halo * size + coefficients.fusion.halo_elements

    if total(halo) > 2 * size and nest.reducer is not None:
        left_out = {
            d
            for d in halo
            if d != inner and _is_left_out(nest, r, d, extents, coefficients.windows)
        }
        rest = {d: n for d, n in halo.items() if d not in left_out}
        if left_out and fits(rest) and adds_nothing(nest.reducer, nest.body, r, finite):
            return rest
    return halo if fits(halo) else None


def _is_left_out(
    nest: Nest, r: Read, d: str, extents: Mapping[str, int], coefficients: Windows
) -> bool:
    """Whether a loop over windows along a dim gains if it goes over what is inside of the value.

    Registers for matrices, which multiply narrower numbers, take whole windows.
    """
    c = r.coord(d)
    if not isinstance(c, Index) or r.dtype.bits < 32:
        return False
    w = window(c, nest.bound, nest.out.dims, extents[d])
    if w is None:
        return False
    if max((extents[b] for b in nest.bound if b != w.bound), default=0) < coefficients.few_steps:
        return False
    return share_inside(w, extents[w.bound], extents[w.free]) < coefficients.least_gain
