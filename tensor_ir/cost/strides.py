"""By which steps a loop moves a place: one, or several where it has quotients and remainders.

16*(i % 2) + i // 2     two places 16 apart, and then as many as i has pairs, 1 apart
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from rutc.tensor_ir.cost.frames import Frame, Space
from rutc.tensor_ir.indices.affine import FloorDiv, Index, Mod, Var

Step = tuple[float, float]
"""(How far it is from a place to the next one, places)."""


def steps_of(place: Index, f: Frame, space: Space) -> tuple[Step, ...]:
    """The steps by which a loop moves a place, none where it does not."""
    if f.trip <= 1 or f.var not in place.names():
        return ()
    step = place.coefficient(f.var)
    if step is not None:
        return ((step, f.trip),)
    low = space.ranges.get(f.var, (0, 0))[0]
    env = dict(space.middle)

    def moved(iterations: int) -> float:
        env[f.var] = low
        first = space.value(place, env)
        env[f.var] = low + iterations
        return float(space.value(place, env) - first)

    last = int(f.trip) - 1
    if not _is_periodic(place, f.var):
        return ((moved(max(last, 1)) / max(last, 1), f.trip),)
    turns = sorted({1, *(n for n in periods(place, f.var) if n <= last)})
    behind = (*turns[1:], f.trip)
    return tuple((moved(a), b / a) for a, b in zip(turns, behind, strict=True))


def periods(place: Index, var: str) -> Iterator[int]:
    """After how many iterations quotients go on and remainders begin anew."""
    for mono, _ in place.terms:
        for atom in mono:
            if isinstance(atom, Var) or var not in atom.names:
                continue
            operand, divisor = atom.operands
            yield from periods(operand, var)
            for inner, c in operand.terms:
                own = [a for a in inner if var in a.names]
                turns = (
                    1 if own == [Var(var)] else max(periods(Index(((inner, c),)), var), default=1)
                )
                if own:
                    yield turns * (divisor.const // gcd(c, divisor.const))


def _is_periodic(place: Index, var: str) -> bool:
    """Whether a loop moves a place by quotients and remainders of numbers alone."""
    for mono, _ in place.terms:
        own = [a for a in mono if var in a.names]
        if len(own) > 1:
            return False
        for atom in own:
            if isinstance(atom, Var):
                continue
            if not isinstance(atom, FloorDiv | Mod):
                return False
            operand, divisor = atom.operands
            if not divisor.is_const or divisor.const <= 0 or not _is_periodic(operand, var):
                return False
    return True
