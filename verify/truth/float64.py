"""A graph of nests in float64: what a model computes but for the rounding of its floats.

    %y : f32{c} = add(%x : f32, 0.1 : f32)   ->   %y : f64{c} = add(cast f64(%x), 0.1 : f64)

Every value of type f32, f16 or bf16 becomes one of f64. Inputs and constants keep their type, which
f64 holds exactly, and are widened where they are read. What a model rounds to fewer bits stays
rounded there: 8-bit floats, integers, the bits of a float, and what routines see (sorting, text),
for equal keys are equal in the model's own type. Who runs the graph rounds values that the model
declares as f16 or bf16 (`truth.Truth`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from rutc.graph_opt.exprs import at_point
from rutc.tensor_ir import (
    Apply,
    BitCast,
    Call,
    Const,
    DType,
    Expr,
    Graph,
    If,
    Index,
    Input,
    Lit,
    Local,
    Nest,
    Node,
    Read,
    Reducer,
    Scan,
    Scatter,
    Value,
    While,
    cast,
)
from rutc.tensor_ir.expr import Cast, IndexValue
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.rebuilder import Rebuilder

WIDENED = frozenset({DType.F32, DType.F16, DType.BF16})
"""The types that become f64."""

NARROW = frozenset({DType.F16, DType.BF16})
"""Those to which a model asks to round: it is written for them, and runtimes do."""

WIDE = DType.F64


def widened(graph: Graph) -> Graph:
    """The graph with f64 in place of every float of 16 or 32 bits, inputs and constants apart."""
    return _Widening(graph).graph()


class _Widening(Rebuilder):
    """One graph on its way: which values keep their type, and which of those are also needed wide.

    A value that is taken whole (carried, yielded, put out) has a wide copy of its own.
    """

    def __init__(self, graph: Graph) -> None:
        self.source = graph
        sources = [n for n in walk_nodes(graph.nodes) if isinstance(n, Input | Const)]
        self.kept = {n.out.name: n.out for n in sources if n.out.dtype in WIDENED}
        taken = (name for name in _taken_whole(graph) if name in self.kept)
        self.whole = {name: self.fresh(f"{name}.wide") for name in taken}

    def graph(self) -> Graph:
        outputs = tuple(replace(o, value=self.name(o.value)) for o in self.source.outputs)
        return replace(self.source, nodes=self.nodes(self.source.nodes), outputs=outputs)

    def name(self, value: str) -> str:
        """What holds the wide form of a value."""
        return self.whole.get(value, value)

    def fresh(self, name: str) -> str:
        """A name like this one that the graph does not have."""
        while name in self.source.values:
            name += "."
        return name

    def value(self, v: Value) -> Value:
        return replace(v, dtype=_wide(v.dtype))

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(made for n in nodes for made in self.made_of(n))

    def made_of(self, n: Node) -> Iterable[Node]:
        """A node in f64, and what converts between it and others."""
        match n:
            case Input() | Const():
                yield n
                if n.out.name in self.whole:
                    yield _converted(n.out, self.name(n.out.name), WIDE)
            case Call():
                yield from self.call(n)
            case _:
                yield self.node(n)

    def call(self, n: Call) -> Iterable[Node]:
        """The routine between nests that give it the model's types and take its results wide."""
        args = []
        for a in n.args:
            v = self.source.values[a]
            if v.dtype in WIDENED and a not in self.kept:
                name = self.fresh(f"{n.outs[0].name}.{a}.narrow")
                if name not in args:
                    yield _converted(self.value(v), name, v.dtype)
                args.append(name)
            else:
                args.append(a)
        narrow = {v.name: self.fresh(f"{v.name}.narrow") for v in n.outs if v.dtype in WIDENED}
        outs = tuple(replace(v, name=narrow.get(v.name, v.name)) for v in n.outs)
        yield replace(n, outs=outs, args=tuple(args))
        for v in n.outs:
            if v.name in narrow:
                yield _converted(replace(v, name=narrow[v.name]), v.name, WIDE)

    def reducer(self, r: Reducer) -> Reducer:
        identity = tuple(_literal(i) for i in r.identity)
        parts = (self.exprs(part) for part in (r.lift, r.merge, r.finish))
        return Reducer(r.name, tuple(map(_wide, r.elements)), identity, *parts)

    def exprs(self, exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        done: dict[int, Expr] = {}
        return tuple(self.expr(e, done) for e in exprs)

    def expr(self, e: Expr, done: dict[int, Expr] | None = None) -> Expr:
        """The expression in f64; operations that are shared stay shared."""
        done = {} if done is None else done
        if id(e) not in done:
            done[id(e)] = self.made(e, done)
        return done[id(e)]

    def made(self, e: Expr, done: dict[int, Expr]) -> Expr:
        match e:
            case Lit():
                return _literal(e)
            case IndexValue():
                return e
            case Local():
                return replace(e, dtype=_wide(e.dtype))
            case Read():
                return self.read(e, done)
            case Apply():
                return Apply(e.op, tuple(self.expr(a, done) for a in e.args))
            case Cast():
                return cast(self.expr(e.arg, done), _wide(e.dtype))
            case BitCast():
                # The bits are those of the type that the model names.
                bits = BitCast(cast(self.expr(e.arg, done), e.arg.dtype), e.dtype)
                return cast(bits, _wide(e.dtype))
            case _:
                assert_never(e)

    def read(self, e: Read, done: dict[int, Expr]) -> Expr:
        coords = tuple((d, c if isinstance(c, Index) else self.expr(c, done)) for d, c in e.coords)
        if e.value in self.kept:
            return cast(replace(e, coords=coords), WIDE)
        fill = None if e.fill is None else _literal(e.fill)
        return Read(e.value, coords, _wide(e.dtype), fill)


def _wide(dtype: DType) -> DType:
    return WIDE if dtype in WIDENED else dtype


def _literal(x: Lit) -> Lit:
    return Lit(x.value, WIDE) if x.dtype in WIDENED else x


def _converted(v: Value, name: str, dtype: DType) -> Nest:
    """A copy of a value in another type."""
    return Nest((Value(name, dtype, v.dims),), (), None, (cast(at_point(v), dtype),))


def _taken_whole(graph: Graph) -> Iterable[str]:
    """The values that are taken as they are, not read element by element."""
    yield from (o.value for o in graph.outputs)
    for n in walk_nodes(graph.nodes):
        match n:
            case Scan() | While():
                yield from (name for c in n.carries for name in (c.init, c.next))
                yield from n.collected if isinstance(n, Scan) else ()
            case If():
                yield from (*n.then.results, *n.orelse.results)
            case Scatter():
                yield n.base
            case _:
                pass
