"""Values that are never stored, nor kept: every nest that reads one computes it anew.

%c{b,i} = %x[b, i] - %m[b]
%y{b,i} = %c[b, i] * %s[b]     ->     %y{b,i} = (%x[b, i] - %m[b]) * %s[b]
"""

from __future__ import annotations

from collections.abc import Iterable

from rutc.graph_opt.decide.fusion import MOST_OPERATIONS
from rutc.graph_opt.decide.outside_reads import inlined_outside
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.exprs import depth, is_gathered
from rutc.graph_opt.plan import Illegal
from rutc.graph_opt.rules.contraction import inlined
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.graph import Nest, Node, used_deep, with_bodies
from rutc.tensor_ir.textual.text import value_name

MOST_FOLLOWING = 64
"""Operations in a row that readers compute anew: functions that walk expressions call themselves a
few times for each, and as many take longer than it does to store and to load what they give."""


def recomputable(prepared: Prepared, n: Node) -> bool:
    """Whether the values of a node may be computed where they are read, as far as it tells itself.

    Nothing that it reads may change in between.
    """
    return (
        isinstance(n, Nest)
        and n.reducer is None
        and len(n.outs) == 1
        and n.out.name not in prepared.fixed
        and prepared.sharing.isdisjoint((n.out.name, *used_deep(n)))
    )


def may_be_anew(stages: Iterable[Nest]) -> bool:
    """Whether what reads the last of some nests may compute them all, as far as they tell."""
    rows: dict[str, int] = {}
    for n in stages:
        before = max((rows.get(r.value, 0) for e in n.body for r in reads(e)), default=0)
        rows[n.out.name] = before + max(map(depth, n.body))
        if rows[n.out.name] > MOST_FOLLOWING:
            return False
    return True


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
        if isinstance(n, Nest):
            n = _with_producers(prepared, n, taken)
            if n.out.name in left and recomputable(prepared, n):
                left.remove(n.out.name)
                taken[n.out.name] = n
                continue
        n = with_bodies(n, lambda inside: _inlined(prepared, inside, left, taken))
        stored = taken.keys() & set(used_deep(n))
        if stored:
            raise Illegal(f"{value_name(min(stored))} is read by what is no loop nest")
        result.append(n)
    return tuple(result)


def _with_producers(prepared: Prepared, n: Nest, taken: dict[str, Nest]) -> Nest:
    """The nest computing the values that it reads of these."""
    new = n
    for r in dict.fromkeys(r for e in n.body for r in reads(e) if r.value in taken):
        if is_gathered(r):
            raise Illegal(f"{value_name(r.value)} is read where data tell")
        if r.fill is None:
            new = inlined(new, r, taken[r.value])
        else:
            new = inlined_outside(new, r, taken[r.value], prepared.editor)
    more = new.operations - n.operations
    if more > MOST_OPERATIONS:
        raise Illegal(f"{value_name(n.out.name)} would take {more} operations more")
    if more and max(map(depth, new.body)) > max(MOST_FOLLOWING, *map(depth, n.body)):
        raise Illegal(f"{value_name(n.out.name)} would take too many operations in a row")
    return new
