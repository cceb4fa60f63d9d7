"""Factors of 8 bits take 16 where a processor multiplies pairs of those.

Without instructions for groups of four products of bytes, the best there are add two products of
i16 to an i32. Operands that are stored in 16 bits need no widening in the loop of the sum, and hold
a quantised number less its zero point, so that no sums of zero points are left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives.filtering import Filtered
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import at_point, is_gathered
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.filter_whole import FilterWhole, largest_difference
from rutc.graph_opt.rules.narrow import Quantised, integer_sum, origin_of
from rutc.tensor_ir import (
    Cast,
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
)
from rutc.tensor_ir.expr import index_names, reads, substitute
from rutc.tensor_ir.facts.products import are_small, pairs_are_small, summed_along
from rutc.tensor_ir.facts.windows import MOST_TAPS, partners
from rutc.tensor_ir.machine import PAIR, QUAD, Machine


@matches("reduction")
@record
class MultiplyPairs:
    """Factors of 8 bits become differences from their zero points in 16 bits.

    %y{m,n} = sum{k} (i32(%q[m, k]) - 7) * i32(%w[k, n])
    ->
    %q.wide{m,k} = i16(i32(%q[m, k]) - 7)
    %y{m,n} = sum{k} i32(%q.wide[m, k]) * i32(%w[k, n])

    Constants without a zero point stay in 8 bits that are in few products each. Where there is an
    instruction for factors of other signs, one of them is shifted by 128 instead, and so is its
    zero point, if then at most a sum of constants is left to subtract. Nothing is widened where one
    factor is a constant whose differences are small in pairs: sums of two products with bytes fit
    16 bits,

    %y{m,n} = sum{k} (i32(%q[m, k]) - 7) * (i32(%w[k, n]) - 128)       with %w : u8 of 64 to 192
    ->
    %w.small{k,n} = const, %w - 128 as i8
    %y{m,n} = sum{k} (i32(%q[m, k]) - 7) * i32(%w.small[k, n])

    unless `filters` make fewer products of wide ones.
    """

    machine: Machine
    filters: FilterWhole = FilterWhole()

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The sum over wide operands."""
        products = integer_sum(n, editor)
        if isinstance(products, Reason):
            return products
        n, found = products
        if self.machine.products(*(p.q.dtype for p in found)) != PAIR:
            return Reason("there is an instruction for such products, or none for pairs")
        if any(self.machine.has_matrices(p.q.dtype) for p in found):
            return Reason("registers for matrices take such products")
        if is_window(n, editor):
            return Reason("it sums over a small window, without pairs")
        if any(is_scanned(p, n, editor) for p in found):
            return Reason("a factor has the dim that a scan goes along")
        origin = origin_of(n, found)
        if self.machine.products(DType.U8, DType.I8) > PAIR:
            shifted = _shifted(n, found, editor, self.machine)
            if shifted is not None:
                nest, body = shifted
                return replace(nest, origin=origin), replace(n, body=(body,), origin=origin)
        small = self._small(n, found, editor)
        if small is not None:
            made, sides = small
            if not made and apply("mul", *sides) == n.body[0]:
                return Reason("pairs of its products fit 16 bits")
            made = tuple(replace(x, origin=origin) for x in made)
            return (*made, replace(n, body=(apply("mul", *sides),), origin=origin))
        new: list[Node] = []
        sides = []
        for p in found:
            if _stays(p, n, editor, self.machine):
                sides.append(Cast(p.q, DType.I32))
                continue
            wide = _widened(p, new, editor)
            if isinstance(wide, Reason):
                return wide
            nest, read = wide
            new.append(replace(nest, origin=origin))
            sides.append(Cast(read, DType.I32))
        if not new:
            return Reason("no operand gains by more bits")
        return (*new, replace(n, body=(apply("mul", *sides),), origin=origin))

    def _small(
        self, n: Nest, found: tuple[Quantised, Quantised], editor: Editor
    ) -> tuple[tuple[Const | Nest, ...], list[Expr]] | None:
        """Constants, nests and factors: one a small constant, the other one an u8."""
        if self.machine.products(DType.U8, DType.I8, small=True) == PAIR:
            return None
        for i, p in enumerate(found):
            const, other = editor.constant(p.q.value), found[1 - i]
            if const is None or not isinstance(p.zero, Lit | None):
                continue
            if p.q.fill is not None or editor.constant(other.q.value) is not None:
                continue
            zero = int(p.zero.value) if p.zero is not None else 0
            less = const.data.array.astype(np.int32) - zero
            if not fits_bytes(less) or not has_small_pairs(n, p.q, less, const):
                continue
            share = self.machine.coefficients.filtering.small
            filters = filtered_in_pairs(self.filters, n, other, p, less, const, share, editor)
            if not isinstance(filters, Reason):
                continue
            made: list[Const | Nest] = []
            read = p.q
            if read.dtype is not DType.I8 or zero:
                value = Value(editor.fresh_value(f"{read.value}.small"), DType.I8, const.out.dims)
                made.append(Const(value, const.axes, Data(less.astype(np.int8))))
                read = replace(read, value=value.name, dtype=DType.I8)
            if other.q.dtype is DType.I8:
                moved = moved_nest(other, editor)
                if moved is None:
                    continue
                nest, other = moved
                made.append(nest)
            sides = [Quantised(read).whole, other.whole]
            return tuple(made), sides if i == 0 else sides[::-1]
        return None


@record
class ByConstant:
    """A sum of products of bytes, of which `weights` are of a constant that is read inside."""

    nest: Nest
    source: Quantised
    weights: Quantised
    const: Const

    @property
    def zero(self) -> int:
        """The constant's zero point."""
        zero = self.weights.zero
        return int(zero.value) if isinstance(zero, Lit) else 0


def small_products(
    n: Node, editor: Editor, machine: Machine
) -> tuple[Nest, tuple[Quantised, Quantised]] | Reason:
    """A sum of products of bytes, faster where one factor is small; or why there is none."""
    if machine.products(DType.U8, DType.I8, small=True) != QUAD or machine.adds_products:
        return Reason("there is an instruction for all such products, or none for small ones")
    if machine.has_matrices(DType.I8):
        return Reason("registers for matrices take such products")
    return integer_sum(n, editor)


def by_constant(
    nest: Nest, found: tuple[Quantised, Quantised], editor: Editor
) -> ByConstant | Reason:
    """The sum with the one of its factors that is constant; or why that is none."""
    constant = [editor.constant(p.q.value) is not None for p in found]
    if sum(constant) != 1:
        return Reason("not one of its factors is constant")
    weights, source = found if constant[0] else found[::-1]
    const = editor.constant(weights.q.value)
    assert const is not None
    if not isinstance(weights.zero, Lit | None) or weights.q.fill is not None:
        return Reason("the constant's zero point varies, or it is read outside")
    return ByConstant(nest, source, weights, const)


def has_small_pairs(n: Nest, r: Read, less: np.ndarray, const: Const) -> bool:
    """Whether a constant factor, `less` without its zero point, is small wherever it is summed."""
    along = summed_along(n.bound, r)
    pairs = (pairs_are_small(less, const.axes.index(d)) for d in along)
    return are_small(less) or (bool(along) and all(pairs))


def filtered_in_pairs(
    filters: FilterWhole,
    n: Nest,
    source: Quantised,
    weights: Quantised,
    less: np.ndarray,
    const: Const,
    share: float,
    editor: Editor,
) -> Filtered | Reason:
    """How a sum would be filtered, of factors in 16 bits, if it takes so much of these as it is."""
    wide = replace(const, data=Data(less.astype(np.int16)))
    filters = replace(filters, share=filters.share * share)
    return filters.choice(n, source.q, weights.q, wide, largest_difference(source), editor)


def _shifted(
    n: Nest, found: tuple[Quantised, Quantised], editor: Editor, machine: Machine
) -> tuple[Nest, Expr] | None:
    """The nest of one factor as one of the other sign, and the product; None where it costs sums.

    i32(%q) - 7  ->  i32(%q.shifted) - 135        with %q.shifted = u8(i32(%q) + 128)

    Sums of a factor that is multiplied by many constants are no cost.
    """
    constant = [editor.constant(p.q.value) is not None for p in found]
    for i, p in enumerate(found):
        other = found[1 - i]
        moved = _moved_by(p)
        many = _products(other, n, editor) >= machine.coefficients.filtering.summed
        alone = moved is not None and constant[i] and (moved.zero is None or many)
        if moved is None or not (alone or (constant[1 - i] and other.zero is None)):
            continue
        made = moved_nest(p, editor)
        assert made is not None
        nest, here = made
        sides = [here.whole, other.whole]
        return nest, apply("mul", *(sides if i == 0 else sides[::-1]))
    return None


def moved_nest(p: Quantised, editor: Editor) -> tuple[Nest, Quantised] | None:
    """The nest of a factor as one of the other sign, and the factor that reads it."""
    moved = _moved_by(p)
    if moved is None:
        return None
    source = editor.values[p.q.value]
    value = Value(editor.fresh_value(f"{p.q.value}.shifted"), moved.q.dtype, source.dims)
    wide = apply("add", Cast(at_point(source), DType.I32), Lit(_shift(p.q.dtype), DType.I32))
    nest = Nest((value,), (), None, (Cast(wide, moved.q.dtype),))
    return nest, replace(moved, q=replace(moved.q, value=value.name))


def is_scanned(p: Quantised, n: Nest, editor: Editor) -> bool:
    """Whether a factor has the dim of a scan in whose body it is read: it is of all trips then."""
    return not editor.enclosing_dims(n).isdisjoint(editor.values[p.q.value].dims)


def fits_bytes(array: np.ndarray) -> bool:
    """Whether all elements are numbers of i8."""
    return array.size == 0 or bool(array.min() >= -128 and array.max() <= 127)


def _shift(dtype: DType) -> int:
    """What makes a number of 8 bits one of the other sign."""
    return 128 if dtype is DType.I8 else -128


def _moved_by(p: Quantised) -> Quantised | None:
    """A factor as a shifted one of the other sign; None for one that is gathered."""
    if is_gathered(p.q):
        return None
    by = _shift(p.q.dtype)
    dtype = DType.U8 if p.q.dtype is DType.I8 else DType.I8
    zero: Expr | None = Lit(by, DType.I32)
    match p.zero:
        case None:
            pass
        case Lit(value):
            zero = Lit(int(value) + by, DType.I32) if int(value) + by else None
        case known:
            zero = apply("add", known, Lit(by, DType.I32))
    fill = p.q.fill
    if fill is not None:
        fill = Lit(int(fill.value) + by, dtype)
    return Quantised(replace(p.q, dtype=dtype, fill=fill), zero)


def is_window(n: Nest, editor: Editor) -> bool:
    """Whether the sum has a schedule of its own, which writes out its window."""
    taps = editor.size(n.bound)
    bound = {d for d in n.bound if editor.size((d,)) != 1}
    every = [r for e in n.body for r in reads(e)]
    return taps is not None and taps <= MOST_TAPS and bool(partners(every, {*n.out.dims}, bound))


def _stays(p: Quantised, n: Nest, editor: Editor, machine: Machine) -> bool:
    """Whether a factor is better read in 8 bits."""
    if p.zero is not None or editor.constant(p.q.value) is None:
        return False
    return _products(p, n, editor) < machine.coefficients.filtering.many_products


def _products(p: Quantised, n: Nest, editor: Editor) -> int:
    """How many products each element of a factor is in."""
    inside = index_names(p.q)
    return editor.typical(d for d in n.dims if d not in inside)


def _widened(p: Quantised, beside: list[Node], editor: Editor) -> tuple[Nest, Read] | Reason:
    """The nest of a factor's differences in 16 bits, and how the sum reads it."""
    source = editor.values[p.q.value]
    element: Expr = Cast(at_point(source), DType.I32)
    fill = p.q.fill
    if p.zero is not None:
        if not _is_narrow(p.zero):
            return Reason("a zero point may be more than 8 bits hold")
        if fill is not None and not isinstance(p.zero, Lit):
            return Reason("what a factor is outside of its value is known at run time only")
        places = {
            c.as_var: Index.of(d)
            for d, c in p.q.coords
            if isinstance(c, Index) and c.as_var is not None
        }
        if not index_names(p.zero) <= set(places):
            return Reason("a zero point varies along loops that its factor does not")
        element = apply("sub", element, substitute(p.zero, places))
    if fill is not None:
        shift = p.zero.value if isinstance(p.zero, Lit) else 0
        fill = Lit(int(fill.value) - int(shift), DType.I16)
    if is_gathered(p.q):
        return Reason(f"%{p.q.value} is gathered")
    wide = Value(editor.fresh_value(f"{p.q.value}.wide", beside), DType.I16, source.dims)
    nest = Nest((wide,), (), None, (Cast(element, DType.I16),))
    return nest, Read(wide.name, p.q.coords, DType.I16, fill)


def _is_narrow(zero: Expr) -> bool:
    """Whether a zero point surely is an 8-bit number."""
    match zero:
        case Lit(value):
            return -128 <= int(value) <= 255
        case Cast(Read() as r, _):
            return r.dtype in (DType.I8, DType.U8)
        case _:
            return False
