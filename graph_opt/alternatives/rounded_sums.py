"""What sums take whose factors are rounded to bf16, as instructions add up pairs of products."""

from __future__ import annotations

from math import ceil, inf, prod

from rutc.graph_opt.alternatives.bf16_pairs import are_neighbours, sides
from rutc.graph_opt.alternatives.factor_parts import (
    ROUNDED,
    Candidate,
    bytes_of,
    computed_factors,
    loops_read,
    taken_apart,
)
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.decide.halo import reach, shares_inside
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.row_runs import Rows
from rutc.graph_opt.weighted import weighted
from rutc.tensor_ir import Const, Nest, Read
from rutc.tensor_ir.affine import plain, product
from rutc.tensor_ir.machine import PAIR, Machine


def pair_candidate(
    n: Nest, editor: Editor, machine: Machine, least: float, *, every: bool
) -> Candidate | Reason:
    """What a sum gains by rounded factors, `least` of its time at least, or why nothing."""
    operands: tuple[Read, Read, Const | None] | Reason = weighted(n, editor)
    if isinstance(operands, Reason):
        operands = computed_factors(n, editor) or operands
    if isinstance(operands, Reason):
        return operands
    source, weights, const = operands
    products = editor.size(n.bound)
    if products is None:
        return Reason("the number of its products is known at run time only")
    columns, inner = sides(n, source, weights, editor)
    if not are_neighbours(n, source, weights, editor, machine):
        return Reason("its products have too few neighbours")
    direct = _direct(n, source, const, columns, editor, machine)
    cycles = _in_pairs(n, source, weights, const, columns, inner, editor, machine)
    if not every and direct - cycles < least * direct:
        return Reason(f"it takes about {cycles:.0f} cycles instead of {direct:.0f}")
    weighed = loops_read(weights)
    number = product(editor.extents[d] for d in n.out.dims if d not in weighed)
    saved = direct - cycles
    return Candidate(n, source, weights, const, Rows(()), number, saved, direct, products, ROUNDED)


def _direct(
    n: Nest, source: Read, const: Const | None, columns: int, editor: Editor, machine: Machine
) -> float:
    """Cycles of one core for the sum in f32, filtered where that is faster."""
    cycles = _cycles(n, source, columns, machine.fma_per_cycle, editor, machine)
    cycles = max(cycles, bytes_of(const) / machine.coefficients.split_precision.streamed)
    filtering = MinimalFiltering(machine=machine, rounded=True)
    filters = [o.cost for o in filtering.offers(n, editor)] if const is not None else []
    return min(cycles, *(x for x in filters if x <= filtering.share * cycles), inf)


def _in_pairs(
    n: Nest,
    source: Read,
    weights: Read,
    const: Const | None,
    columns: int,
    inner: int,
    editor: Editor,
    machine: Machine,
) -> float:
    """Cycles of one core for the sum of products of rounded factors."""
    w = machine.coefficients.bf16_pairs
    idle = ceil(inner / PAIR) / inner
    rate = machine.bf16_pairs_per_cycle / idle
    cycles = _cycles(n, source, columns, rate, editor, machine)
    rounded = bytes_of(const) / PAIR / machine.coefficients.split_precision.streamed
    cycles = max(cycles, rounded)
    whole, _ = taken_apart(source, editor)
    cycles += w.rounded * editor.typical(loops_read(whole)) / machine.width
    if const is None:
        cycles += w.packed * editor.typical(editor.values[weights.value].dims)
    return cycles


def _cycles(
    n: Nest, source: Read, columns: int, rate: float, editor: Editor, machine: Machine
) -> float:
    """Cycles of the products that are inside of the value, so many of which are vectors a cycle."""
    inside = 1.0
    if source.fill is not None:
        sizes = {d: plain(e) for d, e in editor.extents.items()}
        symbols = dict(editor.graph.symbols)
        halo = reach(n, source, sizes, symbols)
        if halo is not None:
            shares = shares_inside(
                n, source, halo, sizes, editor.values, symbols, machine.coefficients
            )
            inside = prod(shares.values())
    vectors = editor.typical(n.dims) / columns * ceil(columns / machine.width)
    return vectors * inside / (machine.coefficients.filtering.reached * rate)
