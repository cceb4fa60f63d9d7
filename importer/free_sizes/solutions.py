"""For which values of a size an expression of it is zero: a range, or the multiples of a number.

Only what is certain is told, and only where it leaves fewer values than there were:

    (h + 15) // 48 - 1             33..80
    2*((h + 1) // 2) - h           multiples of 2
"""

from __future__ import annotations

from functools import reduce
from math import gcd, lcm

import numpy as np

from rutc.base.record import record
from rutc.tensor_ir import Index
from rutc.tensor_ir.indices.affine import ZERO, FloorDiv, Max, Min, Mod, Range

MOST_LOOKS = 128
"""Ranges that are looked at for the least and for the largest solution."""
PERIODS = 4
"""Periods of an expression in which its zeros are looked at one by one."""
LONGEST_PERIOD = 1 << 12


@record
class Solutions:
    """The values least, .., most of a size that are multiples of a step."""

    least: int
    most: int
    step: int = 1


def solutions(x: Index, symbol: str, limits: Range) -> Solutions | None:
    """The values of the only size in `x` for which it is zero, if they are fewer than its range.

    None, too, where they are not known to be all values of such a kind.
    """
    step = _step(x, symbol)
    if step > 1:
        low, high = limits
        return Solutions(-(-low // step) * step, high // step * step, step)
    found = reach(x, symbol, limits)
    return None if found is None or found == limits else Solutions(*found)


def reach(x: Index, symbol: str, limits: Range) -> Range | None:
    """The least and the largest value of a size that may make `x` zero, in a range.

    None where there is none. Where telling takes too long, no value is left out.
    """
    least, most = (_first(x, symbol, limits, upwards=u) for u in (True, False))
    return None if least is None or most is None else (least, most)


def _step(x: Index, symbol: str) -> int:
    """The number whose multiples make `x` zero and nothing else does; 1 if there is none."""
    period = _period(x)
    if not 1 < period <= LONGEST_PERIOD:
        return 1
    values = np.arange(PERIODS * period)
    zeros = np.flatnonzero(np.broadcast_to(x.evaluate({symbol: values}), values.shape) == 0)
    step = reduce(gcd, map(int, zeros), 0)
    if step < 2 or len(zeros) != -(-len(values) // step):
        return 1
    found = x.subs({symbol: Index.of(symbol) * step})
    return step if found.simplify({symbol: (0, 1 << 31)}) == ZERO else 1


def _period(x: Index) -> int:
    """What all divisors of an expression divide; 0 where it has extremes or other divisors."""
    found = 1
    for mono, _ in x.terms:
        for atom in mono:
            if isinstance(atom, Min | Max):
                return 0
            if isinstance(atom, FloorDiv | Mod):
                inner, by = atom.operands
                if not by.is_const:
                    return 0
                found = lcm(found, by.const) * _period(inner)
    return found


def _first(x: Index, symbol: str, limits: Range, *, upwards: bool) -> int | None:
    """The least or largest value in a range that may make `x` zero, as far as bounds tell.

    None where there is none.
    """
    left = [limits]
    looks = 0
    while left:
        low, high = left.pop()
        looks += 1
        bounds = x.bounds({symbol: (low, high)})
        if bounds is None or looks > MOST_LOOKS:
            return low if upwards else high
        if not bounds[0] <= 0 <= bounds[1]:
            continue
        if low == high:
            return low
        middle = (low + high) // 2
        halves = [(low, middle), (middle + 1, high)]
        left += halves[::-1] if upwards else halves
    return None
