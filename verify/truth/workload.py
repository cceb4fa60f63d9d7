"""How long a run of the truth takes, roughly: an estimate that is the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rutc.tensor_ir import Apply, Call, Expr, Nest, Node, Scan, Scatter
from rutc.tensor_ir.expr import index_names, walk
from rutc.tensor_ir.running import running_nest
from rutc.tensor_ir.terms import factors

PRODUCTS_PER_S = 1e10
"""How many products of a sum numpy makes in a second, about."""

OPERANDS_PER_S = 2.5e8
"""How many elements of the factors of products it gathers and widens in a second, about."""

ELEMENTS_PER_S = 2e8
"""How many operations on elements it does in a second, about."""

MOVED_PER_S = 1e7
"""How many elements routines and scatters take in a second, about."""

NODE_S = 6e-5
"""What a node takes however little it computes: a loop runs those of its body in each trip."""


def work_of_all(nodes: Sequence[Node], points: Callable[[Sequence[str]], int]) -> float:
    """The seconds that nodes take at least, roughly: scans in all of their trips."""
    total = 0.0
    for n in nodes:
        total += work_of(n, points)
        if isinstance(n, Scan):
            total += points((n.dim,)) * work_of_all(n.body, points)
    return total


def work_of(n: Node, points: Callable[[Sequence[str]], int]) -> float:
    """The seconds that a node takes by itself, roughly; of loops, their bodies left out."""
    match n:
        case Nest():
            return NODE_S + _work_of_nest(n, points)
        case Scatter():
            return NODE_S + points(n.dims) / MOVED_PER_S + points(n.out.dims) / ELEMENTS_PER_S
        case Call():
            return NODE_S + sum(map(points, (*n.arg_axes, *n.out_axes))) / MOVED_PER_S
        case _:
            return NODE_S


def _work_of_nest(n: Nest, points: Callable[[Sequence[str]], int]) -> float:
    running = running_nest(n, lambda d: points((d,)))
    count = points(n.dims if running is None else n.out.dims)
    if n.reducer is not None and len(n.body) == 1:
        pair = paired(factors(n.body[0]), n.dims)
        if pair is not None:
            used = ([d for d in n.dims if d in index_names(e)] for e in pair)
            gathered = sum(map(points, used)) / OPERANDS_PER_S
            return count / PRODUCTS_PER_S + gathered + points(n.out.dims) / ELEMENTS_PER_S
    operations = 1 + sum(isinstance(x, Apply) for e in n.body for x in walk(e))
    return count * operations / ELEMENTS_PER_S


def paired(parts: Sequence[Expr], space: Sequence[str]) -> tuple[Expr, Expr] | None:
    """Factors gathered into two, each of which has the dims of its largest one; None if none are.

    x[b, k] * s[k] * w[k, n]   ->   (x[b, k] * s[k], w[k, n])
    """
    names = frozenset(space)
    groups: list[tuple[frozenset[str], Expr]] = []
    found = [(index_names(e) & names, e) for e in parts]
    for used, e in sorted(found, key=lambda item: -len(item[0])):
        for number, (dims, product) in enumerate(groups):
            if used <= dims and (len(groups) == 2 or len(parts) > 2):
                groups[number] = (dims, Apply("mul", (product, e)))
                break
        else:
            groups.append((used, e))
    if len(groups) != 2:
        return None
    return groups[0][1], groups[1][1]
