"""Neighbouring loops that go through memory as one loop does become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import Size, plain
from rutc.tensor_ir.steps import Fuse, Reorder, Step
from rutc.tuner.access import Shape, Touch


def collapse(shape: Shape, kept: AbstractSet[str]) -> tuple[Step, ...]:
    """Steps that fuse shared loops wherever no access can tell, those `kept` left out.

    One long loop is tiled with less waste at the edges than several short ones.
    """
    order = [x.var for x in shape.shared]
    sizes = dict(shape.sizes)
    touches = shape.touches
    steps: list[Step] = []
    while (pair := _pair([v for v in order if v not in kept], sizes, touches)) is not None:
        outer, inner = pair
        name = f"{outer}_{inner}"
        moved = [v for v in order if v != outer]
        moved.insert(moved.index(inner), outer)
        if moved != order:
            steps.append(Reorder(tuple(moved)))
        steps.append(Fuse(outer, inner, name))
        order = [name if v == inner else v for v in moved if v != outer]
        sizes[name] = plain(sizes[outer] * sizes[inner])
        touches = tuple(t.renamed(inner, name) for t in touches)
    return tuple(steps)


def collapse_bound(shape: Shape) -> tuple[Step, ...]:
    """Steps that fuse the loops of a reduction that no read can tell apart.

    Lanes of partial states then run over one long row instead of many short ones.
    """
    steps: list[Step] = []
    for r in shape.reductions:
        if r.reads and r.bound:
            sizes = {x.var: shape.sizes[x.var] for x in r.bound}
            steps += fuse_innermost([x.var for x in r.bound], sizes, r.reads).steps
    return tuple(steps)


@record
class Fused:
    """Loops whose innermost has become longer, its size, the accesses, and the steps to there."""

    loops: tuple[str, ...]
    size: Size
    touches: tuple[Touch, ...]
    steps: tuple[Step, ...]


def fuse_innermost(
    loops: Sequence[str],
    sizes: Mapping[str, Size],
    touches: tuple[Touch, ...],
    most: int | None = None,
) -> Fused:
    """Steps that fuse the loops around the last one into it, as long as no access can tell.

    No more than `most` of them, if that is a number.
    """
    *others, inner = loops
    size = sizes[inner]
    steps: list[Step] = []
    while others and len(steps) != most:
        if not all(t.continues(others[-1], inner, size) for t in touches):
            break
        outer = others.pop()
        name = f"{outer}_{inner}"
        steps.append(Fuse(outer, inner, name))
        touches = tuple(t.renamed(inner, name) for t in touches)
        size = plain(sizes[outer] * size)
        inner = name
    return Fused((*others, inner), size, touches, tuple(steps))


def _pair(
    order: list[str], sizes: Mapping[str, Size], touches: tuple[Touch, ...]
) -> tuple[str, str] | None:
    """(outer, inner): two loops such that `outer` goes on where `inner` ends, in all accesses."""
    for inner in order:
        for outer in order:
            if outer == inner or sizes[outer] == 1 or sizes[inner] == 1:
                continue
            if all(t.continues(outer, inner, sizes[inner]) for t in touches):
                return outer, inner
    return None
