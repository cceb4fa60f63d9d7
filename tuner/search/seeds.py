"""First proposals of a search: what was the fastest of kernels like this one, of other sizes.

A `Seed` has the point of a schedule that was measured, by the names of its parameters, and the
features of its kernel with the default schedule. The kernels nearest to one by these features, of
which templates fit both, give it their points: each parameter gets the value of its own that is
nearest to theirs. Points that do not fit are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import log

import numpy as np

from rutc.base.record import record
from rutc.tuner.search.search import Candidate, Search
from rutc.tuner.space import Axis

SEEDS = 4
"""Kernels whose points are tried first, at most."""

Plain = None | bool | int | str | Sequence["Plain"] | Mapping[str, "Plain"]
"""What JSON holds of a value."""


@record
class Seed:
    """The fastest schedule of a kernel: what made it, its point, the kernel's features.

    `task` tells the kernel from others.
    """

    task: str
    template: str
    point: Mapping[str, Plain]
    features: tuple[float, ...]


def plain(value: object) -> Plain:
    """Returns the whole numbers, texts and answers of a parameter's value.

    Estimates that it may hold are left out: they are of one kernel.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case tuple() | list():
            return [plain(x) for x in value]
        case _ if is_dataclass(value):
            pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
            return {name: plain(x) for name, x in pairs if not isinstance(x, float)}
        case _:
            return str(value)


def point_on_record(c: Candidate) -> dict[str, Plain]:
    """Returns the point of a candidate for the record; nothing of one that was made by hand."""
    if c.space is None:
        return {}
    return {name: plain(value) for name, value in c.space.values(c.point).items()}


def adapted(axes: Mapping[str, Axis], point: Mapping[str, Plain]) -> dict[str, object]:
    """Returns the values of parameters that are nearest to those of another kernel's point.

    Of parameters that it does not have the first value.
    """
    return {
        name: min(axis, key=lambda x: _apart(plain(x), point[name])) if name in point else axis[0]
        for name, axis in axes.items()
    }


def _apart(a: Plain, b: Plain) -> float:
    """How far values are from each other: whole numbers by their ratio, others if they differ."""
    if isinstance(a, bool | str) or isinstance(b, bool | str) or a is None or b is None:
        return float(a != b)
    if isinstance(a, int) and isinstance(b, int):
        return abs(log((1 + abs(a)) / (1 + abs(b))))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sum(_apart(a.get(name), b.get(name)) for name in sorted({*a, *b}))
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        pairs = zip(a, b, strict=False)
        return sum(_apart(x, y) for x, y in pairs) + abs(len(a) - len(b))
    return 1.0


def nearest(
    seeds: Sequence[Seed], features: Sequence[float], templates: frozenset[str]
) -> list[Seed]:
    """Returns the seeds of some templates, those of the most similar kernels first."""
    own = [s for s in seeds if s.template in templates and len(s.features) == len(features)]
    if not own:
        return []
    rows = np.array([s.features for s in own])
    spread = np.maximum(rows.std(axis=0), 1e-3)
    apart = (((rows - np.array(features)) / spread) ** 2).sum(axis=1)
    order = sorted(range(len(own)), key=lambda i: (float(apart[i]), own[i].task))
    return [own[i] for i in order]


def first_proposals(search: Search, seeds: Sequence[Seed]) -> list[Candidate]:
    """Returns what a search tries first, by seeds of other kernels: `SEEDS` candidates at most."""
    default = search.default
    if default is None:
        return []
    spaces = search.spaces
    templates = frozenset(s.template.name for s in spaces)
    found: dict[str, Candidate] = {}
    for seed in nearest(seeds, default.judged.features, templates):
        for space in spaces:
            if space.template.name != seed.template:
                continue
            c = search.candidate(space, space.of_values(adapted(space.axes, seed.point)))
            if c is not None and not search.seen(c):
                found.setdefault(c.text, c)
        if len(found) >= SEEDS:
            break
    return list(found.values())[:SEEDS]
