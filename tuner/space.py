"""The space of tiled schedules of a kernel: what a search may choose from.

A point fixes every parameter of a `Tiling`. Parameters are listed one by one; some points do not
fit the kernel, of which `tiled` says why. The default is a point as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from random import Random

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Schedule, apply_schedule
from rutc.tuner.access import Shape
from rutc.tuner.blocking import sole_output
from rutc.tuner.choice import Choice
from rutc.tuner.dot import products_together
from rutc.tuner.tile_cost import bound_order
from rutc.tuner.tiled import REUSE, Tiling, default_tiling, tiled
from rutc.tuner.tiles import choose_tile, register_tiles

REUSES = (4, REUSE, 16, 32)
"""For how many tiles a block of the reduction may be used."""
MOST_LENGTHS = 8
"""Lengths of blocks, and of chunks of a loop, to choose from."""
SHORTEST_BLOCK = 8
MOST_TRIED = 200
"""Points that are drawn until one fits."""

Axis = tuple[object, ...]


@record
class TilingSpace:
    """The tilings of a kernel for a machine: the product of the values of each parameter."""

    kernel: Kernel
    shape: Shape
    machine: Machine
    before: Schedule = ()
    """The steps that made the kernel of the one that was asked about."""

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """The values of every parameter, by its name in `Tiling`."""
        return {
            "tile": tuple(register_tiles(self.shape, self.machine)),
            "block": self._blocks(),
            "holder": self._holders(),
            "chunk": (None, *self._chunks()),
            "prepare": (None, *self._prepared()),
            "whole_rows": (False, True),
            "reuse": REUSES,
            "parallel": (True, False) if self.machine.cores > 1 else (False,),
            "unroll": (True, False),
            "prefetch": (True, False),
        }

    def __len__(self) -> int:
        """The number of points, of which not all fit."""
        return prod(map(len, self.axes.values()))

    def __iter__(self) -> Iterator[Tiling]:
        for values in product(*self.axes.values()):
            yield self._point(dict(zip(self.axes, values, strict=True)))

    def default(self) -> tuple[Tiling, Choice] | None:
        """The point that the model of the machine prefers; None where no register tile fits."""
        tile = choose_tile(self.shape, self.machine, tiles_only=True)
        if tile is None:
            return None
        point = default_tiling(self.kernel, self.shape, tile, self.machine)
        return point, self.choice(point)

    def choice(self, point: Tiling) -> Choice:
        """The schedule of a point.

        Raises:
            NotApplicable: it does not fit the kernel.
        """
        found = tiled(self.kernel, self.shape, point, self.machine)
        apply_schedule(self.kernel, found.schedule)
        return replace(found, schedule=(*self.before, *found.schedule))

    def draw(self, rng: Random) -> tuple[Tiling, Choice] | None:
        """A random point that fits, with its schedule; None if there seems to be none."""
        if len(self) == 0:
            return None
        for _ in range(MOST_TRIED):
            point = self._point({name: rng.choice(axis) for name, axis in self.axes.items()})
            with suppress(NotApplicable):
                return point, self.choice(point)
        return None

    def near(self, point: Tiling, rng: Random) -> tuple[Tiling, Choice] | None:
        """A random point that fits and differs from another one in one parameter."""
        names = [name for name, axis in self.axes.items() if len(axis) > 1]
        for _ in range(MOST_TRIED if names else 0):
            name = rng.choice(names)
            values = {n: getattr(point, n) for n in self.axes}
            values[name] = rng.choice(self.axes[name])
            other = self._point(values)
            if other == point:
                continue
            with suppress(NotApplicable):
                return other, self.choice(other)
        return None

    @staticmethod
    def _point(values: dict[str, object]) -> Tiling:
        # What has no blocks has nothing that holds sums between them.
        if values["block"] is None:
            values |= {"holder": "", "reuse": REUSE}
        return Tiling(**values)  # type: ignore[arg-type]

    def _blocks(self) -> Axis:
        last = bound_order(self.shape)[-1]
        extent, group = self.shape.extents[last], products_together(self.shape, self.machine)
        parts = (-(-extent // n) for n in range(2, extent // SHORTEST_BLOCK + 1))
        lengths = [n for n in dict.fromkeys(parts) if n % group == 0]
        return (None, *_spread(lengths))

    def _holders(self) -> Axis:
        if len(self.shape.reductions) != 1:
            return ("",)
        partial = f"{self.shape.reductions[0].update.states[0].buffer}.partial"
        output = sole_output(self.kernel)
        return (partial,) if output is None else (partial, output)

    def _chunks(self) -> Iterator[tuple[str, int]]:
        for x in self.shape.shared:
            extent = self.shape.extents[x.var]
            if x.var not in self.shape.symbolic:
                yield from ((x.var, f) for f in _spread(_divisors(extent)))

    def _prepared(self) -> Axis:
        reads = (t for r in self.shape.reductions for t in r.reads)
        return tuple(dict.fromkeys(t.buffer for t in reads if t.packed))


def _divisors(n: int) -> list[int]:
    return [f for f in range(n // 2, 1, -1) if n % f == 0]


def _spread(values: list[int]) -> list[int]:
    """At most `MOST_LENGTHS` of the values, of all sizes."""
    if len(values) <= MOST_LENGTHS:
        return values
    return [values[i * (len(values) - 1) // (MOST_LENGTHS - 1)] for i in range(MOST_LENGTHS)]
