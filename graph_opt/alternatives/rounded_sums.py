"""What sums take whose factors are rounded to bf16, as instructions add up pairs of products."""

from __future__ import annotations

from math import ceil, prod

from rutc.base.record import record
from rutc.graph_opt.alternatives.bf16_pairs import sides
from rutc.graph_opt.alternatives.factor_parts import (
    GROWTH,
    ROUNDED,
    SumInParts,
    bytes_of,
    loops_read,
    operands,
    taken_apart,
)
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.alternatives.window_rows import MOST_CHANNELS, Taps, longest_row
from rutc.graph_opt.decide.halo import edges_of
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.row_runs import Rows
from rutc.tensor_ir import Const, Nest, Read
from rutc.tensor_ir.indices.affine import product
from rutc.tensor_ir.machine import PAIR, Machine


def weighed_in_pairs(
    n: Nest, editor: Editor, filters: MinimalFiltering, least: float, *, every: bool
) -> SumInParts | Reason:
    """What a sum gains by rounded factors, `least` of its time at least, or why nothing.

    It may be filtered instead, by what follows.
    """
    machine = filters.machine
    found = operands(n, editor, computed=True)
    if isinstance(found, Reason):
        return found
    source, weights, const, products = found
    columns, inner = sides(n, source, weights, editor)
    taps = None
    if const is not None and inner <= MOST_CHANNELS:
        taps = longest_row(n, source, weights, lambda length: length % PAIR == 0, editor)
    if columns < machine.width or (inner < PAIR and taps is None):
        return Reason("its products have too few neighbours")
    work = _Work(n, source, weights, const, columns, editor, machine, filters)
    direct = work.direct()
    cycles = work.in_pairs(inner) if taps is None else work.in_rows(taps)
    if not every and direct - cycles < least * direct:
        return Reason(f"it takes about {cycles:.0f} cycles instead of {direct:.0f}")
    weighed = loops_read(weights, editor)
    number = product(editor.extents[d] for d in n.out.dims if d not in weighed)
    saved = direct - cycles
    return SumInParts(
        n, source, weights, const, Rows(()), number, saved, direct, products, ROUNDED, taps
    )


def filtered_sums(editor: Editor, filters: MinimalFiltering) -> frozenset[str]:
    """The values of sums over windows that are about to be filtered."""
    nests = (editor.nest(name) for name in editor.names())
    ways = (filters.choice(n, editor) for n in nests if n is not None and n.bound)
    return frozenset(w.offer.value for w in ways if not isinstance(w, Reason))


@record
class _Work:
    """What a sum takes on one core of a machine, in cycles at common sizes.

    The weights' factor has so many `columns` side by side; it is computed, too, if no constant.
    """

    nest: Nest
    source: Read
    weights: Read
    const: Const | None
    columns: int
    editor: Editor
    machine: Machine
    filters: MinimalFiltering

    def direct(self) -> float:
        """The sum in f32, or what filters make of it where that is faster."""
        cycles = max(self.products(self.machine.fma_per_cycle), self.streamed)
        ways = self.filters.ways(self.nest, self.editor) if self.const is not None else ()
        able = () if isinstance(ways, Reason) else filter(self.filters.may_choose, ways)
        costs = (w.offer.cost for w in able)
        return min((c for c in costs if c <= self.filters.share * cycles), default=cycles)

    def in_pairs(self, inner: int) -> float:
        """The sum of pairs of products along a loop of `inner` iterations, factors rounded."""
        w, width = self.machine.coefficients.bf16_pairs, self.machine.width
        idle = PAIR * ceil(inner / PAIR) / inner
        whole, _ = taken_apart(self.source, self.editor)
        cycles = (
            self.paired(idle)
            + w.rounded * self.editor.typical(loops_read(whole, self.editor)) / width
        )
        if self.const is None:
            cycles += w.packed * self.editor.typical(self.editor.values[self.weights.value].dims)
        return cycles

    def in_rows(self, taps: Taps) -> float:
        """The sum of pairs of products of taps that are laid side by side first."""
        copy = self.machine.coefficients.layouts.copy
        return self.paired(taps.each / taps.channels) + copy * taps.copied(self.source, self.editor)

    def paired(self, idle: float) -> float:
        """So many times the products of the sum, in pairs, or all constants from memory."""
        return max(self.products(self.machine.bf16_pairs_per_cycle * PAIR / idle), self.streamed)

    @property
    def streamed(self) -> float:
        """All constants from memory: they may be stored in bf16 whether factors are or not."""
        return GROWTH * bytes_of(self.const) / self.machine.coefficients.split_precision.streamed

    def products(self, per_cycle: float) -> float:
        """The products inside of the value, so many vectors of which are done in a cycle."""
        n, editor, machine, inside = self.nest, self.editor, self.machine, 1.0
        if self.source.fill is not None:
            shares = edges_of(n, self.source, editor).shares_inside(machine.coefficients)
            inside = prod(shares.values())
        vectors = editor.typical(n.dims) / self.columns * ceil(self.columns / machine.width)
        return vectors * inside / (machine.coefficients.filtering.reached * per_cycle)
