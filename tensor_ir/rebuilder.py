"""Nodes made anew: what becomes of their names, values and expressions is said part by part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from rutc.tensor_ir.expr import Coord, Expr
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.nodes import (
    Bind,
    Body,
    Call,
    Carry,
    Const,
    If,
    Input,
    Nest,
    Node,
    Scan,
    Scatter,
    Value,
    While,
)
from rutc.tensor_ir.reducer import Reducer


class Rebuilder:
    """Makes nodes of nodes; subclasses say what becomes of a part, which stays here."""

    def name(self, name: str) -> str:
        """A value that is read whole or elsewhere than in an expression."""
        return name

    def dim(self, dim: str) -> str:
        """A dim, but for those of values and in expressions."""
        return dim

    def value(self, v: Value) -> Value:
        """A value that is defined."""
        return v

    def index(self, i: Index) -> Index:
        """A coordinate that data do not tell."""
        return i

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        return e

    def exprs(self, exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The expressions of a nest, which may share operations."""
        return tuple(map(self.expr, exprs))

    def reducer(self, r: Reducer) -> Reducer:
        """How nests and scatters combine elements."""
        return r

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes of a graph or a body."""
        return tuple(map(self.node, nodes))

    def node(self, n: Node) -> Node:
        """A node of the parts that become of its own."""
        match n:
            case Input() | Const():
                return replace(n, out=self.value(n.out), axes=self.dims(n.axes))
            case Nest():
                return replace(
                    n,
                    outs=self.values(n.outs),
                    bound=self.dims(n.bound),
                    reducer=None if n.reducer is None else self.reducer(n.reducer),
                    body=self.exprs(n.body),
                )
            case Scan():
                return replace(
                    n,
                    outs=self.values(n.outs),
                    dim=self.dim(n.dim),
                    carries=self.carries(n.carries),
                    collected=self.names(n.collected),
                    body=self.nodes(n.body),
                )
            case While():
                return replace(
                    n,
                    outs=self.values(n.outs),
                    cond=self.name(n.cond),
                    carries=self.carries(n.carries),
                    body=self.nodes(n.body),
                )
            case If():
                then, orelse = (
                    Body(self.nodes(b.nodes), self.names(b.results)) for b in (n.then, n.orelse)
                )
                outs, cond = self.values(n.outs), self.name(n.cond)
                return replace(n, outs=outs, cond=cond, then=then, orelse=orelse)
            case Scatter():
                coords = ((self.dim(d), self.coord(c)) for d, c in n.coords)
                return replace(
                    n,
                    out=self.value(n.out),
                    base=self.name(n.base),
                    dims=self.dims(n.dims),
                    coords=tuple(sorted(coords, key=lambda dc: dc[0])),
                    reducer=None if n.reducer is None else self.reducer(n.reducer),
                    body=self.expr(n.body),
                )
            case Bind():
                return replace(n, out=self.value(n.out), value=self.name(n.value))
            case Call():
                return replace(
                    n,
                    outs=self.values(n.outs),
                    args=self.names(n.args),
                    arg_axes=tuple(map(self.dims, n.arg_axes)),
                    out_axes=tuple(map(self.dims, n.out_axes)),
                )
            case _:
                assert_never(n)

    def names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Values that are read, in order."""
        return tuple(map(self.name, names))

    def dims(self, dims: Iterable[str]) -> tuple[str, ...]:
        """Dims in order."""
        return tuple(map(self.dim, dims))

    def values(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Values that are defined, in order."""
        return tuple(map(self.value, values))

    def carries(self, carries: Iterable[Carry]) -> tuple[Carry, ...]:
        """What a loop carries."""
        return tuple(
            Carry(self.value(c.param), self.name(c.init), self.name(c.next)) for c in carries
        )

    def coord(self, c: Coord) -> Coord:
        """A coordinate."""
        return self.index(c) if isinstance(c, Index) else self.expr(c)
