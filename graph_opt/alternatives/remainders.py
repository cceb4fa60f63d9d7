"""Products with constants of bytes, all but a few small: those few are summed once more, apart.

Where an instruction adds up two products of bytes in 16 bits, it is exact for small factors only
(`tensor_ir.facts.products`). Constants whose scale comes from their largest elements have few
pairs of others: what these are too large by, their remainders, is taken from them. More of them,
but often still few, are too large for two such sums to be added up in 16 bits, which saves
operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives import Offer
from rutc.graph_opt.alternatives.ways import ChoosesWays, Way
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import at_point, index_coords
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.rules.narrow import Quantised
from rutc.graph_opt.rules.pairs import (
    ByConstant,
    by_constant,
    fits_bytes,
    is_scanned,
    is_window,
    moved_nest,
    small_products,
)
from rutc.tensor_ir import (
    Cast,
    Const,
    Data,
    DType,
    Expr,
    Index,
    Nest,
    Node,
    Read,
    Value,
    apply,
)
from rutc.tensor_ir.facts.products import LARGEST_PAIR, SMALL, fours_are_small, pairs_are_small
from rutc.tensor_ir.indices.affine import floordiv, mod
from rutc.tensor_ir.machine import OCTET, PAIR, QUAD

BLOCKS = tuple(1 << bits for bits in range(4, 20))
"""Columns that may share a list of remainders."""


@matches("reduction")
@record
class TakeRemainders(ChoosesWays["Parted"]):
    """A sum of products of bytes becomes one with small factors, and one of their remainders.

    %y{m,n} = sum{k} (i32(%q[m, k]) - 7) * i32(%w[k, n])                  with %q : u8, %w : i8
      ->  %q.rest{m,n.block,k.rest} = %q[m, k=%w.places[n.block, k.rest]]
          %y.rest{m,n.block,n.part} = sum{k.rest} i32(%q.rest[..]) * i32(%w.rest[..])
          %y.small{m,n} = sum{k} i32(%q[m, k]) * i32(%w.small[k, n])
          %y{m,n} = %y.small[m, n] + %y.rest[m, n.block=n//16, n.part=n%16] - 7 * %w.sum[n]

    with %w = %w.small + remainders, of which those of each block of columns are in a list, with
    zeros up to the longest one's length. Exact. For machines that add up products of bytes in 16
    bits and have no better instruction, where that saves enough of the cycles that the sum takes
    otherwise: constants and code are larger. `remainders by 16` has a list for every 16 columns;
    `remainders in fours by 16` has those by which four factors are too large, not two.
    """

    share: float = 0.95
    saving: float = 20_000.0

    def ways(self, n: Node, editor: Editor) -> Sequence[Way[Parted]] | Reason:
        """Pairs or fours that are small, every size of blocks."""
        products = small_products(n, editor, self.machine)
        if isinstance(products, Reason):
            return products
        nest, factors = products
        if len(nest.bound) != 1 or is_window(nest, editor):
            return Reason("it sums along several dims, or over a small window")
        constant = by_constant(nest, factors, editor)
        if isinstance(constant, Reason):
            return constant
        found = _parted(constant, editor)
        if isinstance(found, Reason):
            return found
        name, direct = nest.out.name, self._direct(found[0], editor)
        return [
            Way(Offer(name, f"{p.said} by {block}", cycles, direct), replace(p, block=block))
            for p in found
            for cycles, block in self._blocks(p, editor)
        ]

    def made(self, form: Parted, editor: Editor) -> tuple[Node, ...]:
        """The constants, what is gathered, both sums, and the sum of these."""
        return _apart(form, editor)

    def _blocks(self, p: Parted, editor: Editor) -> Iterator[tuple[float, int]]:
        """(cycles, columns that share a list) for every size of blocks."""
        w = self.machine.coefficients
        rows, columns = editor.typical(p.others), p.columns
        for block, length in p.lengths():
            count = -(-columns // block)
            # What a block sums is stored, and read again.
            taken = (length + 2) * count * block * w.filtering.small
            many = w.filtering.fours if p.together == OCTET else w.filtering.small
            sums = (p.deep * columns * many + taken) * rows
            between = rows * count * block * DType.I32.bytes
            far = max(between - self.machine.l2, 0) / w.filtering.far_bytes
            gathered = rows * count * length * w.remainders.gathered
            yield self._cycles(sums) + gathered + far, block

    def _direct(self, p: Parted, editor: Editor) -> float:
        """What all products take otherwise, with signs apart where that was measured.

        Those are read beside the constant, which takes longer than the products of few rows.
        """
        m, w = self.machine, self.machine.coefficients
        whole = self._cycles(p.deep * editor.typical(p.nest.out.dims))
        if p.pairs_fit:
            return whole * w.filtering.small
        if m.loads_ahead:
            return whole
        read = 2 * p.deep * p.columns
        return min(whole, max(whole * w.filtering.signed, read / m.bytes_again(read)))

    def _cycles(self, products: float) -> float:
        """What so many products of factors in 16 bits take."""
        m, w = self.machine, self.machine.coefficients.filtering
        return products / (m.fma_per_cycle * m.width * w.reached * w.paired)


@record
class Parted:
    """A sum of products of bytes by a constant {deep, columns}, of which `rest` is taken away.

    The constant is read at the loop `along`, which the sum goes along, and at `column`. `small` is
    what it is without its `rest`, so that so many products are summed `together`. Pairs of the
    constant itself may fit. `block` columns share a list.
    """

    nest: Nest
    source: Quantised
    const: Const
    along: str
    column: Index
    small: Data
    rest: Data
    together: int
    pairs_fit: bool
    block: int = 0

    @property
    def said(self) -> str:
        """The name of the algorithm."""
        return "remainders in fours" if self.together == OCTET else "remainders"

    @property
    def others(self) -> tuple[str, ...]:
        """The sum's dims along which columns do not change."""
        return tuple(d for d in self.nest.out.dims if d not in self.column.names())

    @property
    def deep(self) -> int:
        """The products of a sum."""
        return len(self.rest.array)

    @property
    def columns(self) -> int:
        """The columns of the constant."""
        return len(self.rest.array.T)

    def lengths(self) -> Iterator[tuple[int, int]]:
        """(columns in a block, places in the longest list of a block) for all sizes of blocks."""
        each, width = _times(self.rest.array), 1
        for block in takewhile(lambda b: b < self.columns, BLOCKS):
            starts = np.arange(0, each.shape[1], block // width)
            each, width = np.maximum.reduceat(each, starts, axis=1), block
            yield block, _in_groups(int(each.sum(axis=0, dtype=np.int64).max()))
        yield self.columns, _in_groups(int(each.max(axis=1).sum(dtype=np.int64)))

    def lists(self) -> tuple[np.ndarray, np.ndarray]:
        """Places {block, rest} and remainders {block, rest, part}, all of these small.

        A place whose remainders are larger stands there again.
        """
        length, count = dict(self.lengths())[self.block], -(-self.columns // self.block)
        places = np.zeros((count, length), np.int64)
        found = np.zeros((count, length, self.block), np.int8)
        for number in range(count):
            left = self.rest.array[:, number * self.block : (number + 1) * self.block].copy()
            own = np.repeat(np.arange(self.deep), _times(left).max(axis=1))
            for i, place in enumerate(own):
                taken = np.clip(left[place], -SMALL, SMALL)
                places[number, i], found[number, i, : len(taken)] = place, taken
                left[place] -= taken
        return places, found


def _read_at(v: Value, where: Mapping[str, Index]) -> Read:
    """A value at these coordinates."""
    return Read(v.name, tuple((d, where[d]) for d in v.dims), v.dtype)


def _times(rest: np.ndarray) -> np.ndarray:
    """Of how many small numbers each remainder is the sum."""
    times: np.ndarray = ((np.abs(rest) + (SMALL - 1)) // SMALL).astype(np.uint8)
    return times


def _in_groups(length: int) -> int:
    """A length up to the next multiple of what an instruction takes."""
    return -(-length // QUAD) * QUAD


def _parted(p: ByConstant, editor: Editor) -> tuple[Parted, ...] | Reason:
    """The sum with few products together, unless these fit as they are, and with more."""
    source, weights, const = p.source, p.weights, p.const
    (along,) = p.nest.bound
    read = dict(index_coords(weights.q))
    units = [d for d, c in read.items() if c.is_const and editor.size((d,)) == 1]
    loops = [d for d in const.axes if d in read and d not in units]
    rows = [d for d in loops if read[d].as_var == along]
    if len(loops) != 2 or len(rows) != 1 or len(loops) + len(units) < len(const.axes):
        return Reason("the constant is not read at two loops, one of which is summed")
    (row,) = rows
    (name,) = (d for d in loops if d != row)
    column = read[name]
    whole = editor.size(column.names()) == editor.size((name,))
    if along in column.names() or not whole or editor.extents[row] != editor.extents[along]:
        return Reason(f"not all of %{const.out.name} is read")
    coords = index_coords(source.q)
    summed = [c.as_var for _, c in coords if along in c.names()]
    if len(coords) != len(source.q.coords) or summed != [along]:
        return Reason(f"%{source.q.value} is gathered, or not read at the loop that is summed")
    if any(column.names() & c.names() for _, c in coords):
        return Reason("both factors vary along the constant's columns")
    if source.q.dtype is DType.I8 and is_scanned(source, p.nest, editor):
        return Reason(f"%{source.q.value} has the dim that a scan goes along, and is signed")
    axes = [const.axes.index(d) for d in (row, name, *units)]
    size = [const.data.array.shape[i] for i in axes[:2]]
    array = const.data.array.transpose(axes).reshape(size).astype(np.int16) - p.zero
    if not fits_bytes(array):
        return Reason("the constant's differences from its zero point are more than 8 bits hold")
    if fours_are_small(array, 0):
        return Reason("fours of its products fit 16 bits")
    pairs_fit = pairs_are_small(array, 0)
    found = []
    for together in (OCTET,) if pairs_fit else (QUAD, OCTET):
        rest = _remainders(array, together)
        less = Data((array - rest).astype(np.int8))
        few = Parted(p.nest, source, const, along, column, less, Data(rest), together, pairs_fit)
        found.append(few)
    return tuple(found)


def _remainders(array: np.ndarray, together: int) -> np.ndarray:
    """What to take from elements so that their products fit 16 bits, so many of which are summed.

    Of each pair, or of pairs 4i and 4i + 2, those of one sign are too large by some number: the
    first one gives as much of it as it has, then the next.
    """
    padded = np.pad(array, [(0, -len(array) % together), (0, 0)])
    quads = padded.reshape(-1, together // QUAD, PAIR, PAIR, array.shape[1])
    rest = np.zeros_like(quads)
    for sign in (1, -1):
        own = np.maximum(sign * quads, 0)
        over = np.maximum(own.sum(axis=(1, 3), dtype=array.dtype) - LARGEST_PAIR, 0)
        for quad, element in np.ndindex(together // QUAD, PAIR):
            taken = np.minimum(own[:, quad, :, element], over)
            rest[:, quad, :, element] += sign * taken
            over -= taken
    return rest.reshape(padded.shape)[: len(array)]


def _apart(p: Parted, editor: Editor) -> tuple[Node, ...]:
    """The constants, what is gathered, both sums, and the sum of these."""
    n, source, new = p.nest, p.source, list[Node]()
    if source.q.dtype is DType.I8:
        moved = moved_nest(source, editor)
        assert moved is not None
        nest, source = moved
        new.append(nest)
    places, remainders = p.lists()
    blocks, length, _ = remainders.shape
    said = p.column.as_var or min(p.column.names())
    block = editor.fresh_dim(f"{said}.block", Index.of(blocks))
    part = editor.fresh_dim(f"{said}.part", Index.of(p.block))
    rest = editor.fresh_dim(f"{p.along}.rest", Index.of(length))

    def constant(kind: str, array: np.ndarray, *axes: str) -> Value:
        name = editor.fresh_value(f"{p.const.out.name}.{kind}")
        value = Value(name, DType.of(array.dtype), tuple(sorted(axes)))
        new.append(Const(value, axes, Data(array), p.const.origin))
        return value

    def summed(kind: str, bound: str, dims: set[str], factors: tuple[Read, Read]) -> Value:
        name = editor.fresh_value(f"{n.out.name}.{kind}")
        value = Value(name, DType.I32, tuple(sorted(dims)))
        body = apply("mul", *(Cast(r, DType.I32) for r in factors))
        new.append(Nest((value,), (bound,), n.reducer, (body,)))
        return value

    column = p.column.as_var or editor.fresh_dim(f"{said}.column", Index.of(p.columns))
    small = constant("small", p.small.array, p.along, column)
    others = {*p.others}
    listed = constant("places", places, block, rest)
    left = constant("rest", remainders, block, rest, part)
    coords = tuple(
        (d, at_point(listed) if c == Index.of(p.along) else c) for d, c in source.q.coords
    )
    inside = {v for _, c in index_coords(source.q) for v in c.names() if v in p.nest.out.dims}
    name = editor.fresh_value(f"{source.q.value}.rest")
    taken = Value(name, DType.U8, tuple(sorted({*inside, block, rest})))
    new.append(Nest((taken,), (), None, (source.q.at(coords),)))
    # The smaller sum first: what follows joins the kernel of the one before it.
    few = summed("rest", rest, {*others, block, part}, (at_point(taken), at_point(left)))
    here = {p.along: Index.of(p.along), column: p.column}
    many = summed("small", p.along, set(n.out.dims), (source.q, _read_at(small, here)))
    size = Index.of(p.block)
    where = {
        **{d: Index.of(d) for d in others},
        block: floordiv(p.column, size, editor.ranges),
        part: mod(p.column, size, editor.ranges),
    }
    body: Expr = apply("add", at_point(many), _read_at(few, where))
    if source.zero is not None:
        total = constant("sum", (p.small.array + p.rest.array).sum(axis=0, dtype=np.int32), column)
        body = apply("sub", body, apply("mul", source.zero, _read_at(total, here)))
    origin = merge_origins(*(() if source.source is None else (source.source,)), n)
    made = tuple(replace(x, origin=origin) if isinstance(x, Nest) else x for x in new)
    return (*made, replace(n, bound=(), reducer=None, body=(body,), origin=origin))
