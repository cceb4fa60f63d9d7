"""Copies of operands: which nests read one, and the graph that has them.

A copy lies in another layout than its value, or has a halo that the value cannot have. It is
computed before the first nest that reads it, once in every scope that has such a nest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.assignment import Copy
from rutc.graph_opt.exprs import at_point, index_coords, is_gathered
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir.expr import Expr, Read, map_reads, reads, transform
from rutc.tensor_ir.graph import Nest, Node, Scan, Value, with_bodies
from rutc.tensor_ir.textual.text import value_name


def reads_of(n: Nest) -> tuple[Read, ...]:
    """The different reads of a nest, in order; copies name them by number."""
    return tuple(dict.fromkeys(r for e in n.body for r in reads(e)))


def packed_dims(n: Nest, r: Read) -> tuple[str, ...] | None:
    """The loops of a nest on which a read depends; None where they do not tell all of it.

    Of what is read outside, those of loops that just go on behind the value.
    """
    moving = (c for _, c in index_coords(r) if not c.is_const)
    windows = r.fill is not None and any(c.as_var is None for c in moving)
    if windows or is_gathered(r):
        return None
    names = {x for _, c in index_coords(r) for x in c.names()}
    return tuple(sorted(names)) if names <= set(n.dims) else None


def with_copies(
    nodes: tuple[Node, ...], copies: Iterable[Copy], values: Mapping[str, Value]
) -> tuple[Node, ...]:
    """The nodes with copies, and nests that read them. `values` are those of the graph.

    %y = sum{k} %x[k, m] * ..   ->   %x.near.k = %x;  %y = sum{k} %x.near.k[k, m] * ..

    Raises:
        Illegal: A copy is of what its reader does not read, or cannot be read where it is needed.
    """
    wanted: dict[str, list[Copy]] = {}
    for c in copies:
        wanted.setdefault(c.reader, []).append(c)
    if not wanted:
        return nodes
    maker = _Maker(wanted, values, set(values), [])
    result = maker.scope(nodes, {})
    if maker.wanted:
        raise Illegal(f"no nest computes {value_name(next(iter(maker.wanted)))}, which has copies")
    return result


@record
class _Maker:
    wanted: dict[str, list[Copy]]
    """By reader; what is done is taken out."""
    values: Mapping[str, Value]
    taken: set[str]
    counters: list[str]
    """The scanned dims of the bodies at hand: no value in them has such a dim."""

    def scope(self, nodes: tuple[Node, ...], known: Mapping[str, Nest]) -> tuple[Node, ...]:
        """A scope's nodes with copies; `known` are those that are computed before it."""
        own = dict(known)
        result: list[Node] = []
        for n in nodes:
            if isinstance(n, Nest) and n.out.name in self.wanted:
                result += self.fed(n, self.wanted.pop(n.out.name), own)
                continue
            counters = [n.dim] if isinstance(n, Scan) else []
            self.counters.extend(counters)
            result.append(with_bodies(n, lambda nodes: self.scope(nodes, own)))
            del self.counters[len(self.counters) - len(counters) :]
        return tuple(result)

    def fed(self, n: Nest, copies: Iterable[Copy], known: dict[str, Nest]) -> list[Nest]:
        """The copies that a nest is the first to read, and the nest reading them."""
        own, found = reads_of(n), []
        instead: dict[Read, Read] = {}
        for c in copies:
            if not 0 <= c.number < len(own) or own[c.number].value != c.value:
                raise Illegal(f"`{c}`: its read of that number is not of {value_name(c.value)}")
            r = own[c.number]
            made = self.made(c, n, r)
            if c.name not in known:
                if c.name in self.taken:
                    raise Illegal(f"`{c}`: {value_name(c.name)} is not computed before")
                if not set(self.counters).isdisjoint(made.out.dims):
                    raise Illegal(f"`{c}`: a body has no values with the dim that is scanned")
                self.taken.add(c.name)
                known[c.name] = made
                found.append(made)
            elif replace(known[c.name], origin=n.origin) != made:
                raise Illegal(f"`{c}`: {value_name(c.name)} is another copy")
            instead.setdefault(r, at_point(made.out) if c.packed else replace(r, value=c.name))
        return [*found, replace(n, body=tuple(_with_reads(e, instead) for e in n.body))]

    def made(self, c: Copy, n: Nest, r: Read) -> Nest:
        """The nest that computes a copy."""
        value = self.values[r.value]
        if not c.packed:
            out = Value(c.name, value.dtype, value.dims)
            return Nest((out,), (), None, (at_point(value),), n.origin)
        dims = packed_dims(n, r)
        if dims is None:
            raise Illegal(f"`{c}`: what it reads is no element for each of its loops")
        return Nest((Value(c.name, r.dtype, dims),), (), None, (r,), n.origin)


def _with_reads(e: Expr, instead: Mapping[Read, Read]) -> Expr:
    """`e` with reads replaced by others, gathered ones before those that tell their places."""
    gathered = [r for r in instead if is_gathered(r)]
    for old in sorted(gathered, key=lambda r: len(tuple(reads(r))), reverse=True):
        e = _with_gathered(e, old, instead[old])
    plain: dict[Expr, Expr] = {r: new for r, new in instead.items() if not is_gathered(r)}
    return map_reads(e, lambda i: i, lambda r: plain.get(r, r)) if plain else e


def _with_gathered(e: Expr, old: Read, new: Read) -> Expr:
    return transform(e, lambda x: new if x == old else x)
