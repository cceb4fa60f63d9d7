"""Strings and boxes as numbers: in a program each is its place in a table of the session.

    input %x : string            ->  input %x : string; %x.text = call intern(%x)       (i64)
    const ["", "a"]              ->  const [0, 1]                 the model's strings, "" first
    %x == "a"                    ->  %x.text == 1
    max{k} of %x == %keys[k]     ->  a table by number (searches.py)
    output %y                    ->  %y.out = call texts(%y); output %y.out              (string)
    input %x : tensor            ->  input %x : tensor; %x.box = call take(%x)          (i64)
    output %y                    ->  %y.out = call give(%y); output %y.out              (tensor)

Equal strings have equal numbers, so kernels move and compare strings as 64-bit integers, and boxes
likewise, of which 0 holds nothing. Only the routines of the host runtime see text or what boxes
hold; those that make boxes, or read what is in them, are told if that is strings or boxes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.decide.names import fresh
from rutc.graph_opt.decide.searches import Searches, searched
from rutc.tensor_ir import (
    Call,
    Const,
    Data,
    DType,
    Graph,
    Input,
    Lit,
    Local,
    Nest,
    Node,
    Output,
    Read,
    Value,
)
from rutc.tensor_ir.expr import Expr, transform
from rutc.tensor_ir.rebuilder import Rebuilder

_TAKING = {DType.STRING: ("intern", "text"), DType.TENSOR: ("take", "box")}
"""The routine that numbers an input's elements, and what ends the numbers' name."""
_GIVING = {DType.STRING: "texts", DType.TENSOR: "give"}
_HOLDING = {DType.STRING: "strings", DType.TENSOR: "boxes"}
_BOXING = ("box", "cut")
_UNBOXING = ("unbox", "joined")


@record
class Numbered:
    """A graph without strings and boxes but at its interface.

    `strings` are those that it names by number, and `boxes` the values that are numbers of boxes.
    """

    graph: Graph
    strings: tuple[str, ...] = ()
    boxes: frozenset[str] = frozenset()


def numbered(graph: Graph) -> Numbered:
    """The graph with numbers for strings and boxes."""
    values = graph.values.values()
    if not any(v.dtype.is_opaque for v in values):
        return Numbered(graph)
    numbering = _Numbering(graph)
    boxes = frozenset(v.name for v in values if v.dtype is DType.TENSOR)
    strings = any(v.dtype is DType.STRING for v in values)
    made = numbering.run()
    if numbering.searches:
        made = Searches(made, len(numbering.numbers)).replaced(numbering.searches)
    return Numbered(made, tuple(numbering.numbers) if strings else (), boxes)


@dataclass
class _Numbering(Rebuilder):
    graph: Graph
    numbers: dict[str, int] = field(default_factory=lambda: {"": 0})
    renamed: dict[str, str] = field(default_factory=dict)
    searches: dict[str, Read] = field(default_factory=dict)
    """The strings that reductions search among the model's, by the first outputs of these."""

    def run(self) -> Graph:
        self.taken = set(self.graph.values)
        self.constants = {n.out.name: n for n in self.graph.nodes if isinstance(n, Const)}
        nodes = list(self.nodes(self.graph.nodes))
        outputs: list[Output] = []
        for o in self.graph.outputs:
            v = self.graph.values[o.value]
            if not v.dtype.is_opaque:
                outputs.append(o)
                continue
            text = Value(fresh(f"{v.name}.out", self.taken), v.dtype, v.dims)
            name = self.renamed.get(v.name, v.name)
            routine = _GIVING[v.dtype]
            call = Call((text,), routine, (name,), (), (o.name,), (o.axes,), (o.axes,))
            nodes.append(call)
            outputs.append(replace(o, value=text.name))
        return replace(self.graph, nodes=tuple(nodes), outputs=tuple(outputs))

    def literal(self, x: Lit) -> Lit:
        return Lit(self.number(str(x.value)) if x.dtype is DType.STRING else 0, DType.I64)

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        result: list[Node] = []
        for n in nodes:
            if isinstance(n, Input) and n.out.dtype.is_opaque:
                result.append(n)
                routine, ending = _TAKING[n.out.dtype]
                inner = Value(fresh(f"{n.out.name}.{ending}", self.taken), DType.I64, n.out.dims)
                self.renamed[n.out.name] = inner.name
                axes = (n.axes,)
                result.append(Call((inner,), routine, (n.out.name,), (), n.origin, axes, axes))
            else:
                result.append(self.node(n))
        return tuple(result)

    def node(self, n: Node) -> Node:
        match n:
            case Const() if n.out.dtype.is_opaque:
                flat = [self.number(_text(t)) for t in n.data.array.reshape(-1).tolist()]
                data = np.array(flat, np.int64).reshape(n.data.array.shape)
                n = replace(n, data=Data(data))
            case Call() if n.routine in (*_BOXING, *_UNBOXING):
                boxing = n.routine in _BOXING
                held = self.graph.values[n.args[0]].dtype if boxing else n.outs[0].dtype
                if held.is_opaque:
                    n = replace(n, attributes=(*n.attributes, ("holds", _HOLDING[held])))
        made = super().node(n)
        if isinstance(n, Nest):
            text = searched(n, self.constants)
            found = None if text is None else self.expr(text)
            if isinstance(found, Read):
                self.searches[n.out.name] = found
        return made

    def name(self, name: str) -> str:
        return self.renamed.get(name, name)

    def value(self, v: Value) -> Value:
        return replace(v, dtype=DType.I64) if v.dtype.is_opaque else v

    def expr(self, e: Expr) -> Expr:
        def visit(x: Expr) -> Expr:
            match x:
                case Lit() if x.dtype.is_opaque:
                    return self.literal(x)
                case Read(name, _, kind, fill) if kind.is_opaque:
                    filled = None if fill is None else self.literal(fill)
                    return replace(x, value=self.name(name), dtype=DType.I64, fill=filled)
                case Local() if x.dtype.is_opaque:
                    return replace(x, dtype=DType.I64)
                case _:
                    return x

        return transform(e, visit)


def _text(element: object) -> str:
    return element.decode() if isinstance(element, bytes) else str(element)
