"""Fourier transforms in stages: sums over the factors of a length, one after the other."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Tensor
from rutc.tensor_ir import Index, apply, cast
from rutc.tensor_ir.coefficients import COEFFICIENTS
from rutc.tensor_ir.indices.affine import floordiv, mod


def factors_of(length: int, parts: int, shown: float) -> tuple[int, ...]:
    """The factors of a length whose sums take least; one where stages would not save anything.

    Operands have `parts` parts, and the part `shown` of the result is asked for. A stage takes a
    product for each index of its sum, and what it gives is stored and loaded again.
    """
    moved = COEFFICIENTS.fourier.moved

    @cache
    def best(n: int, given: int) -> tuple[float, tuple[int, ...]]:
        found: tuple[float, tuple[int, ...]] = (shown * (n * given + moved), (n,))
        for r in (d for d in range(n // 2, 1, -1) if n % d == 0):
            cost, after = best(n // r, 2)
            found = min(found, (r * given + moved + cost, (r, *after)), key=lambda f: f[0])
        return found

    return best(length, parts)[1]


def staged(
    b: Builder,
    x: Tensor,
    at: int,
    factors: tuple[int, ...],
    shape: tuple[int, int],
    *,
    inverse: bool,
) -> Tensor:
    """The transform along axis `at`, of the length `prod(factors)`.

    `x` has 1 or 2 parts along its last axis, and is 0 beyond its end. The result has the first
    numbers of the transform and the first parts of each, as many as `shape` says. A length of
    r * m takes r + m products a number, not r * m [Cooley & Tukey 1965]: with j = j1*m + j2 and
    k = k1 + r*k2,

        y[k1, j2]      = sum{j1} x[j1*m + j2] * e(j1*k1 / r)          e(t) = exp(-2 pi i t)
        out[k1 + r*k2] = sum{j2} y[k1, j2] * e(j2*(k1 + r*k2) / n)

    and so on where m has factors. What other forms multiply by between stages is in the tables.
    """
    wide = x.dtype.computing
    before, after = x.shape[:at], x.shape[at + 1 : -1]
    length, parts, done = prod(factors), x.shape[-1].const, 1
    size, shown = shape
    digits: tuple[int, ...] = ()
    y = x
    for r in factors:
        rest = length // (done * r)
        last = rest == 1
        numbers, kept = (-(-size // done), shown) if last else (r, 2)
        # The digits of k, the last one first, and what is left of j.
        axes = b.axes((*before, numbers, *digits, rest, *after, kept))
        j, part = b.axes((r, parts), ("j", "part"))
        place = [a.index for a in axes]
        left = at + 1 + len(digits)
        source = [*place[:at], *place[at + 1 : left]]
        source += [j.index * rest + place[left], *place[left + 1 : -1], part.index]
        element = cast(b.read(y, source, lit(0, y.dtype)), wide)
        table = _table((numbers, *digits), r, (parts, kept), inverse=inverse)
        if inverse and last:
            table = table / length
        weights = b.constant(table.astype(wide.numpy))
        weight = b.read(weights, [*place[at:left], j.index, part.index, place[-1]])
        y = b.nest(axes, apply("mul", element, weight), (j, part))
        digits, done, parts = (numbers, *digits), done * r, 2

    def coords(*out: Index) -> list[Index]:
        k, found = out[at], []
        for extent in reversed(digits[1:]):
            found.append(mod(k, Index.of(extent), b.ranges))
            k = floordiv(k, Index.of(extent), b.ranges)
        return [*out[:at], k, *reversed(found), Index.of(0), *out[at + 1 :]]

    return b.as_type(b.view(y, (*before, size, *after, shown), coords), x.dtype)


def _table(digits: tuple[int, ...], r: int, parts: tuple[int, int], *, inverse: bool) -> np.ndarray:
    """{*digits, j, part, part'}: e(j*k / n) as a matrix of parts, n of digits up to the full r."""
    known = prod(digits[1:])
    turns = np.outer(np.arange(prod(digits)), np.arange(r)) % (r * known)
    angle = (2 if inverse else -2) * np.pi * turns / (r * known)
    cosine, sine = np.cos(angle), np.sin(angle)
    matrix = np.array([[cosine, sine], [-sine, cosine]])[: parts[0], : parts[1]]
    return np.moveaxis(matrix, (0, 1), (2, 3)).reshape(*digits, r, *parts)
