"""Changes to one assignment that were made apart from each other, all made at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from rutc.graph_opt.assignment import Assignment

T = TypeVar("T", bound=Hashable)


def combined(base: Assignment, others: Iterable[Assignment]) -> Assignment:
    """The assignment that differs from `base` in whatever one of the `others` does.

    What an assignment lists is there unless one of them lacks it, and what one of them adds
    follows what it follows there. Where two say different things of one value, the last is right.
    The result may be illegal though all of them are legal.
    """
    others = tuple(others)
    found: dict[str, Any] = {}
    for f in fields(base):
        before = getattr(base, f.name)
        after = [getattr(a, f.name) for a in others]
        if isinstance(before, Mapping):
            found[f.name] = _mapping(before, after)
        elif isinstance(before, tuple):
            found[f.name] = tuple(_sequence(before, after))
        else:
            found[f.name] = before
    return Assignment(**found)


def _mapping(base: Mapping[str, T], others: Sequence[Mapping[str, T]]) -> dict[str, T]:
    found = dict(base)
    for other in others:
        for name in base.keys() - other.keys():
            found.pop(name, None)
        found |= {name: x for name, x in other.items() if base.get(name) != x}
    return found


def _sequence(base: Sequence[T], others: Sequence[Sequence[T]]) -> list[T]:
    found = list(base)
    for other in others:
        gone = set(base) - set(other)
        found = [x for x in found if x not in gone]
        known = set(base)
        for number, x in enumerate(other):
            if x in known or x in found:
                continue
            before = [found.index(y) for y in other[:number] if y in found]
            found.insert(before[-1] + 1 if before else 0, x)
    return found
