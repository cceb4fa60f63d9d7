"""Sums of 8-bit integers that are rather left as they are: filters of rounded factors are faster.

Instructions add up twice as many products of 8 bits as of bf16, but where vectors add up pairs of
these, a filter of 4 x 4 outputs takes a quarter of the products of a window of 3 x 3. It costs
accuracy, as 8 bits do: how much depends on the values, of which a case is looked at. With U the
transformed tiles, V the transformed weights, of whose energies (means of squares) bf16 loses a
share e each, and A^T what transforms outputs back, the square of an output's error is

    2 * e * products * mean{i} sum{p} A^T[i,p]^2 * energy(U[p]) * energy(V[p])

where signs are random. It is compared with what the same sum loses in 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rutc.base.record import record
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.graph_opt.alternatives.filtering import Filtered, Looser, MinimalFiltering, Work, said
from rutc.graph_opt.bf16_parts import parts_of
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.minimal_filter import Matrix, transform_weights
from rutc.graph_opt.quantise import Site, Span, lost_in_eight_bits, lost_of
from rutc.graph_opt.rewrite import Reason
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.machine import Machine


@record
class Instead:
    """A sum's filter of rounded factors that takes less time than the sum does in 8 bits."""

    site: Site
    form: Filtered
    dims: tuple[str, ...]
    """Those of the value that is filtered, in the order of `energies`' arrays."""

    @property
    def algorithm(self) -> tuple[str, str]:
        """(value, algorithm), as assignments have it."""
        return self.site.nest, said(self.form.filters, rounded=True)

    def energies(self, array: np.ndarray) -> np.ndarray:
        """The mean squares of elements of transformed tiles, by those of the array's own elements.

        Of tiles inside of the array, or of one that reaches beyond it.

        Args:
            array: The value that is filtered, its axes the `dims`.

        Returns:
            {points..}, a dim for each filtered window.
        """
        tiles = array.astype(np.float64)
        for w, f in self.form.filters.items():
            axis = self.dims.index(w.along)
            missing = [(0, 0)] * tiles.ndim
            missing[axis] = 0, max(f.inputs - array.shape[axis], 0)
            every = sliding_window_view(np.pad(tiles, missing), f.inputs, axis)
            apart = [slice(None)] * every.ndim
            apart[axis] = slice(None, None, f.advance)
            tiles = every[tuple(apart)] @ _floats(f.of_input).T
        whole = np.square(array, dtype=np.float64).mean()
        found = np.square(tiles).mean(axis=tuple(range(array.ndim)))
        return np.asarray(found / whole if whole else found)

    def lost(self, energies: np.ndarray) -> float:
        """What the sum loses by the filter: the mean square, by that of sums of random signs."""
        const, filters = self.form.const, self.form.filters
        axes = {const.axes.index(w.axis): f for w, f in filters.items()}
        points = transform_weights(axes, const.data.array)
        others = tuple(i for i in range(points.ndim) if i not in axes)
        each = np.square(points, dtype=np.float64).mean(axis=others)
        each = np.transpose(each, [sorted(axes).index(axis) for axis in axes])
        found = energies * each
        for f in filters.values():
            found = np.tensordot(found, np.square(_floats(f.of_output)).T, (0, 0))
        whole = np.square(const.data.array, dtype=np.float64).mean()
        taps = prod(f.taps for f in filters.values())
        rounded = parts_of(points, 1)[0].astype(np.float32)
        return float(2 * lost_of(points, rounded) * found.mean() / (taps * whole)) if whole else 0.0


def filtered_instead(
    graph: Graph, found: Iterable[Site], machine: Machine, spread: tuple[str, ...] = ()
) -> tuple[Instead, ...]:
    """The filters of sums of a graph in normal form that take less time than 8 bits, by a count.

    Of a sum that first which its rule likes best, by cost and bits lost.
    """
    if not adds_pairs(machine):
        return ()
    editor = Editor(graph)
    return tuple(w for s in found for w in _instead(s, editor, machine, spread))


def _instead(
    site: Site, editor: Editor, machine: Machine, spread: tuple[str, ...]
) -> Iterator[Instead]:
    rule = MinimalFiltering(machine=machine, spread=spread, rounded=True, most_bits=np.inf)
    n = editor.nest(site.nest)
    ways = Reason("no nest") if n is None else rule.ways(n, editor)
    if n is None or isinstance(ways, Reason):
        return
    together = machine.products(DType.U8, DType.I8)
    for way in sorted(ways, key=rule.weight):
        form = way.form
        if not form.rounded or not rule.may_choose(way):
            continue
        windows, bytes_ = tuple(form.filters), float(DType.U8.bytes)
        direct = Work(n, form.source, form.const, windows, editor, machine, together, bytes_)
        if way.offer.cost <= rule.share * direct.cycles({}):
            yield Instead(site, form, editor.values[site.value].dims)


def no_less_accurate(
    found: Sequence[Instead],
    energies: Mapping[tuple[str, str], np.ndarray],
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


def _floats(matrix: Matrix) -> np.ndarray:
    return np.array([[float(c) for c in row] for row in matrix])
