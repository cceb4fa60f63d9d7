"""Loads and stores of neighbours for a vector whose lanes lie near each other in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.tensor_ir.indices.affine import ONE, ZERO, FloorDiv, Index, Mod, Range, Var
from rutc.tensor_ir.machine import NEAR_STRIDES

MOST_MOVES = NEAR_STRIDES.stop - 1
"""Loads or stores of a vector at most: beyond, its elements are moved one by one."""


def runs(offsets: Sequence[int], lanes: int) -> list[range]:
    """Runs of at most so many neighbours that hold all elements, as few as there are."""
    found: list[range] = []
    for offset in sorted(set(offsets)):
        if found and offset < found[-1].start + lanes:
            found[-1] = range(found[-1].start, offset + 1)
        else:
            found.append(range(offset, offset + 1))
    return found


def are_few(found: Sequence[range], offsets: Sequence[int]) -> bool:
    """Whether loads of runs take less than those of all elements by themselves."""
    return len(found) <= min(MOST_MOVES, max(1, len(set(offsets)) - 1))


def shuffled_runs(offsets: Sequence[int], lanes: int) -> list[range]:
    """The runs that are loaded for lanes at such distances; none where each is loaded by itself."""
    found = runs(offsets, lanes)
    return found if are_few(found, offsets) else []


def spread_parts(offsets: Sequence[int], width: int) -> list[int]:
    """The registers from the first place on into which lanes at such distances are stored.

    There are none where each lane is stored by itself: those that lie too far apart, and several at
    one place.
    """
    least = min(offsets)
    parts = sorted({(offset - least) // width for offset in offsets})
    if len(set(offsets)) < len(offsets) or len(parts) > min(MOST_MOVES, len(offsets) - 1):
        return []
    return parts


def divided_along(
    address: Index, var: str, lanes: int, ranges: Mapping[str, Range]
) -> list[tuple[Index, Index]]:
    """What a loop's lanes divide, and by what, that are neighbours between seams; else empty.

        v + 199*i - (v - i + 100) // 200  ->  [(v - i + 100, 200)]
        n*i + (v + 3) % n                 ->  [(v + 3, n)]

    At a seam a quotient goes on. Most vectors have none: two at least fit between seams.
    """
    found: dict[tuple[Index, Index], None] = {}
    stride = ZERO
    for mono, c in address.terms:
        own = [atom for atom in mono if var in atom.names]
        match own:
            case []:
                pass
            case [Var()] if len(mono) == 1:
                stride = stride + c
            case [FloorDiv(num, den) | Mod(num, den) as atom]:
                step, bounds = num.coefficient(var), den.bounds(ranges)
                if step is None or var in den.names() or bounds is None:
                    return []
                if bounds[0] < 2 * lanes * abs(step):
                    return []
                if isinstance(atom, Mod):
                    rest = tuple(a for a in mono if a is not atom)
                    stride = stride + (Index(((rest, c * step),)) if rest else c * step)
                found[num, den] = None
            case _:
                return []
    return list(found) if stride == ONE else []
