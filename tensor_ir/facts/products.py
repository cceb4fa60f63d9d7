"""Sums of products of narrow numbers, for which processors have instructions of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType, integer_range
from rutc.tensor_ir.expr import Apply, BitCast, Cast, Expr, Lit, Read, index_names, reads_plainly
from rutc.tensor_ir.graph import Const, Data, Graph, Nest, walk_nodes
from rutc.tensor_ir.indices.affine import Index, Range
from rutc.tensor_ir.kernel import Small, Update
from rutc.tensor_ir.machine import PAIR, QUAD
from rutc.tensor_ir.reducer import Reducer
from rutc.tensor_ir.terms import factors, terms

SUMMED = {
    DType.I8: DType.I32,
    DType.U8: DType.I32,
    DType.U4: DType.I32,
    DType.I16: DType.I32,
    DType.BF16: DType.F32,
}
"""The types of factors, and those in which their products are summed."""

SMALL = 64
"""The largest magnitude of factors any two of which are *small*."""
LARGEST_PAIR = 2 * SMALL
"""Two factors are *small* if those of a sign add up to no more: the sum of their products with
bytes, of 0 to 255, fits 16 bits."""
LARGEST_SIZE = 128
"""Any two factors without a sign are *small* that are no larger: products with -128 to 127 fit."""
LARGEST_SIZES = 2 * LARGEST_SIZE
"""As many of them as add up to no more are small together."""
_WHOLE = frozenset([DType.I8, DType.U8, DType.I16, DType.I32])


@record
class Factor:
    """A narrow number that is multiplied: one that is read, or two signed bytes' exclusive or."""

    reads: tuple[Read, ...]

    @property
    def dtype(self) -> DType:
        """Its type."""
        return self.reads[-1].dtype

    def moved(self, loop: str, by: int) -> Factor:
        """The factor so many iterations of a loop further on."""
        if not by:
            return self
        at = {loop: Index.of(loop) + by}
        coords = (
            tuple((d, c.subs(at)) for d, c in r.coords if isinstance(c, Index)) for r in self.reads
        )
        return Factor(tuple(map(Read.at, self.reads, coords)))


@record
class Scaled:
    """A product of narrow integers in a real number: `f32(a * b)` to which `others` do something.

    f32(i32(%q[m, b, l]) * i32(%w[n, b, l])) * %s[n, b]    the other is %s[n, b]
    (f32(..) + %z[m, b]) * %s[n, b]                        the others are %z[m, b] and %s[n, b]
    """

    factors: tuple[Factor, Factor]
    others: tuple[Expr, ...]

    def is_summed(self, loop: str | None) -> bool:
        """Whether only the product changes along a loop: its sum is one of integers."""
        return not any(loop in index_names(e) for e in self.others)


def are_small(array: np.ndarray) -> bool:
    """Whether any two elements are small."""
    most = SMALL if array.dtype.kind == "i" else LARGEST_SIZE
    return array.size == 0 or bool(array.min() >= -most and array.max() <= most)


def pairs_are_small(array: np.ndarray, axis: int) -> bool:
    """Whether elements 2i and 2i + 1 along an axis are small."""
    if are_small(array):
        return True
    low, high = (pair_sums(clip(array, 0), axis) for clip in (np.minimum, np.maximum))
    return bool(low.min() >= -LARGEST_PAIR and high.max() <= LARGEST_PAIR)


def fours_are_small(array: np.ndarray, axis: int) -> bool:
    """Whether pairs 4i and 4i + 2, and pairs 4i + 1 and 4i + 3, are small together."""
    most = LARGEST_PAIR if array.dtype.kind == "i" else LARGEST_SIZES
    return bool(four_sums(array, axis).max(initial=0) <= most)


def _in_fours(data: Data, axis: int) -> bool:
    return data.once(("small in fours", axis), lambda array: fours_are_small(array, axis))


def four_sums(array: np.ndarray, axis: int) -> np.ndarray:
    """What those of a sign add up to, of pairs 4i and 4i + 2 along an axis, and 4i + 1 and 4i + 3.

    The larger magnitude of both signs; the axis comes first.
    """
    found = np.zeros(1, np.int16)
    for clip in (np.minimum, np.maximum):
        sums = np.abs(pair_sums(clip(array, 0), axis))
        sums = np.pad(sums, [(0, -len(sums) % QUAD), *[(0, 0)] * (sums.ndim - 1)])
        quads = sums.reshape(len(sums) // QUAD, QUAD, *sums.shape[1:])
        found = np.maximum(found, quads[:, :PAIR] + quads[:, PAIR:])
    return found.reshape(PAIR * len(quads), *quads.shape[2:])


def pair_sums(array: np.ndarray, axis: int) -> np.ndarray:
    """The sums of elements 2i and 2i + 1 along an axis, which comes first; one may be left over."""
    moved = np.moveaxis(array, axis, 0)
    sums = moved[::2].astype(np.int16)
    sums[: len(moved) // 2] += moved[1::2]
    return sums


def summed_along(bound: tuple[str, ...], r: Read) -> tuple[str, ...]:
    """The dims of a value that a sum's loops go along, each of them alone."""
    return tuple(d for d, c in r.coords if isinstance(c, Index) and c.as_var in bound)


def magnitudes(graph: Graph) -> frozenset[str]:
    """Values of u8 that are no larger than `LARGEST_SIZE`, whatever they are computed from."""
    found = (n for n in walk_nodes(graph.nodes) if isinstance(n, Nest) and n.reducer is None)
    return frozenset(n.out.name for n in found if n.out.dtype is DType.U8 and _is_size(n.body[0]))


def _is_size(e: Expr) -> bool:
    limits = limits_of(e)
    return limits is not None and limits[1] <= LARGEST_SIZE


def limits_of(e: Expr) -> Range | None:
    """What whole numbers an expression may have; None where its type alone tells."""
    match e:
        case Lit(value) if e.dtype in _WHOLE:
            return int(value), int(value)
        case Cast(arg, to) if {to, arg.dtype} <= _WHOLE:
            inner, own = limits_of(arg) or integer_range(arg.dtype), integer_range(to)
            return inner if own[0] <= inner[0] and inner[1] <= own[1] else None
        case Apply("add" | "sub" as op, (a, b)) if e.dtype is DType.I32:
            p, q = (limits_of(x) or integer_range(x.dtype) for x in (a, b))
            return (p[0] + q[0], p[1] + q[1]) if op == "add" else (p[0] - q[1], p[1] - q[0])
        case Apply("abs", (a,)) if e.dtype is DType.I32:
            low, high = limits_of(a) or integer_range(a.dtype)
            return max(low, -high, 0), max(high, -low)
        case _:
            return None


def small_factors(
    nests: Iterable[Nest], constants: Mapping[str, Const], sizes: Collection[str] = ()
) -> Mapping[str, Small]:
    """What is known of bytes that are multiplied by bytes of another sign in sums.

    Known are `constants`, and that all `sizes` are `magnitudes`.
    """
    found: dict[str, Small] = {}
    for n in nests:
        pair = summed_factors(n.reducer, n.body)
        if {f.dtype for f in pair} not in ({DType.I8, DType.U8}, {DType.I8, DType.U4}):
            continue
        for r in (f.reads[0] for f in pair if len(f.reads) == 1):
            const = constants.get(r.value)
            if r.value in sizes:
                found[r.value] = Small(any_two=True)
            if const is None:
                continue
            array, along = const.data.array, summed_along(n.bound, r)
            known = found.get(r.value, Small())
            extents = dict(zip(const.axes, array.shape, strict=True))
            longer = (d for d in along if extents[d] > QUAD)
            fours = [d for d in longer if _in_fours(const.data, const.axes.index(d))]
            fours = sorted({*known.fours, *fours})
            if are_small(array):
                found[r.value] = Small(any_two=True, fours=tuple(fours))
                continue
            if not r.dtype.is_signed:
                continue
            pairs = [d for d in along if pairs_are_small(array, const.axes.index(d))]
            found[r.value] = Small(pairs=tuple(sorted({*known.pairs, *pairs})), fours=tuple(fours))
    return {name: small for name, small in found.items() if small}


def narrow_factors(s: Update) -> tuple[Factor, Factor] | None:
    """The narrow numbers whose products an update adds to a wide one; None where it does not."""
    return factors_of(s.reducer, s.elements)


def factors_of(reducer: Reducer | None, elements: tuple[Expr, ...]) -> tuple[Factor, Factor] | None:
    """The narrow numbers of which a reduction sums the products; None for any other.

    They are integers, summed in i32, or bf16, summed in f32.
    """
    found = _products(reducer, elements)
    return found[0] if found is not None and len(found) == 1 else None


def summed_factors(reducer: Reducer | None, elements: tuple[Expr, ...]) -> tuple[Factor, ...]:
    """The two factors of which a reduction sums products, as they are or `scaled`, if any."""
    found = scaled(reducer, elements)
    return factors_of(reducer, elements) or (() if found is None else found.factors)


def scaled(reducer: Reducer | None, elements: tuple[Expr, ...]) -> Scaled | None:
    """The only product of narrow integers in the real numbers that a reduction sums."""
    if reducer is None or reducer.name != "sum" or reducer.state != (DType.F32,):
        return None
    parts = [t for f in factors(elements[0]) for t in terms(f)]
    found = [(i, pair) for i, t in enumerate(parts) if (pair := whole_product(t)) is not None]
    if len(found) != 1:
        return None
    ((at, pair),) = found
    return Scaled(pair, tuple(e for i, e in enumerate(parts) if i != at))


def whole_product(e: Expr) -> tuple[Factor, Factor] | None:
    """The factors of a product of narrow integers that is taken as a real number."""
    match e:
        case Cast(Apply(op="mul", dtype=DType.I32) as product, DType.F32):
            return _product(product)
        case _:
            return None


def terms_of(
    reducer: Reducer | None, elements: tuple[Expr, ...]
) -> tuple[tuple[Read, Read], ...] | None:
    """The narrow reads whose products a reduction sums, in one wide type; None for any other.

    An element is a product, or a sum of several.
    """
    found = _products(reducer, elements)
    if found is None or any(len(f.reads) > 1 for pair in found for f in pair):
        return None
    return tuple((p.reads[0], q.reads[0]) for p, q in found)


def factor_reads(reducer: Reducer | None, elements: tuple[Expr, ...]) -> tuple[Read, ...]:
    """The narrow reads that a reduction sums products of; none for any other."""
    pairs = _products(reducer, elements) or (summed_factors(reducer, elements),)
    return tuple(r for pair in pairs for f in pair for r in f.reads)


def _products(
    reducer: Reducer | None, elements: tuple[Expr, ...]
) -> tuple[tuple[Factor, Factor], ...] | None:
    """The narrow factors whose products a reduction sums, in one wide type."""
    if reducer is None or reducer.name != "sum":
        return None
    found = [_product(t) for t in terms(elements[0])]
    known = tuple(pair for pair in found if pair is not None)
    kinds = {(SUMMED[f.dtype],) for pair in known for f in pair}
    return known if len(known) == len(found) and kinds == {reducer.state} else None


def _product(e: Expr) -> tuple[Factor, Factor] | None:
    match e:
        case Apply(op="mul", args=(a, b)):
            p, q = _narrow(a), _narrow(b)
            return None if p is None or q is None else (p, q)
        case _:
            return None


def _narrow(e: Expr) -> Factor | None:
    match e:
        case Cast(Read() as r, to) if SUMMED.get(r.dtype) is to:
            reads: tuple[Read, ...] = (r,)
        case Cast(
            Apply(
                "bitxor",
                (Read(dtype=DType.I8) | BitCast(Read(dtype=DType.U8)) as a, Read() as b),
            ),
            DType.I32,
        ) if b.dtype is DType.I8:
            first = a.arg if isinstance(a, BitCast) else a
            assert isinstance(first, Read)
            reads = first, b
        case _:
            return None
    return Factor(reads) if all(map(reads_plainly, reads)) else None
