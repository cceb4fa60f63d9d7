"""Values that are never stored, nor kept: every nest that reads one computes it anew.

%c{b,i} = %x[b, i] - %m[b]
%y{b,i} = %c[b, i] * %s[b]     ->     %y{b,i} = (%x[b, i] - %m[b]) * %s[b]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rutc.graph_opt.decide.fusion import MOST_OPERATIONS
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Expr, Read, reads, substitute, transform
from rutc.tensor_ir.graph import Body, If, Nest, Node, Scan, While, used_deep
from rutc.tensor_ir.text import value_name


def recomputable(prepared: Prepared, n: Node) -> bool:
    """Whether the values of a node may be computed where they are read, as far as it tells itself.

    Nothing that it reads may change in between.
    """
    shared = {*prepared.homes, *prepared.homes.values()}
    return (
        isinstance(n, Nest)
        and n.reducer is None
        and len(n.outs) == 1
        and n.out.name not in prepared.fixed
        and shared.isdisjoint((n.out.name, *used_deep(n)))
    )


def without_recomputed(prepared: Prepared, values: Iterable[str]) -> tuple[Node, ...]:
    """The nodes, these values computed by the nests that read them.

    Raises:
        Illegal: A value has to be stored: for an interface, a routine, or a read at places that
            data tell.
    """
    left = set(values)
    if not left:
        return prepared.graph.nodes
    taken: dict[str, Nest] = {}
    nodes = _inlined(prepared, prepared.graph.nodes, left, taken)
    if left:
        raise Illegal(f"{value_name(min(left))} cannot be computed by what reads it")
    for o in prepared.graph.outputs:
        if o.value in taken:
            raise Illegal(f"{value_name(o.value)} is an output, which is stored")
    return nodes


def _inlined(
    prepared: Prepared, nodes: tuple[Node, ...], left: set[str], taken: dict[str, Nest]
) -> tuple[Node, ...]:
    result: list[Node] = []
    for n in nodes:
        match n:
            case Scan() | While():
                n = replace(n, body=_inlined(prepared, n.body, left, taken))
            case If():
                then = Body(_inlined(prepared, n.then.nodes, left, taken), n.then.results)
                orelse = Body(_inlined(prepared, n.orelse.nodes, left, taken), n.orelse.results)
                n = replace(n, then=then, orelse=orelse)
            case Nest():
                n = _with_producers(n, taken)
                if n.out.name in left and recomputable(prepared, n):
                    left.remove(n.out.name)
                    taken[n.out.name] = n
                    continue
            case _:
                pass
        stored = taken.keys() & set(used_deep(n))
        if stored:
            raise Illegal(f"{value_name(min(stored))} is read by what is no loop nest")
        result.append(n)
    return tuple(result)


def _with_producers(n: Nest, taken: dict[str, Nest]) -> Nest:
    """The nest computing the values that it reads of these."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.value not in taken:
            return e
        places = {d: c for d, c in e.coords if isinstance(c, Index)}
        if e.fill is not None or len(places) < len(e.coords):
            raise Illegal(f"{value_name(e.value)} is read outside of it, or where data tell")
        return substitute(taken[e.value].body[0], places)

    own = [taken[r.value] for e in n.body for r in reads(e) if r.value in taken]
    if not own:
        return n
    origin = tuple(dict.fromkeys(o for p in (*own, n) for o in p.origin))
    new = replace(n, body=tuple(transform(e, visit) for e in n.body), origin=origin)
    if new.operations > MOST_OPERATIONS:
        raise Illegal(f"{value_name(n.out.name)} would take {new.operations} operations")
    return new
