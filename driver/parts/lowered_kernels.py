"""Kernels of groups, kept for plans that differ little: what is equal is lowered once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from rutc.driver.parts.compile_job import CompileJob
from rutc.tensor_ir.canonical import Canonical
from rutc.tensor_ir.indices.affine import Range
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.lower import Group


class Lowered:
    """Kernels and jobs of plans of graphs whose nests are the same objects where they are equal.

    Kernels have the names of the first groups that they are lowered from.
    """

    def __init__(self) -> None:
        self._kernels: dict[Hashable, tuple[object, tuple[Kernel, ...]]] = {}
        self._jobs: dict[Hashable, tuple[object, tuple[Canonical, CompileJob]]] = {}

    def kernels(
        self,
        groups: Sequence[Group],
        layouts: Mapping[str, Layout],
        symbols: Mapping[str, Range],
        make: Callable[[], tuple[Kernel, ...]],
        around: Hashable = (),
    ) -> tuple[Kernel, ...]:
        """The kernels of groups whose values lie so, within loops that say what is `around`."""
        values = sorted(frozenset().union(*(g.read_values | g.computed for g in groups)))
        key = (
            tuple((*map(id, g.stages), g.shared, g.stored, g.slices) for g in groups),
            tuple((v, layouts.get(v)) for v in values),
            tuple(symbols.items()),
            around,
        )
        if key not in self._kernels:
            # What objects are told by stays theirs as long as they are held.
            self._kernels[key] = tuple(g.stages for g in groups), make()
        return self._kernels[key][1]

    def job(
        self,
        kernels: tuple[Kernel, ...],
        slices: Hashable,
        make: Callable[[], tuple[Canonical, CompileJob]],
    ) -> tuple[Canonical, CompileJob]:
        """The job of kernels over such slices that these have lowered."""
        key = *map(id, kernels), slices
        if key not in self._jobs:
            self._jobs[key] = kernels, make()
        return self._jobs[key][1]
