"""Products of bytes with constants of any size, of which magnitudes and signs are apart.

An instruction adds up two products of bytes, unsigned by signed ones, in 16 bits. Magnitudes of
constants are at most 128, so that two products of them with signed bytes fit. The sign goes to the
other factor: of a negative constant it has all bits changed, which makes `-x - 1` of `x`. What that
and a shift to signed bytes add up to is known for every column.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
)

SAID = "signs apart"
"""The name of the algorithm."""


@matches("reduction")
@record
class TakeSigns(ChoosesWays["Signed"]):
    """A sum of products of bytes becomes one of magnitudes with bytes that have the signs.

    %y{m,n} = sum{k} (i32(%q[m, k]) - 7) * i32(%w[k, n])                  with %q : u8, %w : i8
      ->  %y.signed{m,n} = sum{k} i32(bits_i8(%q[m, k]) ^ %w.signs[k, n]) * i32(%w.sizes[k, n])
          %y{m,n} = %y.signed[m, n] + %w.own[n]

    with %w.sizes = |%w| as u8, and %w.signs -128 where %w is not negative, 127 where it is. Exact.
    For machines that add up products of bytes in 16 bits and have no better instruction, where
    constants are not small anyway, `filters` do not take fewer products of factors in 16 bits, and
    it takes fewer cycles than with all factors in these.
    """

    filters: FilterWhole = FilterWhole()

    def ways(self, n: Node, editor: Editor) -> Sequence[Way[Signed]] | Reason:
        """The only way there is."""
        found = self._product(n, editor)
        if isinstance(found, Reason):
            return found
        return (Way(Offer(found.nest.out.name, SAID, *self._cycles(found, editor)), found),)

    def made(self, form: Signed, editor: Editor) -> tuple[Node, ...]:
        """The constants, the sum, and what is left to add to it."""
        return _apart(form, editor)

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

        Of few rows, it takes as long as the constant is read, of which there are two then.
        """
        m, w = self.machine, self.machine.coefficients.filtering
        rate = m.fma_per_cycle * m.width * w.reached
        direct = editor.typical(s.nest.dims) / (rate * w.paired)
        once, twice = s.less.size, 2 * s.less.size
        apart = max(direct * w.signed, twice / m.bytes_again(twice))
        paired = max(direct, once / m.bytes_again(once))
        return apart + editor.typical(s.nest.out.dims) / rate, paired


@record
class Signed:
    """A sum of products of bytes by a constant, which is `less` without its zero point."""

    nest: Nest
    source: Quantised
    weights: Quantised
    const: Const
    less: np.ndarray

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


def _apart(s: Signed, editor: Editor) -> tuple[Node, ...]:
    """The constants, the sum, and what is left to add to it."""
    n, source, less = s.nest, s.source, s.less
    new: list[Node] = []

    def constant(kind: str, array: np.ndarray, axes: tuple[str, ...]) -> str:
        name = editor.fresh_value(f"{s.const.out.name}.{kind}")
        value = Value(name, DType.of(array.dtype), tuple(sorted(axes)))
        new.append(Const(value, axes, Data(np.asarray(array)), s.const.origin))
        return name

    def column(kind: str, array: np.ndarray) -> Read:
        name = constant(kind, array, tuple(d for d in s.const.axes if s.is_free(d)))
        return Read(name, tuple((d, c) for d, c in s.weights.q.coords if s.is_free(d)), DType.I32)

    negative = less < 0
    # Bytes without a sign are shifted to have one by the highest bit, which the signs change too.
    shift = 128 if source.q.dtype is DType.U8 else 0
    signs = (np.where(negative, -1, 0) ^ -shift).astype(np.int8)
    sizes = np.abs(less).astype(np.uint8)
    coords = s.weights.q.coords
    signed = Read(constant("signs", signs, s.const.axes), coords, DType.I8)
    size = Read(constant("sizes", sizes, s.const.axes), coords, DType.U8)
    given: Expr = source.q if not shift else BitCast(source.q, DType.I8)
    body = apply("mul", Cast(apply("bitxor", given, signed), DType.I32), Cast(size, DType.I32))
    value = Value(editor.fresh_value(f"{n.out.name}.signed"), DType.I32, n.out.dims)
    origin = merge_origins(*(p.source for p in (source, s.weights) if p.source is not None), n)
    # A changed byte is the negative one less 1, whatever both were shifted by.
    own = s.summed(less * shift + sizes * negative)
    zero = source.zero
    if isinstance(zero, Lit):
        own = own - s.summed(less * int(zero.value))
    total: Expr = apply("add", at_point(value), column("own", own))
    if zero is not None and not isinstance(zero, Lit):
        total = apply("sub", total, apply("mul", zero, column("sum", s.summed(less))))
    return (
        *new,
        Nest((value,), n.bound, n.reducer, (body,), origin),
        replace(n, bound=(), reducer=None, body=(total,), origin=origin),
    )
