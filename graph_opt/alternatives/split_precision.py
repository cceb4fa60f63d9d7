"""Products of f32 become products of their parts in bf16, where registers for matrices take those.

    x = hi + mid + lo        hi = bf16(x), mid = bf16(x - hi), lo = bf16(x - hi - mid)

Three parts of 8 bits hold the 24 bits of an f32. Of the nine products of the parts of two factors
six are kept; the others are below the rounding of the product in f32 [Henry, Tang & Heinecke 2019].
Sums stay in f32, and in order. Measured for 128 to 3072 products, errors are half of those of a sum
in order of products in f32, which rounds each product as it adds it. Long sums outside of matrix
registers are no such sums, but made of partial ones, which err less.

Where a precision asks for it, the first part stands for the number: one product instead of six.
Vectors that add up pairs of products of bf16 take such factors, too (`rounded_sums`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from math import ceil, inf, prod

from rutc.base.record import record
from rutc.graph_opt.alternatives import Assigned, Choosing, Offer
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.graph_opt.alternatives.factor_parts import (
    GROWTH,
    ROUNDED,
    TERMS,
    WHOLE,
    SumInParts,
    bytes_of,
    in_parts,
    loops_read,
    operands,
    taken_apart,
    terms_of_parts,
)
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.alternatives.rounded_reads import read_rounded
from rutc.graph_opt.alternatives.rounded_sums import filtered_sums, weighed_in_pairs
from rutc.graph_opt.alternatives.window_rows import longest_row
from rutc.graph_opt.decide.halo import edges_of
from rutc.graph_opt.decide.layout import fixed_orders, order_dims
from rutc.graph_opt.decide.slices import stays_near
from rutc.graph_opt.editor import ROOT, Editor
from rutc.graph_opt.exact_places import places
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.rounding import rounds
from rutc.graph_opt.row_runs import Rows, rows_in_use
from rutc.graph_opt.rules.pairs import is_window
from rutc.graph_opt.rules.row_groups import Orders, row_choices
from rutc.tensor_ir import Const, DType, Graph, Index, Nest, Read
from rutc.tensor_ir.coefficients import Coefficients
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.facts.matrix_blocks import COLUMNS, products_at_a_time, with_zeros
from rutc.tensor_ir.indices.affine import product
from rutc.tensor_ir.machine import COMMON, FEWEST_LANES, Machine

SAID = "split into bf16"
SAID_ROUNDED = "rounded to bf16"
"""The names of the algorithms: of all parts, and of the first alone."""


@rounds(
    changes="Where registers multiply matrices of bf16, factors of f32 are taken apart into three "
    "numbers in bf16. Their products are summed in order, with half the error of a sum in order in "
    "f32. An infinity makes NaN of its sums, and factors below 2e-31 have fewer bits "
    "(filtering.md).",
    refused="It gains too little, constants would take too much memory or hold an infinity, or "
    "subnormal numbers are kept.",
)
@record
class MultiplyParts(Choosing):
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
    rounded reads that, too: one of the two needs no memory. Sums that `filters` take afterwards,
    those of the machine if none are given, have their factors rounded once they are transformed.
    Of all sums those are taken that `only` names, if it names any.
    """

    share: float = 0.1
    free: int = 24 << 20
    least: float = 0.1
    saving: float = 40_000.0
    symbolic: bool = True
    parts: int = WHOLE
    filters: MinimalFiltering | None = None
    only: tuple[str, ...] | None = None
    machine: Machine = COMMON
    assigned: Assigned | None = None
    """What to take apart, instead of what is weighed so."""

    def __str__(self) -> str:
        return self.name

    @property
    def coefficients(self) -> Coefficients:
        """Those of the machine."""
        return self.machine.coefficients

    @property
    def in_pairs(self) -> bool:
        """Whether factors are rounded for instructions that add up pairs of their products."""
        return self.parts == ROUNDED and adds_pairs(self.machine)

    @property
    def filtering(self) -> MinimalFiltering:
        """What filters sums afterwards."""
        return self.filters or MinimalFiltering(machine=self.machine, rounded=self.in_pairs)

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
        for c in self.sums(editor):
            editor.replace(c.nest, tuple(in_parts(c, editor)))
        if self.parts == ROUNDED:
            own = filtered_sums(editor, self.filtering) if self.in_pairs else ()
            read_rounded(editor, own)

    def chosen(self, editor: Editor) -> Iterator[tuple[str, str]]:
        """(value, algorithm) of the sums to take apart."""
        return ((c.nest.out.name, self.said) for c in self.sums(editor))

    def sums(self, editor: Editor) -> list[SumInParts]:
        """The sums to take apart, those that gain most for each byte first."""
        if self.assigned is not None:
            found = self._found(editor, every=True)
            own = (c for c in found if self.assigned.has(c.nest.out.name, self.said))
            return [c for c in own if c.is_finite]
        found = self._found(editor)
        if self.parts < WHOLE:
            # To bring what is computed into columns pays for many rows only.
            often = (c for c in found if c.const is not None or c.number.is_const)
            return [c for c in (found if self.symbolic else often) if c.is_finite]
        number = _most_saving(found)
        symbols = frozenset() if number is None else number.names()
        constants = [n.data.array for n in editor.nodes.values() if isinstance(n, Const)]
        left = max(self.free, self.share * sum(array.nbytes for array in constants))
        taken: list[SumInParts] = []
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
        if self.in_pairs:
            # They pay for any number of rows.
            return None
        number = _most_saving(self._found(Editor(graph)))
        w = self.coefficients.split_precision
        many = w.many_rows if self.parts == WHOLE else w.busy_rows
        return None if number is None else number // many

    def _found(self, editor: Editor, *, every: bool = False) -> list[SumInParts]:
        """The sums that take less time so, or `every` one that may be taken apart.

        Those that tell places keep all parts.
        """
        nodes, outputs = editor.graph.nodes, editor.graph.outputs
        known = (editor.nodes[key] for key in editor.names())
        exact = places(editor.nodes.values()) if self.parts < WHOLE else frozenset()
        nests = (n for n in known if isinstance(n, Nest) and n.out.name not in exact)
        sums = [n for n in nests if n.reducer is not None]
        if self.only is not None:
            sums = [n for n in sums if n.out.name in self.only]
        orders = cache(lambda: order_dims(nodes, {}, fixed_orders(nodes, outputs), {}))
        tried = (self.weighed(n, editor, orders, every=every) for n in sums)
        return [c for c in tried if isinstance(c, SumInParts)]

    def weighed(
        self, n: Nest, editor: Editor, orders: Orders, *, every: bool = False
    ) -> SumInParts | Reason:
        """What there is to gain, or why nothing."""
        if not n.is_sum or editor.block(n) != ROOT:
            return Reason("it is no sum that stands by itself")
        if self.in_pairs:
            return weighed_in_pairs(n, editor, self.filtering, self.least, every=every)
        whole = self.parts == WHOLE
        found = operands(n, editor, computed=not whole)
        if isinstance(found, Reason):
            return found
        source, weights, const, products = found
        if whole and _comes_from_windows(source.value, editor):
            return Reason(f"%{source.value} is computed in the order of its windows")
        _, read = taken_apart(source, editor)
        choices = row_choices(n, read, loops_read(weights, editor), editor, orders)
        columns, inner = _sides(n, source, weights, editor)
        taps = None
        if not whole and const is not None and not _length(inner):
            taps = longest_row(n, source, weights, _length, editor)
        if taps is not None:
            choices, inner = (Rows((taps.along,)),), taps.products
        high = [rows for rows in choices if self._is_high(rows, editor)]
        filled = inner if _length(inner) else with_zeros(inner, DType.BF16.bytes)
        if columns < COLUMNS or not high or not filled:
            return Reason("it is no product of large matrices")
        window = self._window(n, source, editor)
        if window is None:
            return Reason(f"how far it reads outside of %{source.value} is not constant")
        inside, grown = window
        direct = self._direct(n, const, inside, editor)
        w = self.coefficients.split_precision
        idle = max(w.busy_products / _length(filled), 1.0) * filled / inner
        split = copied = 0.0
        if const is None:
            split = w.split * editor.typical(editor.values[weights.value].dims)
        if taps is not None:
            idle *= taps.each / taps.channels
            # Each element comes from another row of memory than its neighbours.
            copied = self.coefficients.layouts.copy * taps.copied(source, editor)
        costs = [
            self._cycles(n, source, const, rows, idle, grown, editor) + split + copied
            for rows in high
        ]
        cycles, rows = min(zip(costs, high, strict=True), key=lambda choice: choice[0])
        saved = direct - cycles
        # More constants have to be worth it.
        worth = max(self.least * direct, self.saving if whole else -inf)
        if not every and saved < worth:
            return Reason(f"it takes about {cycles:.0f} cycles instead of {direct:.0f}")
        columns_read = loops_read(weights, editor)
        number = product(editor.extents[d] for d in n.out.dims if d not in columns_read)
        return SumInParts(
            n, source, weights, const, rows, number, saved, direct, products, self.parts, taps
        )

    def _is_high(self, rows: Rows, editor: Editor) -> bool:
        """Whether there are enough rows, with enough along one of their loops to fill registers.

        Those along other loops may not become one with them.
        """
        least = FEWEST_LANES
        whole = self.parts == WHOLE
        fewest = self.coefficients.split_precision.fewest_rows if whole else least
        return editor.typical(rows.loops) >= fewest and any(
            editor.size((v,)) is None or editor.typical((v,)) >= least for v in rows.loops
        )

    def _window(self, n: Nest, source: Read, editor: Editor) -> tuple[float, float] | None:
        """(the share of its products that the sum in f32 does, how much a halo makes of parts).

        Registers take whole windows, which a sum in f32 need not; None where parts have no halo.
        """
        if source.fill is None:
            return 1.0, 1.0
        edges = edges_of(n, source, editor)
        if edges.reach is None:
            return None
        return prod(edges.shares_inside(self.coefficients).values()), edges.growth

    def _apart(self, elements: float) -> float:
        """Cycles to make parts of so many elements, of which the only one is the number rounded."""
        if self.parts == ROUNDED:
            return self.coefficients.bf16_pairs.rounded * elements / COMMON.width
        return self.coefficients.split_precision.split * elements * self.parts / WHOLE

    def _direct(self, n: Nest, const: Const | None, inside: float, editor: Editor) -> float:
        """Cycles of one core for the sum in f32, which does the products `inside` of its value."""
        per_cycle = self.coefficients.filtering.reached * COMMON.fma_per_cycle * COMMON.width
        streamed = bytes_of(const) / self.coefficients.split_precision.streamed
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
        whole, _ = taken_apart(source, editor)
        taken = editor.typical(loops_read(whole, editor))
        constant = self.parts * GROWTH * bytes_of(const)
        high = rows_in_use(editor.typical(rows.loops))
        products = editor.typical(n.dims) * len(terms_of_parts(self.parts)) / len(TERMS)
        cycles = products / w.products * max(w.busy_rows / high, idle)
        cycles = max(cycles, constant / w.streamed)
        cycles += self._apart(taken) + w.store * editor.typical(n.out.dims)
        bytes_ = taken * grown * self.parts * DType.BF16.bytes
        beside = [v for v in _plain_loops(source) if v in n.out.dims and v not in rows.loops]
        slices = (editor.typical((v,)) for v in beside)
        if source.fill is None and any(
            stays_near(bytes_, constant, count, COMMON.l2, self.coefficients.slices)
            for count in slices
        ):
            return cycles
        return cycles + max(bytes_ - COMMON.l2, 0) / w.moved


def _most_saving(found: Iterable[SumInParts]) -> Index | None:
    """The number of rows of the sums that save most together, of those where it is symbolic."""
    saved = Counter[Index]()
    for c in found:
        if not c.number.is_const:
            saved[c.number] += ceil(max(c.saved, 1.0))
    return saved.most_common(1)[0][0] if saved else None


def _comes_from_windows(value: str, editor: Editor) -> bool:
    """Whether a value is computed of small windows, by nests of elements at most."""
    n = editor.nest(value)
    while n is not None and n.reducer is None:
        whole = (r for e in n.body for r in reads(e) if len(r.coords) == len(n.out.dims))
        n = next((found for r in whole if (found := editor.nest(r.value)) is not None), None)
    return n is not None and is_window(n, editor)


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
    return next(iter(products_at_a_time(extent, DType.BF16.bytes)), 0)


def _plain_loops(r: Read) -> list[str]:
    return [v for _, c in index_coords(r) if (v := c.as_var) is not None]
