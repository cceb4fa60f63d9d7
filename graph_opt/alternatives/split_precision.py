"""Products of f32 become products of their parts in bf16, where registers for matrices take those.

    x = hi + mid + lo        hi = bf16(x), mid = bf16(x - hi), lo = bf16(x - hi - mid)

Three parts of 8 bits hold the 24 bits of an f32. Of the nine products of the parts of two factors
six are kept; the others are below the rounding of the product in f32 [Henry, Tang & Heinecke 2019].
Sums stay in f32, and in order. Measured for 128 to 3072 products, errors are half of those of a sum
in order of products in f32, which rounds each product as it adds it. Long sums outside of matrix
registers are no such sums, but made of partial ones, which err less.

Where a precision asks for it, the first part stands for the number: one product instead of six.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, reduce
from math import ceil, inf, prod, sqrt

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives import Assigned, Offer
from rutc.graph_opt.alternatives.rounded_reads import read_rounded
from rutc.graph_opt.alternatives.window_rows import Taps, in_rows, side_by_side
from rutc.graph_opt.bf16_parts import are_finite, parts_of
from rutc.graph_opt.decide.halo import growth, reach, shares_inside
from rutc.graph_opt.decide.layout import fixed_orders, order_dims
from rutc.graph_opt.decide.slices import stays_near
from rutc.graph_opt.editor import ROOT, Editor
from rutc.graph_opt.exprs import at_point, index_coords, point
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.rounding import rounds
from rutc.graph_opt.row_runs import COLUMNS, Rows, rows_in_use
from rutc.graph_opt.rules.row_groups import Orders, in_phases, row_choices
from rutc.graph_opt.weighted import weighted
from rutc.tensor_ir import (
    Apply,
    Cast,
    Const,
    Data,
    DType,
    Expr,
    Graph,
    Index,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
)
from rutc.tensor_ir.affine import plain, product
from rutc.tensor_ir.coefficients import Coefficients
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.machine import COMMON
from rutc.tensor_ir.windows import partners

NAMES = ("hi", "mid", "lo")
WHOLE, ROUNDED = len(NAMES), 1
"""How many parts hold all of a number in f32, and how many a rounded one."""
TERMS = ((0, 2), (0, 1), (1, 1), (1, 0), (0, 0), (2, 0))
"""The products of parts that are kept, (of the value, of the constant): each shares a part with
the next, which registers then hold already."""
HIGHEST = (2 - 2.0**-7) * 2.0**127
"""The largest number in bf16: less than the largest in f32, which would round to an infinity."""
SAID = "split into bf16"
SAID_ROUNDED = "rounded to bf16"
"""The names of the algorithms: of all parts, and of the first alone."""
SMALLEST = 2.0**-102
"""Factors that are not smaller have parts that are no subnormal numbers."""

SHORTEST, LONGEST = 16, 32
"""Products of a row and a column that one instruction does."""

GROWTH = DType.BF16.bytes / DType.F32.bytes
"""The size of a part in sizes of an f32."""


@record
class Candidate:
    """A sum that takes less time with parts: so many cycles less, at common sizes."""

    nest: Nest
    source: Read
    weights: Read
    const: Const | None
    """The node of the weights; None where they are computed, too."""
    rows: Rows
    number: Index
    """How many rows there are, all dims together that the constant does not have."""
    saved: float
    direct: float
    """The cycles of the sum as it is."""
    products: int
    """Of a sum."""
    parts: int = WHOLE
    taps: Taps | None = None
    """What is laid side by side first, where there are too few neighbours to multiply."""

    @property
    def is_finite(self) -> bool:
        """Whether all parts of the constant are; what is computed is taken to be."""
        return self.const is None or are_finite(self.const.data.array)

    @property
    def largest(self) -> float:
        """No sum overflows where no element of the value, or of both values, is larger."""
        # Parts are rounded up by 2^-8 at most, both of a product.
        highest = float(np.finfo(np.float32).max) / (1 + 2.0**-8) ** 2
        if self.const is None:
            return sqrt(highest / max(self.products, 1))
        axes = {d for d, c in index_coords(self.weights) if c.as_var in self.nest.bound}
        summed = tuple(i for i, d in enumerate(self.const.axes) if d in axes)
        sizes = np.abs(self.const.data.array).sum(axis=summed, dtype=np.float64)
        return highest / max(float(sizes.max(initial=0.0)), 1.0)

    @property
    def growth(self) -> float:
        """Bytes that the constant's parts take more than it, which may stay beside them."""
        return (self.parts * GROWTH - 1) * _bytes(self.const)


@rounds(
    changes="Where registers multiply matrices of bf16, factors of f32 are taken apart into three "
    "numbers in bf16. Their products are summed in order, with half the error of a sum in order in "
    "f32. An infinity makes NaN of its sums, and factors below 2e-31 have fewer bits "
    "(filtering.md).",
    refused="It gains too little, constants would take too much memory or hold an infinity, or "
    "subnormal numbers are kept.",
)
@record
class MultiplyParts:
    """Sums of many products with a constant become sums of products of parts.

    %y{m,n} = sum{k} %x[k, m] * %w[k, n]
      ->  %x.hi{k,m} = bf16(min(max(%x[k, m], -3.3895e38), 3.3895e38))
          %x.mid{k,m} = bf16(%x[k, m] - f32(%x.hi[k, m]))
          %x.lo{k,m} = bf16(%x[k, m] - f32(%x.hi[k, m]) - f32(%x.mid[k, m]))
          %y{m,n} = sum{k} f32(%x.hi[k, m]) * f32(%w.lo[k, n]) + f32(%x.hi[k, m]) * .. + ..

    Constants grow by half. Those are taken that save most time for each byte, as long as all of
    the model's do not grow by more than `share` of them, or `free` bytes; each where it saves
    `least` of its time, and `saving` cycles. An infinity makes NaN of the sums that it is in. Parts
    below 2**-126 count as zeros: factors below `SMALLEST` have fewer bits.

    Where sizes are symbolic, it is at common sizes that sums take less time. Of those whose sizes
    depend on symbols, the ones that save most together are taken, all of the same symbols; with
    few rows, the graph is the better one as it was (`many_rows`). Unless `symbolic`, none of them
    are taken.

    Of fewer `parts` than three, products of the first ones are left, and results have as many bits
    less. Constants do not grow then, and factors may both be computed: all sums are taken that save
    `least` of their time by it, whatever tells their sizes. What else reads a factor that is
    rounded reads that, too: one of the two needs no memory.
    """

    share: float = 0.1
    free: int = 24 << 20
    least: float = 0.1
    saving: float = 40_000.0
    symbolic: bool = True
    parts: int = WHOLE
    coefficients: Coefficients = COMMON.coefficients
    """Those of a machine; rates and caches are the usual ones."""
    assigned: Assigned | None = None
    """What to take apart, instead of what is weighed so."""

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """What the step does."""
        return "multiply parts of factors" if self.parts == WHOLE else "round factors"

    @property
    def said(self) -> str:
        """The name of the algorithm."""
        return SAID if self.parts == WHOLE else SAID_ROUNDED

    def run(self, editor: Editor) -> None:
        """Takes the products apart that pay most."""
        for c in self.chosen(editor):
            editor.replace(c.nest, tuple(_in_parts(c, editor)))
        if self.parts == ROUNDED:
            read_rounded(editor)

    def chosen(self, editor: Editor) -> list[Candidate]:
        """The sums to take apart, those that gain most for each byte first."""
        if self.assigned is not None:
            found = self._found(editor, every=True)
            own = (c for c in found if self.assigned.has(c.nest.out.name, self.said))
            return [c for c in own if c.is_finite]
        found = self._found(editor)
        if self.parts < WHOLE:
            return [c for c in found if c.is_finite]
        number = _most_saving(found)
        symbols = frozenset() if number is None else number.names()
        constants = [n.data.array for n in editor.nodes.values() if isinstance(n, Const)]
        left = max(self.free, self.share * sum(array.nbytes for array in constants))
        taken: list[Candidate] = []
        for c in sorted(found, key=lambda c: c.growth / max(c.saved, 1.0)):
            if not c.number.is_const and (not self.symbolic or c.number.names() != symbols):
                continue
            if c.growth <= left and c.is_finite:
                left -= c.growth
                taken.append(c)
        return taken

    def offers(self, editor: Editor) -> tuple[Offer, ...]:
        """Every sum that may be taken apart, and what it is estimated to take."""
        return tuple(
            Offer(c.nest.out.name, self.said, c.direct - c.saved, c.direct)
            for c in self._found(editor, every=True)
            if c.is_finite
        )

    def many_rows(self, graph: Graph) -> Index | None:
        """The size that is positive where sums have so many rows that parts pay.

        None where that does not depend on the inputs' sizes.
        """
        number = _most_saving(self._found(Editor(graph)))
        w = self.coefficients.split_precision
        many = w.many_rows if self.parts == WHOLE else w.busy_rows
        return None if number is None else number // many

    def _found(self, editor: Editor, *, every: bool = False) -> list[Candidate]:
        """The sums that take less time so, or `every` one that may be taken apart."""
        nodes, outputs = editor.graph.nodes, editor.graph.outputs
        known = (editor.nodes[key] for key in editor.names())
        sums = [n for n in known if isinstance(n, Nest) and n.reducer is not None]
        orders = cache(lambda: order_dims(nodes, {}, fixed_orders(nodes, outputs), {}))
        tried = (self.candidate(n, editor, orders, every=every) for n in sums)
        return [c for c in tried if isinstance(c, Candidate)]

    def candidate(
        self, n: Nest, editor: Editor, orders: Orders, *, every: bool = False
    ) -> Candidate | Reason:
        """What there is to gain, or why nothing."""
        if n.reducer is None or n.reducer.name != "sum" or editor.block(n) != ROOT:
            return Reason("it is no sum that stands by itself")
        whole = self.parts == WHOLE
        operands: tuple[Read, Read, Const | None] | Reason = weighted(n, editor)
        if isinstance(operands, Reason) and not whole:
            operands = _computed(n, editor) or operands
        if isinstance(operands, Reason):
            return operands
        source, weights, const = operands
        products = editor.size(n.bound)
        if products is None:
            return Reason("the number of its products is known at run time only")
        most_taps = self.coefficients.windows.most_taps
        if whole and _comes_from_windows(source.value, editor, most_taps):
            return Reason(f"%{source.value} is computed in the order of its windows")
        _, read = _taken(source, editor)
        choices = row_choices(n, read, _loops(weights), editor, orders)
        columns, inner = _sides(n, source, weights, editor)
        taps = None
        if not whole and const is not None and not _length(inner):
            taps = side_by_side(n, source, weights, _length, editor)
        if taps is not None:
            choices, inner = (Rows((taps.along,)),), taps.products
        w = self.coefficients.split_precision
        # Registers have rows along one loop, as others may not become one with it.
        least = self.coefficients.matrices.fewest_rows
        fewest = w.fewest_rows if whole else least
        high = [
            rows
            for rows in choices
            if editor.typical(rows.loops) >= fewest
            and any(editor.size((v,)) is None or editor.typical((v,)) >= least for v in rows.loops)
        ]
        if columns < COLUMNS or not high or not _length(inner):
            return Reason("it is no product of large matrices")
        window = self._window(n, source, editor)
        if window is None:
            return Reason(f"how far it reads outside of %{source.value} is not constant")
        inside, grown = window
        direct = self._direct(n, const, inside, editor)
        idle = max(w.busy_products / _length(inner), 1.0)
        if taps is not None:
            idle *= taps.each / taps.channels
        costs = [self._cycles(n, source, const, rows, idle, grown, editor) for rows in high]
        if const is None:
            brought = w.split * editor.typical(editor.values[weights.value].dims)
            costs = [c + brought for c in costs]
        if taps is not None:
            # Each element comes from another row of memory than its neighbours.
            brought = self.coefficients.layouts.copy * taps.copied(source, editor)
            costs = [c + brought for c in costs]
        cycles, rows = min(zip(costs, high, strict=True), key=lambda choice: choice[0])
        saved = direct - cycles
        # More constants have to be worth it.
        worth = max(self.least * direct, self.saving if whole else -inf)
        if not every and saved < worth:
            return Reason(f"it takes about {cycles:.0f} cycles instead of {direct:.0f}")
        weighed = _loops(weights)
        number = product(editor.extents[d] for d in n.out.dims if d not in weighed)
        return Candidate(
            n, source, weights, const, rows, number, saved, direct, products, self.parts, taps
        )

    def _window(self, n: Nest, source: Read, editor: Editor) -> tuple[float, float] | None:
        """(the share of its products that the sum in f32 does, how much a halo makes of parts).

        Registers take whole windows, which a sum in f32 need not; None where parts have no halo.
        """
        if source.fill is None:
            return 1.0, 1.0
        sizes = {d: plain(e) for d, e in editor.extents.items()}
        symbols = dict(editor.graph.symbols)
        halo = reach(n, source, sizes, symbols)
        if halo is None:
            return None
        shares = shares_inside(n, source, halo, sizes, editor.values, symbols, self.coefficients)
        return prod(shares.values()), growth(editor.values[source.value], halo, sizes, symbols)

    def _direct(self, n: Nest, const: Const | None, inside: float, editor: Editor) -> float:
        """Cycles of one core for the sum in f32, which does the products `inside` of its value."""
        per_cycle = self.coefficients.filtering.reached * COMMON.fma_per_cycle * COMMON.width
        streamed = _bytes(const) / self.coefficients.split_precision.streamed
        return max(editor.typical(n.dims) * inside / per_cycle, streamed)

    def _cycles(
        self,
        n: Nest,
        source: Read,
        const: Const | None,
        rows: Rows,
        idle: float,
        grown: float,
        editor: Editor,
    ) -> float:
        """Cycles of one core for products of parts, where instructions take `idle` times.

        Parts take `grown` times as much with their halo.
        """
        w = self.coefficients.split_precision
        whole, _ = _taken(source, editor)
        taken = editor.typical(_loops(whole))
        constant = self.parts * GROWTH * _bytes(const)
        high = rows_in_use(editor.typical(rows.loops))
        products = editor.typical(n.dims) * len(_terms(self.parts)) / len(TERMS)
        cycles = products / w.products * max(w.busy_rows / high, idle)
        cycles = max(cycles, constant / w.streamed)
        cycles += w.split * taken * self.parts / WHOLE + w.store * editor.typical(n.out.dims)
        bytes_ = taken * grown * self.parts * DType.BF16.bytes
        beside = [v for v in _plain_loops(source) if v in n.out.dims and v not in rows.loops]
        slices = (editor.typical((v,)) for v in beside)
        if source.fill is None and any(
            stays_near(bytes_, constant, count, COMMON.l2, self.coefficients.slices)
            for count in slices
        ):
            return cycles
        return cycles + max(bytes_ - COMMON.l2, 0) / w.moved


def _most_saving(found: Iterable[Candidate]) -> Index | None:
    """The number of rows of the sums that save most together, of those where it is symbolic."""
    saved = Counter[Index]()
    for c in found:
        if not c.number.is_const:
            saved[c.number] += ceil(max(c.saved, 1.0))
    return saved.most_common(1)[0][0] if saved else None


def _comes_from_windows(value: str, editor: Editor, most_taps: int) -> bool:
    """Whether a value is computed of small windows, by nests of elements at most."""
    n = editor.nest(value)
    while n is not None and n.reducer is None:
        whole = (r for e in n.body for r in reads(e) if len(r.coords) == len(n.out.dims))
        n = next((found for r in whole if (found := editor.nest(r.value)) is not None), None)
    if n is None:
        return False
    taps = editor.size(n.bound)
    bound = {d for d in n.bound if editor.size((d,)) != 1}
    every = [r for e in n.body for r in reads(e)]
    return taps is not None and taps <= most_taps and bool(partners(every, {*n.out.dims}, bound))


def _sides(n: Nest, source: Read, weights: Read, editor: Editor) -> tuple[int, int]:
    """(columns, products): the extents of the constant that registers hold blocks of."""
    extents = {d: editor.typical((d,)) for d in n.dims}
    moved = {v for _, c in index_coords(source) for v in c.names()}
    plain = {c.as_var for _, c in index_coords(source)}
    weighed = {v for _, c in index_coords(weights) for v in c.names()}
    columns = max((extents[d] for d in n.out.dims if d in weighed - moved), default=0)
    inner = max((extents[d] for d in n.bound if d in plain & weighed), default=0)
    # Values lie in the order of the longest one.
    longest = max((extents[d] for d in n.bound), default=0)
    return columns, inner if inner == longest else 0


def _length(extent: int) -> int:
    """How many products instructions do at a time; 0 if they do not divide so many."""
    lengths = range(LONGEST, SHORTEST - 1, -2)
    return next((n for n in lengths if extent > 0 and extent % n == 0), 0)


def _plain_loops(r: Read) -> list[str]:
    return [v for _, c in index_coords(r) if (v := c.as_var) is not None]


def _bytes(const: Const | None) -> int:
    """What a constant takes; a computed value is none."""
    return 0 if const is None else const.data.array.nbytes


def _computed(n: Nest, editor: Editor) -> tuple[Read, Read, None] | None:
    """Two factors that are computed, each read at one loop for each of its dims, or at one place.

    The second is the one that is brought into the order of registers: the smaller one, if any.
    """
    match n.body[0]:
        case Apply(op="mul", args=(Read() as a, Read() as b)) if a.value != b.value:
            pass
        case _:
            return None
    if {n.out.dtype, a.dtype, b.dtype} != {DType.F32}:
        return None
    for r in (a, b):
        coords = index_coords(r)
        loops = [c.as_var for _, c in coords if not c.is_const]
        if r.fill is not None or len(coords) != len(r.coords):
            return None
        if None in loops or len(set(loops)) != len(loops) or editor.constant(r.value) is not None:
            return None
    # Blocks are of dims of known sizes: either factor may be the one that lies in them.
    shared = _loops(a) & _loops(b) & {*n.out.dims}
    if editor.size({*n.dims} - shared) is None:
        return None
    sizes = [editor.typical(editor.values[r.value].dims) for r in (a, b)]
    return (b, a, None) if sizes[0] < sizes[1] else (a, b, None)


def _terms(parts: int) -> tuple[tuple[int, int], ...]:
    """The products that are kept of so many parts."""
    return tuple((i, j) for i, j in TERMS if i + j < parts)


def _in_parts(c: Candidate, editor: Editor) -> Iterator[Node]:
    """The parts of both factors, and the sum of their products."""
    if c.taps is not None and c.const is not None:
        yield from in_rows(c.nest, c.source, c.weights, c.const, c.taps, editor)
        return
    lefts: list[Expr] = []
    rest, read = _taken(c.source, editor)
    if c.rows.step > 1:
        rest, read = in_phases(c.source, c.rows, editor)
    dims = tuple(sorted(_loops(rest)))
    left: Expr = rest
    # What lies beyond the largest bf16 goes into the other parts: to round it gives an infinity.
    high = apply("min", apply("max", rest, Lit(-HIGHEST, DType.F32)), Lit(HIGHEST, DType.F32))
    for part in _names(c.source.value, c.parts, editor):
        # A number that is rounded alone may become an infinity.
        taken = high if left is rest and c.parts > ROUNDED else left
        value = Value(part, DType.BF16, dims)
        yield Nest((value,), (), None, (Cast(taken, DType.BF16),))
        left = apply("sub", left, Cast(at_point(value), DType.F32))
        lefts.append(Cast(replace(read, value=part), DType.F32))
    names = _names(c.weights.value, c.parts, editor)
    if c.const is None:
        value = editor.values[c.weights.value]
        out = Value(names[0], DType.BF16, value.dims)
        yield Nest((out,), (), None, (Cast(at_point(value), DType.BF16),))
    else:
        arrays = parts_of(c.const.data.array, c.parts)
        for part, array in zip(names, arrays, strict=True):
            out = Value(part, DType.BF16, c.const.out.dims)
            yield Const(out, c.const.axes, Data(array), c.const.origin)
    coords = c.weights.coords
    rights = [Cast(Read(part, coords, DType.BF16), DType.F32) for part in names]
    terms = [apply("mul", lefts[i], rights[j]) for i, j in _terms(c.parts)]
    yield replace(c.nest, body=(reduce(lambda a, b: apply("add", a, b), terms),))


def _taken(source: Read, editor: Editor) -> tuple[Read, Read]:
    """(what is taken apart, how a part of it is read): all of a value, or what is read of it."""
    value = editor.values[source.value]
    loops = [c.names() for _, c in index_coords(source)]
    apart = sum(map(len, loops)) == len(_loops(source)) and source.fill is None
    if apart and 2 * editor.typical(_loops(source)) <= editor.typical(value.dims):
        coords = point(tuple(sorted(_loops(source))))
        return source, Read(source.value, coords, DType.BF16)
    fill = None if source.fill is None else replace(source.fill, dtype=DType.BF16)
    return at_point(value), replace(source, dtype=DType.BF16, fill=fill)


def _loops(r: Read) -> frozenset[str]:
    return frozenset(v for _, c in index_coords(r) for v in c.names())


def _names(value: str, parts: int, editor: Editor) -> list[str]:
    return [editor.fresh_value(f"{value}.{part}") for part in NAMES[:parts]]
