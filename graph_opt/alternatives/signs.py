"""Products of bytes of any size, of which one factor's magnitudes and signs are apart.

An instruction adds up two products of bytes, unsigned by signed ones, in 16 bits. Magnitudes are
at most 128, so that two products of them with signed bytes fit. The sign goes to the other factor:
where it is negative, that has all bits changed, which makes `-x - 1` of `x`. What this and a shift
to signed bytes add up to is known for every column of constants whose magnitudes are apart; of the
other factor's, the run adds up for every row what magnitudes it has where it is negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives import Offer
from rutc.graph_opt.alternatives.ways import ChoosesWays, Way
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords, is_gathered
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.rules.filter_whole import FilterWhole
from rutc.graph_opt.rules.narrow import Quantised
from rutc.graph_opt.rules.pairs import (
    by_constant,
    filtered_in_pairs,
    fits_bytes,
    has_small_pairs,
    is_scanned,
    is_window,
    small_products,
)
from rutc.tensor_ir import (
    BitCast,
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
from rutc.tensor_ir.expr import index_names

SAID, SAID_OF_ROWS = "signs apart", "signs of rows apart"
"""The names of the algorithms: those of the constant, and those of what is multiplied by it."""


@matches("reduction")
@record
class TakeSigns(ChoosesWays["Signed"]):
    """A sum of products of bytes becomes one of magnitudes with bytes that have the signs.

    %y{m,n} = sum{k} (i32(%q[m, k]) - 7) * i32(%w[k, n])                  with %q : u8, %w : i8
      ->  %y.signed{m,n} = sum{k} i32(bits_i8(%q[m, k]) ^ %w.signs[k, n]) * i32(%w.sizes[k, n])
          %y{m,n} = %y.signed[m, n] + %w.own[n]

    with %w.sizes = |%w| as u8, and %w.signs -128 where %w is not negative, 127 where it is; or

      ->  %q.sizes{m,k} = |i32(%q[m, k]) - 128| as u8
          %q.signs{m,k} = %q[m, k] < 128 ? -1 : 0
          %y.signed{m,n} = sum{k} i32(%w[k, n] ^ %q.signs[m, k]) * i32(%q.sizes[m, k])
          %y.below{m} = sum{k} %q[m, k] < 128 ? i32(%q.sizes[m, k]) : 0
          %y{m,n} = %y.signed[m, n] + %y.below[m] + %w.own[n]

    which reads the constant as it is, once. Exact. For machines that add up products of bytes in
    16 bits and have no better instruction, where constants are not small anyway, `filters` do not
    take fewer products of factors in 16 bits, and it takes fewer cycles than with all factors in
    these.
    """

    filters: FilterWhole = FilterWhole()

    def ways(self, n: Node, editor: Editor) -> Sequence[Way[Signed]] | Reason:
        """Signs of the constant are apart, or those of the other factor."""
        found = self._product(n, editor)
        if isinstance(found, Reason):
            return found
        forms = {SAID: found}
        if not is_scanned(found.source, found.nest, editor):
            forms[SAID_OF_ROWS] = replace(found, of_rows=True)
        name = found.nest.out.name
        return tuple(Way(Offer(name, k, *self._cycles(f, editor)), f) for k, f in forms.items())

    def made(self, form: Signed, editor: Editor) -> tuple[Node, ...]:
        """The factors, the sum, and what is left to add to it."""
        return _rows_apart(form, editor) if form.of_rows else _apart(form, editor)

    def _product(self, n: Node, editor: Editor) -> Signed | Reason:
        """The sum of products whose constant has magnitudes and signs."""
        products = small_products(n, editor, self.machine)
        if isinstance(products, Reason):
            return products
        nest, factors = products
        if is_window(nest, editor):
            return Reason("it sums over a small window, without pairs")
        found = by_constant(nest, factors, editor)
        if isinstance(found, Reason):
            return found
        source, weights, const = found.source, found.weights, found.const
        if any(is_gathered(p.q) for p in (source, weights)):
            return Reason("a factor is gathered")
        if not _goes_along(weights.q, nest.bound, editor):
            return Reason(f"a summed loop does not go along all of a dim of %{const.out.name}")
        less = const.data.array.astype(np.int32) - found.zero
        if not fits_bytes(less):
            return Reason("the constant less its zero point is more than 8 bits hold")
        if has_small_pairs(nest, weights.q, less, const):
            return Reason("pairs of its products fit 16 bits")
        filters = filtered_in_pairs(self.filters, nest, source, weights, less, const, 1.0, editor)
        if not isinstance(filters, Reason):
            return Reason("filters take fewer products")
        return Signed(nest, source, weights, const, less)

    def _cycles(self, s: Signed, editor: Editor) -> tuple[float, float]:
        """What the sum takes with signs apart, and with factors in 16 bits.

        Of few rows, it takes as long as the constant is read, of which there are two if its signs
        are apart. Those of rows are found in a run, and their magnitudes are added up.
        """
        m, w = self.machine, self.machine.coefficients.filtering
        rate = m.fma_per_cycle * m.width * w.reached
        direct = editor.typical(s.nest.dims) / (rate * w.paired)
        once, twice = s.less.size, 2 * s.less.size
        paired = max(direct, once / m.bytes_again(once))
        last = editor.typical(s.nest.out.dims) / rate
        if s.of_rows:
            elements = editor.typical(editor.values[s.source.q.value].dims)
            added = editor.typical({*s.summed_rows, *s.nest.bound})
            apart = max(direct * w.signed, once / m.bytes_again(once))
            return apart + last + (elements + added) / rate, paired
        return max(direct * w.signed, twice / m.bytes_again(twice)) + last, paired


@record
class Signed:
    """A sum of products of bytes by a constant, which is `less` without its zero point."""

    nest: Nest
    source: Quantised
    weights: Quantised
    const: Const
    less: np.ndarray
    of_rows: bool = False
    """Whether it is the other factor whose signs are apart."""

    @property
    def summed_rows(self) -> tuple[str, ...]:
        """The dims of the sums along which the other factor varies."""
        found = index_names(self.source.q)
        return tuple(d for d in self.nest.out.dims if d in found)

    def is_free(self, dim: str) -> bool:
        """Whether sums are of one index of the constant's dim each."""
        return dict(index_coords(self.weights.q))[dim].as_var not in self.nest.bound

    def summed(self, array: np.ndarray) -> np.ndarray:
        """The sums of an array like the constant, in 32 bits."""
        axes = tuple(i for i, d in enumerate(self.const.axes) if not self.is_free(d))
        return np.asarray(array.sum(axis=axes, dtype=np.int32))


def _goes_along(r: Read, bound: tuple[str, ...], editor: Editor) -> bool:
    """Whether each summed loop goes along all of a dim of what is read, and no other coordinate."""
    loops = {d: c.as_var for d, c in index_coords(r) if c.names() & {*bound}}
    if sorted(v or "" for v in loops.values()) != sorted(bound):
        return False
    return all(editor.extents[d] == editor.extents[v] for d, v in loops.items() if v)


class _Made:
    """The nodes of a sum with signs apart, as they are made."""

    def __init__(self, s: Signed, editor: Editor) -> None:
        self.s, self.editor = s, editor
        sources = (p.source for p in (s.source, s.weights) if p.source is not None)
        self.origin = merge_origins(*sources, s.nest)
        self.nodes: list[Node] = []
        # Bytes without a sign are shifted to have one.
        self.shift = 128 if s.source.q.dtype is DType.U8 else 0

    def constant(self, kind: str, array: np.ndarray, axes: tuple[str, ...]) -> str:
        """A new constant, named after that of the sum."""
        const = self.s.const
        name = self.editor.fresh_value(f"{const.out.name}.{kind}")
        value = Value(name, DType.of(array.dtype), tuple(sorted(axes)))
        self.nodes.append(Const(value, axes, Data(np.asarray(array)), const.origin))
        return name

    def column(self, kind: str, array: np.ndarray) -> Read:
        """A number for each column of the constant."""
        s = self.s
        name = self.constant(kind, array, tuple(d for d in s.const.axes if s.is_free(d)))
        return Read(name, tuple((d, c) for d, c in s.weights.q.coords if s.is_free(d)), DType.I32)

    def nest(self, name: str, dims: Sequence[str], element: Expr, *, of: Nest | None = None) -> str:
        """A new value of such elements, or of their sums as a nest has them."""
        value = Value(self.editor.fresh_value(name), element.dtype, tuple(sorted(dims)))
        loops = ((), None) if of is None else (of.bound, of.reducer)
        self.nodes.append(Nest((value,), *loops, (element,), self.origin))
        return value.name

    def whole(self, signed: Expr, sizes: Expr, own: np.ndarray, *more: Read) -> tuple[Node, ...]:
        """All nodes: the sum of products of both, and what is left to add to it.

        That are a number for each column, `more`, and what the other factor's zero point makes.
        """
        s = self.s
        product = apply("mul", Cast(signed, DType.I32), Cast(sizes, DType.I32))
        n, zero = s.nest, s.source.zero
        value = Value(self.editor.fresh_value(f"{n.out.name}.signed"), DType.I32, n.out.dims)
        self.nodes.append(Nest((value,), n.bound, n.reducer, (product,), self.origin))
        if isinstance(zero, Lit):
            own = own - s.summed(s.less * int(zero.value))
        added = [*more, *([self.column("own", own)] if own.any() else [])]
        total: Expr = at_point(value)
        for r in added:
            total = apply("add", total, r)
        if zero is not None and not isinstance(zero, Lit):
            total = apply("sub", total, apply("mul", zero, self.column("sum", s.summed(s.less))))
        rest = replace(n, bound=(), reducer=None, body=(total,), origin=self.origin)
        return (*self.nodes, rest)


def _apart(s: Signed, editor: Editor) -> tuple[Node, ...]:
    """The nodes of a sum whose constant's signs are apart."""
    made, q, coords = _Made(s, editor), s.source.q, s.weights.q.coords
    negative = s.less < 0
    # The signs change the highest bit, too, which shifts a byte.
    signs = (np.where(negative, -1, 0) ^ -made.shift).astype(np.int8)
    sizes = np.abs(s.less).astype(np.uint8)
    signed = Read(made.constant("signs", signs, s.const.axes), coords, DType.I8)
    size = Read(made.constant("sizes", sizes, s.const.axes), coords, DType.U8)
    given: Expr = BitCast(q, DType.I8) if made.shift else q
    # A changed byte is the negative one less 1, whatever both were shifted by.
    own = s.summed(s.less * made.shift + sizes * negative)
    return made.whole(apply("bitxor", given, signed), size, own)


def _rows_apart(s: Signed, editor: Editor) -> tuple[Node, ...]:
    """The nodes of a sum whose other factor's signs are apart."""
    made, q, weights = _Made(s, editor), s.source.q, s.weights.q
    if weights.dtype is not DType.I8 or s.weights.zero is not None:
        name = made.constant("whole", s.less.astype(np.int8), s.const.axes)
        weights = replace(weights, value=name, dtype=DType.I8)
    sizes, signs = magnitudes_and_signs(q, made.shift, editor, made.nest)
    # A changed constant is the negative one less 1.
    lost = apply("bitand", Cast(sizes, DType.I32), Cast(signs, DType.I32))
    rows = s.summed_rows
    name = made.nest(f"{s.nest.out.name}.below", rows, lost, of=s.nest)
    added = Read(name, tuple((d, Index.of(d)) for d in rows), DType.I32)
    own = s.summed(s.less * made.shift)
    return made.whole(apply("bitxor", weights, signs), sizes, own, added)


def magnitudes_and_signs(
    q: Read, shift: int, editor: Editor, nest: Callable[[str, tuple[str, ...], Expr], str]
) -> tuple[Read, Read]:
    """(u8, i8) of the bytes that are read, less a shift: how large, and -1 where below 0.

    `nest` makes a value of a name, dims and elements.
    """
    source = editor.values[q.value]
    shifted: Expr = Cast(at_point(source), DType.I32)
    if shift:
        shifted = apply("sub", shifted, Lit(shift, DType.I32))
    below = apply("lt", shifted, Lit(0, DType.I32))
    sign = apply("select", below, Lit(-1, DType.I8), Lit(0, DType.I8))
    size = Cast(apply("abs", shifted), DType.U8)
    outside = None if q.fill is None else int(q.fill.value) - shift
    fills: tuple[Lit | None, Lit | None] = (None, None)
    if outside is not None:
        fills = Lit(abs(outside), DType.U8), Lit(-1 if outside < 0 else 0, DType.I8)
    sizes = nest(f"{q.value}.sizes", source.dims, size)
    signs = nest(f"{q.value}.signs", source.dims, sign)
    return Read(sizes, q.coords, DType.U8, fills[0]), Read(signs, q.coords, DType.I8, fills[1])
