"""Filters of factors rounded to bf16, and what sums lose by them: how much depends on the values.

So a case is looked at. With U the transformed tiles, V the transformed weights, of whose energies
(means of squares) bf16 loses a share e each, and A^T what transforms outputs back, the square of an
output's error is

    2 * e * products * mean{i} sum{p} A^T[i,p]^2 * energy(U[p]) * energy(V[p])

where signs are random. All losses are told relative to `products * energy(x) * energy(w)`, the
square of a sum of products of random signs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rutc.base.record import record
from rutc.graph_opt.alternatives.filtering import Filtered, MinimalFiltering, Work, said
from rutc.graph_opt.alternatives.ways import Way
from rutc.graph_opt.bf16_parts import parts_of
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.minimal_filter import Matrix, transform_weights
from rutc.graph_opt.quantise import Site, lost_of
from rutc.graph_opt.rewrite import Reason
from rutc.tensor_ir import DType
from rutc.tensor_ir.machine import Machine

Energies = Mapping[tuple[str, str], np.ndarray]
"""Those of a case, by the filters' algorithms."""


@record
class RoundedFilter:
    """A filter of a sum whose factors are rounded once they are transformed."""

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
        return float(2 * lost_by_rounding(points) * found.mean() / (taps * whole)) if whole else 0.0


def rounded_filters(
    site: Site, editor: Editor, rule: MinimalFiltering
) -> Iterator[tuple[Way[Filtered], RoundedFilter]]:
    """The filters of rounded factors that a sum may have by a rule, those it likes best first."""
    n = editor.nest(site.nest)
    ways = Reason("no nest") if n is None else rule.ways(n, editor)
    if isinstance(ways, Reason):
        return
    for way in sorted(ways, key=rule.weight):
        if way.form.rounded and rule.may_choose(way):
            yield way, RoundedFilter(site, way.form, editor.values[site.value].dims)


def direct_cycles(
    form: Filtered, editor: Editor, machine: Machine, faster: float, kind: DType
) -> float:
    """What the sum takes unfiltered, of factors of a type so many more of which go in a cycle."""
    n, source, const = form.nest, form.source, form.const
    windows, size = tuple(form.filters), float(kind.bytes)
    return Work(n, source, const, windows, editor, machine, faster, size).cycles({})


def lost_by_rounding(array: np.ndarray) -> float:
    """The share of its energy that an array loses in bf16."""
    return lost_of(array, parts_of(array, 1)[0].astype(np.float32))


def _floats(matrix: Matrix) -> np.ndarray:
    return np.array([[float(c) for c in row] for row in matrix])
