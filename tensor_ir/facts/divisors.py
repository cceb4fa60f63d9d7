"""Inputs that may hold no zeros, as integers are divided by them."""

from __future__ import annotations

from collections.abc import Iterator

from rutc.tensor_ir.expr import Apply, BitCast, Cast, Expr, Read, walk
from rutc.tensor_ir.graph import Graph
from rutc.tensor_ir.nodes import Bind, If, Nest, Node, Scan, Scatter, While, walk_nodes

DIVISIONS = frozenset(["div", "mod", "fmod"])


def divisors(graph: Graph) -> frozenset[str]:
    """The names of the inputs by whose elements integers are divided, as they are or converted.

    Their negations, their magnitudes and their products with others count as they do. What else
    is computed of an input may be no zero where the input is. A float may be none that becomes
    zero as an integer.
    """
    found: set[str] = set()
    nodes = list(walk_nodes(graph.nodes))[::-1]
    known = -1
    # What a loop carries may divide in the next trip.
    while len(found) > known:
        known = len(found)
        for n in nodes:
            found.update(_divide(n, found))
    return frozenset(n.name for n in graph.inputs if n.out.name in found)


def _divide(n: Node, known: set[str]) -> Iterator[str]:
    """The values that divide in a node, or by what it gives where that is `known` to divide."""
    match n:
        case Nest():
            for e in n.body:
                yield from _divisors_in(e)
            if n.reducer is None:
                for out, e in zip(n.outs, n.body, strict=True):
                    yield from _factors(e) if out.name in known else ()
        case Scatter():
            yield from _divisors_in(n.body)
            if n.out.name in known:
                yield n.base
        case If():
            for body in (n.then, n.orelse):
                yield from (r for v, r in zip(n.outs, body.results, strict=True) if v.name in known)
        case Scan() | While():
            for carry, out in zip(n.carries, n.outs, strict=False):
                if not known.isdisjoint((carry.param.name, out.name)):
                    yield from (carry.init, carry.next)
            if isinstance(n, Scan):
                shown = zip(n.outs[len(n.carries) :], n.collected, strict=True)
                yield from (inner for v, inner in shown if v.name in known)
        case Bind():
            if n.out.name in known:
                yield n.value
        case _:
            pass


def _divisors_in(e: Expr) -> Iterator[str]:
    """The values that integers are divided by in an expression."""
    for x in walk(e):
        if isinstance(x, Apply) and x.op in DIVISIONS and x.dtype.is_int:
            yield from _factors(x.args[1])


def _factors(e: Expr) -> Iterator[str]:
    """The values read of which none may be zero if the expression is not."""
    match e:
        case Read():
            yield e.value
        case Cast() | BitCast():
            yield from _factors(e.arg)
        case Apply(op, args) if op in ("neg", "abs", "mul"):
            for x in args:
                yield from _factors(x)
        case _:
            pass
