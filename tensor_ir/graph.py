"""The graph language: nests over named, unordered dimensions [Barham & Isard 2019, §4.3, §5].

    graph   := input* node* output*
    value   := %name : dtype{dim, ...}             a set of dims; no order, no memory
    dim     := name = extent                       one table for the whole graph; extent: an Index
    input   := %v = input "name" [axis, ...] (fixed data)?     the axes' order is the interface
    const   := %v = const [axis, ...] data
    nest    := %v, ... = reducer{bound dims} expr, ...      for all dims of %v; no reducer: one expr
    scan    := %v, ... = scan t carry(%p = %init -> %next, ...) collect(%x, ...) { node* }
    if      := %v, ... = if %cond { node* yield %a, ... } else { node* yield %b, ... }
    while   := %v, ... = while carry(%p = %init -> %next, ...) if %cond { node* }
    scatter := %v = scatter{dims} %base[dim=coord, ...] reducer= expr     (set= keeps the last)
    bind    := %v = bind symbol = %n               the symbol is a size that the program computes
    call    := %v, ... = call routine(%x[axis, ...], ..., key=literal, ...) -> [axis, ...], ...
    output  := output "name" [axis, ...] = %v

A nest computes, for every point of its outputs' dims, the reduction of its body over every point of
its bound dims. A nest without a reducer has no bound dims and one output. Reads are total (see
`expr`). Reduction order is not specified. Inside the body of a scan the scanned dim is a symbol
that counts 0, 1, ..; each trip sees the carried values of the trip before, and a collected value
gains the scanned dim. Bodies see all values defined before them. A scatter starts as a copy of
`base` and combines the body's values at their coordinates (`set` keeps the last in row-major order
of the sorted dims; coordinates outside are dropped). A call names a routine of the host runtime
(its meaning: `routines`), and the order of axes in which that sees each operand and result.
A run whose fixed input has other elements, bit for bit, fails.
A bind gives a symbol its value, an i64 scalar, for the nodes after it in its block and their
bodies; a value outside of the symbol's range ends the run. A symbol without a bind is known from
the inputs' shapes. So all sizes are known before anything has them.

The text form, token by token, is described in `text`; `parse(str(g)) == g`.

Nodes are in definition order; each value is defined once. Every node carries `origin`, the names
of the ONNX nodes it came from, through every rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.data import Data
from rutc.tensor_ir.indices.affine import Index, Range, quoted
from rutc.tensor_ir.indices.dim_ranges import dim_range
from rutc.tensor_ir.indices.ranges import range_text
from rutc.tensor_ir.interface import Bundle, Interface
from rutc.tensor_ir.nodes import (
    Attribute,
    Bind,
    Body,
    Call,
    Carry,
    Const,
    If,
    Input,
    Nest,
    Node,
    Origin,
    Scan,
    Scatter,
    Value,
    While,
    bodies,
    bound_symbols,
    defined,
    mentioned,
    outs,
    used,
    used_deep,
    walk_nodes,
    with_bodies,
)
from rutc.tensor_ir.textual.text import (
    axes_text,
    is_custom,
    node_lines,
    reducer_text,
    string_text,
    value_name,
)

__all__ = [
    "Attribute",
    "Bind",
    "Body",
    "Call",
    "Carry",
    "Const",
    "Data",
    "Graph",
    "If",
    "Input",
    "Nest",
    "Node",
    "Origin",
    "Output",
    "Scan",
    "Scatter",
    "State",
    "Value",
    "While",
    "bodies",
    "bound_symbols",
    "constants_of",
    "defined",
    "mentioned",
    "outs",
    "used",
    "used_deep",
    "walk_nodes",
    "with_bodies",
]

WIDTH = 100
"""Columns of text, beyond which lists go on in another line."""


@record
class Output:
    """A model output: `name` and axis order are the interface."""

    name: str
    value: str
    axes: tuple[str, ...]


@record
class State:
    """An output whose value is what an input has in the next run, by their names."""

    output: str
    input: str


@record
class Graph:
    """A whole model. `dims` gives every dim its extent, `symbols` every free size its range."""

    name: str
    dims: tuple[tuple[str, Index], ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[tuple[str, Range], ...] = field(default=())
    interface: Interface | None = None
    """Where some input or output is no tensor: what the inputs and outputs of the graph make up."""
    states: tuple[State, ...] = ()
    """What sessions keep from run to run: the last inputs and outputs, in the same order."""

    @cached_property
    def extents(self) -> Mapping[str, Index]:
        """Every dim's extent."""
        return dict(self.dims)

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Every value by name, those inside bodies included."""
        return {v.name: v for n in walk_nodes(self.nodes) for v in defined(n)}

    @cached_property
    def constants(self) -> Mapping[str, Const]:
        """The nodes of constants by their values' names, those inside bodies included."""
        return {n.out.name: n for n in walk_nodes(self.nodes) if isinstance(n, Const)}

    @cached_property
    def ranges(self) -> Mapping[str, Range]:
        """Inclusive ranges: of every dim's index (from 0) and of every symbol."""
        symbols = dict(self.symbols)
        table = dict(symbols)
        for d, extent in self.dims:
            limits = dim_range(extent, symbols)
            if limits is not None:
                table[d] = limits
        return table

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The model's inputs in their order."""
        return tuple(n for n in self.nodes if isinstance(n, Input))

    def extent(self, dim: str) -> int:
        """The extent of a dim that is not symbolic. Raises ValueError for a symbolic one."""
        return self.extents[dim].value

    def __str__(self) -> str:
        lines = [f"graph {string_text(self.name)}"]
        symbols = [f"{quoted(s)} = {range_text(r)}" for s, r in self.symbols]
        lines += _wrapped("symbols", symbols)
        lines += _wrapped("dims", [f"{quoted(d)} = {extent}" for d, extent in self.dims])
        custom = {n.reducer: None for n in walk_nodes(self.nodes) if isinstance(n, Nest | Scatter)}
        lines += [reducer_text(r) for r in custom if r is not None and is_custom(r)]
        for n in self.nodes:
            lines += node_lines(n)
        for o in self.outputs:
            lines.append(
                f"output {string_text(o.name)} {axes_text(o.axes)} = {value_name(o.value)}"
            )
        lines += [f"state {string_text(s.input)} = {string_text(s.output)}" for s in self.states]
        if self.interface is not None:
            for role, members in (
                ("input", self.interface.inputs),
                ("output", self.interface.outputs),
            ):
                lines += [f"interface {role} {string_text(n)} = {_bundle(b)}" for n, b in members]
        return "\n".join(lines) + "\n"


def constants_of(g: Graph) -> dict[str, Data]:
    """All constants of a graph by digest, as `parse` takes them."""
    found = [n.data for n in walk_nodes(g.nodes) if isinstance(n, Const)]
    found += [n.fixed for n in g.inputs if n.fixed is not None]
    return {data.digest: data for data in found}


def _bundle(b: Bundle) -> str:
    if b.kind == "tensor":
        return string_text(b.port)
    if b.kind == "boxed":
        return f"boxed({', '.join([string_text(b.type), string_text(b.port), *map(str, b.shape)])})"
    items = (string_text(k) if isinstance(k, str) else str(k) for k in b.keys or ())
    keys = "" if b.keys is None else f"[{', '.join(items)}]"
    return f"{b.kind}{keys}({', '.join(map(_bundle, b.parts))})"


def _wrapped(title: str, items: list[str]) -> list[str]:
    lines: list[str] = []
    line = f"{title} "
    for i, item in enumerate(items):
        piece = item + (", " if i + 1 < len(items) else "")
        if len(line) + len(piece.rstrip()) > WIDTH and line.strip() != title:
            lines.append(line.rstrip())
            line = "  "
        line += piece
    return [*lines, line.rstrip()] if items else []
