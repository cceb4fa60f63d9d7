"""Values that tell places: of these, rounding moves what is read, or how far something has come.

A product that is off by a share of itself is off as little as its factors. A place 1000 that is off
by as large a share is another place, however little lies between that one and what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rutc.tensor_ir.expr import Apply, Expr, Read, reads, walk
from rutc.tensor_ir.graph import Nest, Node
from rutc.tensor_ir.indices.affine import Index

REPEATING = frozenset({"sin", "cos", "tan", "mod", "fmod"})
"""The operations whose results repeat: of a large operand, only what is left of it counts."""


def places(nodes: Iterable[Node]) -> frozenset[str]:
    """The values that tell where something is read, or how far along what repeats.

    %p{i} = %flow[i] + f32(index(i))
    %y{i} = %x[k=i64(%p[i])] * sin(%q[i])       ->    %p, %flow, %q

    What elementwise nests make them of are places as well. What reductions sum is not: many small
    numbers that are rounded make a large one no more wrong than they are themselves.
    """
    nests = [n for n in nodes if isinstance(n, Nest)]
    makers = {v.name: n for n in nests if n.reducer is None for v in n.outs}
    waiting = [r.value for n in nests for e in n.body for r in _deciding(e)]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            made = makers[name].body if name in makers else ()
            waiting += [r.value for e in made for r in reads(e)]
    return frozenset(found)


def _deciding(e: Expr) -> Iterator[Read]:
    """The reads in coordinates, and in operands of what repeats."""
    for x in walk(e):
        if isinstance(x, Apply) and x.op in REPEATING:
            yield from reads(x)
        if isinstance(x, Read):
            for _, c in x.coords:
                if not isinstance(c, Index):
                    yield from reads(c)
