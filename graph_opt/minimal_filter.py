r"""Minimal filtering: `m` outputs of a filter with `r` taps from m + r - 1 products.

    y[i] = sum{k} d[i+k] * g[k]      i < m, k < r      =      A^T ((G g) * (B^T d))

d and g are evaluated as polynomials at n - 1 points and at infinity (n = m + r - 1), multiplied
point by point, and the result is interpolated; transposing this algorithm turns the product of
polynomials into a filter [Winograd 1980; Lavin & Gray 2016]. A filter over several dims transforms
one dim after the other. A window that moves in steps of s is the sum of s such filters, each of
every s-th tap over every s-th element:

    y[i] = sum{k} d[2i+k] * g[k]  =  sum{k} d[2(i+k)] * g[2k]  +  sum{k} d[2(i+k)+1] * g[2k+1]

The points decide how far rounding errors grow. Pairs a, -a share half of their arithmetic; the
points below have the smallest mean error found over pairs of simple binary fractions (measured for
64 channels and two dims, relative to the largest output: 0.7 times the direct sum's for 4 points,
twice for 6; points 1 and 2 instead give four times).

Errors are relative to what is transformed, the largest elements of the whole tile, where those of
a direct sum are relative to the products that it adds: see `Bounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, reduce
from math import inf, lcm, prod, sqrt

import numpy as np

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir import Apply, Data, DType, Expr, Index, IndexValue, Lit, apply

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]

POINTS: Mapping[int, tuple[Fraction, ...]] = {
    2: (Fraction(0),),
    3: (Fraction(0), Fraction(1)),
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    6: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
"""The finite points to use, by the number of products."""


@record
class Filter:
    """The algorithm that gives `outputs` outputs at a time of a filter with `taps` taps.

    One product for each of `points` points takes the place of outputs * taps. The outputs' windows
    begin `stride` elements apart.
    """

    outputs: int
    taps: int
    stride: int = 1

    @property
    def inputs(self) -> int:
        """Elements of a tile of the input."""
        return self.stride * (self.outputs - 1) + self.taps

    @cached_property
    def points(self) -> int:
        """Products; of unit stride as many as elements."""
        return sum(f.inputs for f in self._phases)

    @property
    def advance(self) -> int:
        """How far tiles of the input lie apart."""
        return self.stride * self.outputs

    @cached_property
    def _phases(self) -> tuple[Filter, ...]:
        """The filters of unit stride over every `stride`-th element from the first, second, ..."""
        if self.stride == 1:
            return (self,)
        first = range(min(self.stride, self.taps))
        return tuple(Filter(self.outputs, -(-(self.taps - i) // self.stride)) for i in first)

    def _spread(self, matrices: Sequence[Matrix], width: int) -> Matrix:
        """The rows of all phases, whose columns are every `stride`-th of so many."""
        found: list[Row] = []
        for i, matrix in enumerate(matrices):
            for row in matrix:
                wide = [Fraction(0)] * width
                wide[i :: self.stride] = [*row, *wide[i :: self.stride][len(row) :]]
                found.append(tuple(wide))
        return tuple(found)

    @property
    def _points(self) -> tuple[Fraction, ...]:
        return POINTS[self.inputs]

    @cached_property
    def of_input(self) -> Matrix:
        """B^T {points, inputs}: coefficients of the products of all (x - point) but one's own."""
        if self.stride > 1:
            return self._spread([f.of_input for f in self._phases], self.inputs)
        rows = [
            _product([p for p in self._points if p != own], self.inputs) for own in self._points
        ]
        return (*rows, _product(self._points, self.inputs))

    @cached_property
    def of_weights(self) -> Matrix:
        """G {points, taps}: the value of a polynomial at each point, scaled for interpolation."""
        if self.stride > 1:
            return self._spread([f.of_weights for f in self._phases], self.taps)
        rows: list[Row] = []
        for own in self._points:
            others = (own - p for p in self._points if p != own)
            scale = reduce(lambda a, b: a * b, others, Fraction(1))
            rows.append(tuple(own**k / scale for k in range(self.taps)))
        return (*rows, _unit(self.taps))

    @cached_property
    def of_output(self) -> Matrix:
        """A^T {outputs, points}."""
        if self.stride > 1:
            each = [f.of_output for f in self._phases]
            return tuple(sum(rows, ()) for rows in zip(*each, strict=True))
        last = _unit(self.outputs)
        return tuple((*(p**i for p in self._points), last[i]) for i in range(self.outputs))

    @cached_property
    def denominator(self) -> int:
        """The least multiple of the weights' coefficients that makes all of them whole."""
        return lcm(*(c.denominator for row in self.of_weights for c in row))

    @cached_property
    def is_whole(self) -> bool:
        """Whether integers stay integers, which a shift can divide by the weights' multiple."""
        every = (c for m in (self.of_input, self.of_output) for row in m for c in row)
        return all(abs(c) in (0, 1) for c in every) and self.denominator.bit_count() == 1

    @cached_property
    def reach_of_input(self) -> tuple[tuple[float, ...], float]:
        """(the largest magnitude of each transformed element, of all parts), for ones."""
        ones: list[Expr] = [Lit(1.0, DType.F32)] * self.inputs
        found = [_magnitude(e) for e in products(self.of_input, ones)]
        return tuple(total for total, _ in found), max(most for _, most in found)

    @cached_property
    def reach(self) -> int:
        """How many neighbouring outputs depend on one input, those that should not included."""
        touched = [
            [
                i
                for i, a in enumerate(self.of_output)
                if any(r[j] and c for r, c in zip(self.of_input, a, strict=True))
            ]
            for j in range(self.inputs)
        ]
        extents = []
        for first in range(self.outputs):
            # The input is in each tile that begins at or before it, at most so many back.
            tiles = range(first, self.inputs, self.outputs)
            places = [i - j for j in tiles for i in touched[j]]
            extents.append(max(places) - min(places) + 1)
        return max(extents)

    @cached_property
    def growth(self) -> float:
        """How much larger the products' sums of magnitudes are than those of the outputs, at most.

        max{i,k} sum{p} |A^T[i,p]| |G[p,k]| sum{j} |B^T[p,j]|
        """
        reach = [sum(map(abs, row)) for row in self.of_input]
        return float(
            max(
                sum(
                    abs(a) * abs(g[k]) * b
                    for a, g, b in zip(row, self.of_weights, reach, strict=True)
                )
                for row in self.of_output
                for k in range(self.taps)
            )
        )

    @cached_property
    def typical(self) -> float:
        """The same where errors and elements have random signs: of roots of sums of squares.

        An output's error for elements of one magnitude, in errors of a direct sum.
        """
        reach = [sum(c * c for c in row) for row in self.of_input]
        weight = [sum(c * c for c in row) for row in self.of_weights]
        most = max(
            sum(a * a * g * b for a, g, b in zip(row, weight, reach, strict=True))
            for row in self.of_output
        )
        return sqrt(most / self.taps)


@record
class Bounds:
    """What filtering may cost, with u = 2^-24 and C products per point.

    Of an output in exact arithmetic, y, and the one computed, where no element of its tile is
    larger than `top` <= `largest` [Higham 2002, §3.1]:

        |computed - y| <= (C + `steps`) * u * `growth` * sum|w| * top

    Elements up to `largest` do not overflow. One that is no finite number spoils the outputs of
    its tiles: at most `reach` neighbours along each filtered dim.
    """

    growth: float
    steps: int
    largest: float
    reach: tuple[int, ...]


def bounds(filters: Mapping[int, Filter], weights: np.ndarray, sums: tuple[int, ...]) -> Bounds:
    """The bounds of filters over axes of the weights, of which `sums` are summed at each point."""
    every = list(filters.values())
    most = prod(f.reach_of_input[1] for f in every)
    sizes = np.abs(weights).sum(axis=sums, keepdims=True, dtype=np.float64)
    for axis, f in filters.items():
        each = np.array([[total] for total in f.reach_of_input[0]])
        sizes = _applied(each * _magnitudes(f.of_weights), sizes, axis)
    for axis, f in filters.items():
        # Sums of two points come before what they are multiplied by.
        most = max(most, 2 * float(sizes.max(initial=0.0)))
        sizes = _applied(_magnitudes(f.of_output), sizes, axis)
    return Bounds(
        prod(f.growth for f in every),
        1 + sum(4 * f.inputs for f in every),
        LARGEST / max(most, float(sizes.max(initial=0.0))),
        tuple(f.reach for f in every),
    )


def _magnitudes(matrix: Matrix) -> np.ndarray:
    return np.array([[abs(float(c)) for c in row] for row in matrix])


def _applied(matrix: np.ndarray, array: np.ndarray, axis: int) -> np.ndarray:
    """The matrix times the columns of an array that lie along an axis."""
    return np.moveaxis(np.tensordot(matrix, array, (1, axis)), 0, axis)


PIECE_BYTES = 1 << 18
"""What is transformed at once: passing all of a large array through memory takes longer."""
LARGEST = float(np.finfo(np.float32).max) * (1 - 2.0**-10)
"""Sums of magnitudes up to here stay finite, their roundings included."""


def _magnitude(e: Expr) -> tuple[float, float]:
    """(the largest magnitude of sums and products of literals of any sign, of all their parts)."""
    if isinstance(e, Lit):
        return abs(float(e.value)), abs(float(e.value))
    assert isinstance(e, Apply), e
    (a, most), (b, other) = map(_magnitude, e.args)
    here = a * b if e.op == "mul" else a + b
    return here, max(here, most, other)


def _unit(size: int) -> Row:
    """The last unit vector."""
    return tuple(Fraction(int(i == size - 1)) for i in range(size))


def _product(roots: Sequence[Fraction], size: int) -> Row:
    """Coefficients, lowest first, of the polynomial with these roots."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [s - root * c for s, c in zip(shifted, [*found, Fraction(0)], strict=True)]
    return tuple(found + [Fraction(0)] * (size - len(found)))


def transform_weights(filters: Mapping[int, Filter], weights: np.ndarray) -> np.ndarray:
    """`weights` with its taps, along the axes that are keys, replaced by points.

    Computed in float64 and rounded once. Integers become i16, each a multiple by the filters'
    denominators, or stay wide where they do not fit.
    """
    floats = weights.dtype.kind == "f"
    matrices = {
        axis: np.array([[float(c) for c in row] for row in f.of_weights])
        for axis, f in filters.items()
    }
    shape = points_shape(filters, weights.shape)
    found = np.empty(shape, weights.dtype if floats else np.float64)
    others = [n for n in range(weights.ndim) if n not in filters]
    for at in _pieces(found, others[0] if others else None):
        part = weights[at].astype(np.float64)
        for axis, matrix in matrices.items():
            part = _applied(matrix, part, axis)
        found[at] = part
    if floats:
        return found
    found *= prod(f.denominator for f in filters.values())
    fits = np.abs(found).max(initial=0) <= np.iinfo(np.int16).max
    return np.ascontiguousarray(found.astype(np.int16 if fits else np.int32))


def points_shape(filters: Mapping[int, Filter], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of what `transform_weights` gives for weights of a shape."""
    return tuple(
        len(filters[n].of_weights) if n in filters else size for n, size in enumerate(shape)
    )


def stays_finite(filters: Mapping[int, Filter], weights: Data) -> bool:
    """Whether what `transform_weights` gives is sure to be finite numbers."""
    most = weights.largest if weights.is_finite else inf
    for f in filters.values():
        most *= float(_magnitudes(f.of_weights).sum(axis=1).max())
    return most <= LARGEST


def _pieces(array: np.ndarray, axis: int | None) -> Iterator[tuple[slice, ...]]:
    """Parts of an array along an axis, of about `PIECE_BYTES` each; all of it without an axis."""
    if axis is None:
        yield ()
        return
    count = array.shape[axis]
    step = max(1, count * PIECE_BYTES // max(array.nbytes, 1))
    for start in range(0, count, step):
        yield (*(slice(None),) * axis, slice(start, start + step))


def transformed(
    axes: Sequence[tuple[Matrix, Index]], leaf: Callable[[tuple[int, ...]], Expr]
) -> Expr:
    """The element at the indices of `axes` of an array transformed along all of its axes.

    `leaf` gives the array's elements; index i of an axis takes row i of its matrix.
    """
    if not axes:
        return leaf(())
    (matrix, index), rest = axes[0], axes[1:]

    def operand(k: int) -> Expr:
        return transformed(rest, lambda at: leaf((k, *at)))

    rows = products(matrix, [operand(k) for k in range(len(matrix[0]))])
    found = rows[-1]
    for i, row in reversed(list(enumerate(rows[:-1]))):
        here = apply("eq", IndexValue(index), Lit(i, DType.I64))
        found = apply("select", here, row, found)
    return found


def products(matrix: Matrix, operands: Sequence[Expr]) -> list[Expr]:
    """The matrix times a vector, one expression per row.

    Rows that are equal but for the signs of every other coefficient, and columns of which that
    is true, are sums and differences of the same two expressions, which are computed once.
    """
    halves = _paired_columns(matrix)
    if halves:
        return _by_columns(matrix, operands, halves)
    found: dict[int, Expr] = {}
    for i, (row, partner) in enumerate(zip(matrix, _partners(matrix), strict=True)):
        if i in found:
            continue
        if partner == i:
            found[i] = _sum(list(zip(row, operands, strict=True)))
            continue
        even = _sum([(c, x) for c, x in list(zip(row, operands, strict=True))[::2]])
        odd = [(c, x) for c, x in list(zip(row, operands, strict=True))[1::2] if c]
        scale = odd[-1][0]
        part = _sum([(c / scale, x) for c, x in odd])
        found[i] = _sum([(Fraction(1), even), (scale, part)])
        found[partner] = _sum([(Fraction(1), even), (-scale, part)])
    return [found[i] for i in range(len(matrix))]


@cache
def _partners(matrix: Matrix) -> tuple[int, ...]:
    """For every row the one that differs in the signs of every other column; itself without one."""
    mirrors = [tuple(c if k % 2 == 0 else -c for k, c in enumerate(row)) for row in matrix]
    return tuple(
        matrix.index(mirror) if mirror in matrix else i for i, mirror in enumerate(mirrors)
    )


@cache
def _paired_columns(matrix: Matrix) -> tuple[tuple[int, int], ...]:
    """Pairs of columns that differ in the signs of every other row only."""
    columns = list(zip(*matrix, strict=True))
    pairs: list[tuple[int, int]] = []
    for j, column in enumerate(columns):
        mirror = tuple(c if i % 2 == 0 else -c for i, c in enumerate(column))
        if mirror != column and mirror in columns[j + 1 :]:
            pairs.append((j, columns.index(mirror)))
    return tuple(pairs)


def _by_columns(
    matrix: Matrix, operands: Sequence[Expr], pairs: Sequence[tuple[int, int]]
) -> list[Expr]:
    """Rows from the sums (in even rows) and differences (in odd rows) of paired operands."""
    paired = {j for pair in pairs for j in pair}
    found: list[Expr] = []
    for i, row in enumerate(matrix):
        op = "add" if i % 2 == 0 else "sub"
        terms: list[tuple[Fraction, Expr]] = [
            (row[j], apply(op, operands[j], operands[k])) for j, k in pairs
        ]
        terms += [
            (c, x) for j, (c, x) in enumerate(zip(row, operands, strict=True)) if j not in paired
        ]
        found.append(_sum(terms))
    return found


def _sum(terms: Sequence[tuple[Fraction, Expr]]) -> Expr:
    """The sum of coefficients times operands, as additions and fused multiply-adds."""
    kept = sorted(((c, x) for c, x in terms if c), key=lambda t: t[0] != 1)
    (first, x), *rest = kept
    found: Expr = x if first == 1 else apply("mul", _literal(first), x)
    for c, y in rest:
        op = "add" if c > 0 else "sub"
        found = apply(op, found, y if abs(c) == 1 else apply("mul", _literal(abs(c)), y))
    return found


def _literal(c: Fraction) -> Lit:
    return Lit(float(c), DType.F32)
