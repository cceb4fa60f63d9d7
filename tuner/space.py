"""Templates of schedules, and their spaces: what a search may choose from.

A *template* makes schedules of kernels of one shape. What it leaves open are its parameters, a
frozen record; a *point* fixes all of them. The *space* of a kernel has the values of each
parameter, one by one; some points do not fit the kernel, of which the template says why. The
default is a point, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from typing import Generic, TypeVar

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Schedule, apply_schedule
from rutc.tuner.access import Shape
from rutc.tuner.choice import Choice

MOST_TRIED = 200
"""Points that are drawn until one fits."""

Axis = tuple[object, ...]
P = TypeVar("P")
T = TypeVar("T")


@record
class Default(Generic[P]):
    """The point that the model of the machine prefers among those of a template.

    With `liked` it prefers it to all points of templates that are asked later. That model looks at
    few numbers of a kernel: estimates of its code (`tensor_ir.cost`) may prefer one of the `rivals`
    or, where it is `weighed`, choose between it and the default of a later template.
    """

    point: P
    liked: bool = True
    weighed: bool = False
    rivals: tuple[P, ...] = ()


@record
class Template(Generic[P]):
    """How kernels of one shape are scheduled, as functions of (kernel, shape, .., machine).

    `point` makes a point of values by the names of `axes`, which lists them for a kernel; of a
    parameter that is a tuple, each place has an axis: `lanes.0`. A template that does not fit a
    kernel has an empty axis, and no default. `schedule` raises NotApplicable where a point does not
    fit; all that do compute the same.
    """

    name: str
    point: Callable[..., P]
    axes: Callable[[Kernel, Shape, Machine], Mapping[str, Axis]]
    default: Callable[[Kernel, Shape, Machine], Default[P] | None]
    schedule: Callable[[Kernel, Shape, P, Machine], Choice]


@record
class Space(Generic[P]):
    """The points of a template for a kernel: the product of the values of each parameter."""

    template: Template[P]
    kernel: Kernel
    shape: Shape
    machine: Machine
    before: Schedule = ()
    """The steps that made the kernel of the one that was asked about."""
    fixed: tuple[str, ...] = ()
    """Parameters that keep the default's value."""

    @cached_property
    def default(self) -> Default[P] | None:
        """The point that the model of the machine prefers; None where the template does not fit."""
        return self.template.default(self.kernel, self.shape, self.machine)

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """The values of every parameter, those of the default and its rivals among them."""
        axes = self.template.axes(self.kernel, self.shape, self.machine)
        if self.default is None or not all(axes.values()):
            return dict(axes)
        mine = self._values(self.default.point, axes)
        liked = [mine, *(self._values(point, axes) for point in self.default.rivals)]
        added = {n: dict.fromkeys(v[n] for v in liked if v[n] not in axes[n]) for n in axes}
        free = {n: (*added[n], *axis) for n, axis in axes.items()}
        return {n: (mine[n],) if n in self.fixed else axis for n, axis in free.items()}

    def __len__(self) -> int:
        """The number of points, of which not all fit, up to the largest that Python allows."""
        return min(prod(map(len, self.axes.values())), sys.maxsize)

    def __iter__(self) -> Iterator[P]:
        for values in product(*self.axes.values()):
            yield self.of_values(dict(zip(self.axes, values, strict=True)))

    def cycles(self, point: P) -> float:
        """What a point is estimated to take.

        Raises:
            NotApplicable: it does not fit the kernel.
        """
        steps = self.unchecked(point).schedule[len(self.before) :]
        summary = summarise(apply_schedule(self.kernel, steps), self.machine)
        return estimate(summary, self.machine).cycles

    def choice(self, point: P) -> Choice:
        """The schedule of a point.

        Raises:
            NotApplicable: it does not fit the kernel.
        """
        found = self.unchecked(point)
        apply_schedule(self.kernel, found.schedule[len(self.before) :])
        return found

    def draw(self, rng: Random) -> tuple[P, Choice] | None:
        """A random point that fits, with its schedule; None if there seems to be none."""
        return self.drawn(rng, self.choice)

    def near(self, point: P, rng: Random) -> tuple[P, Choice] | None:
        """A random point that fits and differs from another one in one parameter."""
        return self.nearby(point, rng, self.choice)

    def drawn(self, rng: Random, make: Callable[[P], T]) -> tuple[P, T] | None:
        """A random point, with what is made of it; None if there seems to be none that fits.

        `make` raises NotApplicable for one that does not.
        """
        for _ in range(MOST_TRIED if len(self) else 0):
            point = self.of_values({name: rng.choice(axis) for name, axis in self.axes.items()})
            with suppress(NotApplicable):
                return point, make(point)
        return None

    def nearby(self, point: P, rng: Random, make: Callable[[P], T]) -> tuple[P, T] | None:
        """The same of random points that differ from another one in one parameter."""
        names = [name for name, axis in self.axes.items() if len(axis) > 1]
        for _ in range(MOST_TRIED if names else 0):
            name = rng.choice(names)
            values = {**self.values(point), name: rng.choice(self.axes[name])}
            other = self.of_values(values)
            if other == point:
                continue
            with suppress(NotApplicable):
                return other, make(other)
        return None

    def numbers(self, point: P) -> tuple[int, ...]:
        """Where the values stand among those of every parameter; 0 for one without a meaning."""
        mine = self.values(point)
        pairs = ((axis, mine[name]) for name, axis in self.axes.items())
        return tuple(axis.index(value) if value in axis else 0 for axis, value in pairs)

    def numbered(self, numbers: Sequence[int]) -> P | None:
        """The point whose values stand there; None where there are no such."""
        if len(numbers) != len(self.axes):
            return None
        pairs = list(zip(self.axes.items(), numbers, strict=True))
        if not all(0 <= n < len(axis) for (_, axis), n in pairs):
            return None
        return self.of_values({name: axis[n] for (name, axis), n in pairs})

    def values(self, point: P) -> dict[str, object]:
        """The values of a point by the names of parameters."""
        return self._values(point, self.axes)

    def unchecked(self, point: P) -> Choice:
        """The schedule of a point, which may not apply.

        Raises:
            NotApplicable: it does not fit the kernel.
        """
        found = self.template.schedule(self.kernel, self.shape, point, self.machine)
        return replace(found, schedule=(*self.before, *found.schedule))

    def of_values(self, values: Mapping[str, object]) -> P:
        """The point that has values by the names of parameters."""
        fields: dict[str, object] = {}
        places: dict[str, list[object]] = {}
        for name, value in values.items():
            field, _, place = name.partition(".")
            if place:
                places.setdefault(field, []).append(value)
            else:
                fields[field] = value
        return self.template.point(**fields, **{f: tuple(v) for f, v in places.items()})

    @staticmethod
    def _values(point: P, axes: Mapping[str, Axis]) -> dict[str, object]:
        """The values of a point by the names of axes."""
        found: dict[str, object] = {}
        for name in axes:
            field, _, place = name.partition(".")
            value = getattr(point, field)
            found[name] = value[int(place)] if place else value
        return found


def spread(values: list[int], most: int = 8) -> list[int]:
    """At most so many of the values, of all sizes."""
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]
