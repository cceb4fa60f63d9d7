"""Sums of 8-bit integers that are rather left as they are: filters of rounded factors are faster.

Instructions add up twice as many products of 8 bits as of bf16, but where vectors add up pairs of
these, a filter of 4 x 4 outputs takes a quarter of the products of a window of 3 x 3. It costs
accuracy, as 8 bits do: what a sum loses by it in a case (`rounded_filters`) is compared with what
the same sum loses in 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.leeway import Looser
from rutc.graph_opt.quantise import Site, Span, lost_in_eight_bits
from rutc.graph_opt.rounded_filters import Energies, RoundedFilter, direct_cycles, rounded_filters
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.machine import Machine


def filtered_instead(
    graph: Graph, found: Iterable[Site], machine: Machine, spread: tuple[str, ...] = ()
) -> tuple[RoundedFilter, ...]:
    """The filters of sums of a graph in normal form that take less time than 8 bits, by a count.

    Of a sum that first which its rule likes best, by cost and bits lost.
    """
    if not adds_pairs(machine):
        return ()
    editor = Editor(graph)
    rule = MinimalFiltering(machine=machine, spread=spread, rounded=True, most_bits=np.inf)
    return tuple(w for s in found for w in _instead(s, editor, rule))


def _instead(site: Site, editor: Editor, rule: MinimalFiltering) -> Iterator[RoundedFilter]:
    machine = rule.machine
    together = machine.products(DType.U8, DType.I8)
    for way, found in rounded_filters(site, editor, rule):
        direct = direct_cycles(way.form, editor, machine, together, DType.U8)
        if way.offer.cost <= rule.share * direct:
            yield found


def no_less_accurate(
    found: Sequence[RoundedFilter],
    energies: Energies,
    graph: Graph,
    spans: Mapping[str, Span],
    machine: Machine,
) -> Looser:
    """Of each sum the first filter that loses no more than the sum does in 8 bits.

    Args:
        found: The filters.
        energies: Those of a case, by the algorithms.
        graph: The graph in normal form.
        spans: The ranges of values in 8 bits.
        machine: Its instructions decide how many bits weights have.
    """
    chosen: dict[str, str] = {}
    eight: dict[str, float] = {}
    for instead in found:
        value, algorithm = instead.algorithm
        if value in chosen or instead.algorithm not in energies:
            continue
        if value not in eight:
            span = spans[instead.site.value]
            eight[value] = lost_in_eight_bits(graph, instead.site, span, machine)
        if instead.lost(energies[instead.algorithm]) <= eight[value]:
            chosen[value] = algorithm
    return tuple(chosen.items())
