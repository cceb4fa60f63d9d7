"""What sizes that a run computes are, in terms of those that it is given."""

from __future__ import annotations

from rutc.tensor_ir.expr import IndexValue, Read
from rutc.tensor_ir.graph import Bind, Body, Call, Graph, If, Nest, Node, outs, walk_nodes
from rutc.tensor_ir.indices.affine import Index


def stated_sizes(graph: Graph) -> dict[str, Index]:
    """The sizes that nodes compute of nothing but others, as these formulas.

    %ok : bool{} = index(2*a - b) == 0
    %s : i64{} = if %ok { yield index(2*a) } else { fail }
    %same : i64{} = bind same = %s                             ->   same = 2*a

    Of two branches a size is what the one gives that does not end the run.
    """
    producers = {v.name: n for n in walk_nodes(graph.nodes) for v in outs(n)}
    found: dict[str, Index] = {}
    for n in graph.nodes:
        if isinstance(n, Bind):
            formula = _formula(n.value, producers)
            if formula is not None:
                found[n.symbol] = formula.subs(found)
    return found


def _formula(value: str, producers: dict[str, Node]) -> Index | None:
    """The index that a scalar is; None if it is none that is seen."""
    match producers.get(value):
        case Nest(outs=(_,), reducer=None, body=(IndexValue(index),)):
            return index
        case Nest(outs=(_,), reducer=None, body=(Read(source, (), fill=None),)):
            return _formula(source, producers)
        case If() as n:
            left = [b for b in (n.then, n.orelse) if not _ends(b)]
            if len(left) != 1:
                return None
            position = [v.name for v in n.outs].index(value)
            return _formula(left[0].results[position], producers)
        case _:
            return None


def _ends(body: Body) -> bool:
    """Whether a branch ends the run."""
    return any(isinstance(n, Call) and n.routine == "fail" for n in body.nodes)
