"""Filters of rounded factors that lose more bits than others may, but not of the values at hand.

Where factors are rounded to bf16, a sum is filtered if it loses no more than a bit by that
(`MinimalFiltering.most_bits`): errors at most twice those of the sum of rounded factors as it
stands. That is known of filters of few outputs, of inputs of one magnitude and random signs.
Filters of more outputs lose more of those. Where neighbours are alike they often lose less than
a bit: so what they lose is found from a case (`rounded_filters`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.graph_opt.alternatives.filtering import MinimalFiltering, lost_bits
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords
from rutc.graph_opt.leeway import Looser
from rutc.graph_opt.quantise import Site
from rutc.graph_opt.rewrite import Reason
from rutc.graph_opt.rounded_filters import (
    Energies,
    RoundedFilter,
    direct_cycles,
    lost_by_rounding,
    rounded_filters,
)
from rutc.tensor_ir import DType, Graph, Nest
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.machine import Machine


def may_have_windows(graph: Graph) -> bool:
    """Whether a sum of an imported graph reads neighbours: if none does, nothing is filtered.

    Which of those that do are over windows (`filtering.windows_of`) is known in normal form only.
    """
    editor = Editor(graph)
    sums = (n for n in graph.nodes if isinstance(n, Nest) and n.bound)
    return any(_reads_neighbours(n, editor) for n in sums)


def _reads_neighbours(n: Nest, editor: Editor) -> bool:
    for r in (r for e in n.body for r in reads(e)):
        for _, c in index_coords(r):
            beside = {v for v in c.names() if c.coefficient(v) == 1}
            taps = {v for v in beside & set(n.bound) if editor.size((v,)) != 1}
            if taps and beside & set(n.out.dims):
                return True
    return False


def larger_filters(
    graph: Graph, found: Iterable[Site], machine: Machine, spread: tuple[str, ...] = ()
) -> tuple[RoundedFilter, ...]:
    """The filters of sums of a graph in normal form that are faster, but lose more than may be.

    Faster than any that loses less, and than the sum of rounded factors, by a count.
    """
    if not adds_pairs(machine):
        return ()
    editor = Editor(graph)
    rule = MinimalFiltering(machine=machine, spread=spread, rounded=True)
    return tuple(w for s in found for w in _larger(s, editor, rule))


def _larger(site: Site, editor: Editor, rule: MinimalFiltering) -> Iterator[RoundedFilter]:
    n, machine = editor.nest(site.nest), rule.machine
    usual = Reason("no nest") if n is None else rule.choice(n, editor)
    least = np.inf if isinstance(usual, Reason) else rule.weight(usual)
    every = MinimalFiltering(machine=machine, spread=rule.spread, rounded=True, most_bits=np.inf)
    for way, found in rounded_filters(site, editor, every):
        direct = direct_cycles(way.form, editor, machine, machine.pairs_by_singles, DType.BF16)
        larger = lost_bits(way.form.filters) > rule.most_bits
        if larger and every.weight(way) < min(least, direct):
            yield found


def within_bits(
    found: Iterable[RoundedFilter], energies: Energies, rounded: Mapping[str, float]
) -> Looser:
    """The filters that lose no more bits than any may, beside sums of rounded factors.

    Args:
        found: The filters.
        energies: Those of a case, by the algorithms.
        rounded: The shares of energy that values lose in bf16, in the same case.
    """
    # Losses are squares of errors.
    most = 4.0 ** MinimalFiltering().most_bits
    chosen = []
    direct: dict[str, float] = {}
    for f in found:
        if f.algorithm not in energies:
            continue
        own = f.site.nest
        if own not in direct:
            direct[own] = rounded[f.site.value] + lost_by_rounding(f.form.const.data.array)
        if f.lost(energies[f.algorithm]) <= most * direct[own]:
            chosen.append(f.algorithm)
    return tuple(chosen)
