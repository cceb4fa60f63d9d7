"""Neighbouring loops that go through memory as one loop does become one."""

from __future__ import annotations

from rutc.tensor_ir.steps import Fuse, Reorder, Step
from rutc.tuner.access import Shape


def collapse(shape: Shape) -> tuple[Step, ...]:
    """Steps that fuse shared loops wherever no access can tell.

    One long loop is tiled with less waste at the edges than several short ones.
    """
    order = [x.var for x in shape.shared]
    extents = dict(shape.extents)
    strides = [dict(t.strides) for t in shape.touches]
    steps: list[Step] = []
    while (pair := _pair(order, extents, strides)) is not None:
        outer, inner = pair
        name = f"{outer}_{inner}"
        moved = [v for v in order if v != outer]
        moved.insert(moved.index(inner), outer)
        if moved != order:
            steps.append(Reorder(tuple(moved)))
        steps.append(Fuse(outer, inner, name))
        order = [name if v == inner else v for v in moved if v != outer]
        extents[name] = extents[outer] * extents[inner]
        for s in strides:
            s[name] = s.get(inner, 0)
    return tuple(steps)


def _pair(
    order: list[str], extents: dict[str, int], strides: list[dict[str, int | None]]
) -> tuple[str, str] | None:
    """(outer, inner): two loops such that `outer` goes on where `inner` ends, in all accesses."""
    for inner in order:
        for outer in order:
            if outer == inner or extents[outer] == 1 or extents[inner] == 1:
                continue
            if all(
                (a := s.get(outer, 0)) is not None
                and (b := s.get(inner, 0)) is not None
                and a == b * extents[inner]
                for s in strides
            ):
                return outer, inner
    return None
