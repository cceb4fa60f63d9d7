"""What is a function of one number of 8 bits is read from a table of all 256 of them.

Quantised models have whole chains between two numbers of 8 bits: of `x * clip(x + 3, 0, 6) / 6`
each step may be quantised and scaled back. All of a chain is one read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.editor import Editor, merge_origins
from rutc.graph_opt.exprs import node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import (
    Apply,
    Cast,
    Const,
    Data,
    DType,
    Expr,
    Graph,
    Index,
    IndexValue,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
)
from rutc.tensor_ir.cost import vector_cycles
from rutc.tensor_ir.expr import index_names, point, transform, walk
from rutc.tensor_ir.interpreter.interpret import interpret_values
from rutc.tensor_ir.machine import COMMON, Machine

NUMBERS = 256
"""As many as 8 bits tell apart."""
MOST_NESTS = 64
"""So many nests are looked into for what a value is made of."""
MOST_STEPS = 8
"""So many of them, one after the other, give other values than numbers of 8 bits: a look into long
chains of real numbers ends there."""
MOST_BITS = 32
"""Elements of a table are no longer than a lane, of which a gather takes one each."""
CODES = (DType.U8, DType.I8)


@matches("elementwise")
@record
class Tabulate:
    """Operations on one number of 8 bits are read from a table, where that takes less time.

    %x{i} = (f32(%q[i]) - 3.0) * 0.1
    %y{i} = u8(i32(min(max(round(%x[i] * tanh(%x[i]) / 0.05), 0.0), 255.0)))
    ->
    %y.table{code} = const [code] ...
    %y{i} = %y.table[code=i64(%q[i])]

    What other nests read of them is computed in any case, and counts nothing.
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The table, and the nest that reads it; or why there is none."""
        if not isinstance(n, Nest) or len(n.outs) > 1:
            return Reason("not one value")
        if n.out.dtype.is_opaque or n.out.dtype.bits > MOST_BITS:
            return Reason("no table has such elements")
        chain = _Chain(editor)
        code = chain.code_of(n) if any(editor.dtypes[t] for t in CODES) else None
        if code is None:
            return Reason("it is no function of one number of 8 bits")
        if editor.typical(n.dims) < NUMBERS:
            return Reason("it has no more elements than a table")
        nests = chain.nests(n, code)
        own = [p for p in nests if p is n or _serves(p, nests, editor)]
        place = _place_of(code)
        name = editor.fresh_value(f"{n.out.name}.table")
        read = Read(name, (("code", place),), n.out.dtype)
        operations = [_without_quotients(e, editor) for p in own for e in p.body]
        rows = {name: NUMBERS, **_tables(own, editor)}
        cycles = vector_cycles(operations, self.machine, rows)
        if cycles <= vector_cycles([read], self.machine, rows):
            return Reason("it takes no longer than to gather it")
        dim = editor.fresh_dim("code", Index.of(NUMBERS))
        table = Value(name, n.out.dtype, (dim,))
        elements = _tabulated(nests, code, dim, editor)
        return (
            Const(table, (dim,), Data(elements), n.origin),
            replace(n, body=(read.at(((dim, place),)),), origin=merge_origins(*nests)),
        )


def _tables(nests: Iterable[Nest], editor: Editor) -> dict[str, int]:
    """The constants that nests read, by their elements."""
    found = (editor.constant(r.value) for p in nests for r in node_reads(p))
    return {c.out.name: c.data.array.size for c in found if c is not None}


def _place_of(code: Read) -> Expr:
    """Where a table has what it gives for a number."""
    place: Expr = Cast(code, DType.I64)
    return apply("add", place, Lit(NUMBERS // 2, DType.I64)) if code.dtype.is_signed else place


def _serves(p: Nest, nests: tuple[Nest, ...], editor: Editor) -> bool:
    """Whether nothing but these nests needs what `p` computes."""
    readers = editor.readers(p.out.name)
    return not editor.leaves_block(p.out.name) and all(r in nests for r in readers)


def _without_quotients(e: Expr, editor: Editor) -> Expr:
    """Quotients by constants as products, which later steps make of them."""

    def product(x: Expr) -> Expr:
        match x:
            case Apply(op="div", args=(a, Lit() as b)) if x.dtype.is_float:
                return apply("mul", a, b)
            case Apply(op="div", args=(a, Read() as b)) if x.dtype.is_float:
                return x if editor.constant(b.value) is None else apply("mul", a, b)
            case _:
                return x

    return transform(e, product)


def _tabulated(nests: tuple[Nest, ...], code: Read, dim: str, editor: Editor) -> np.ndarray:
    """What the last of some nests gives for each number of 8 bits, in order."""
    number: Expr = IndexValue(Index.of(dim))
    if code.dtype.is_signed:
        number = apply("sub", number, Lit(NUMBERS // 2, DType.I64))
    number = Cast(number, code.dtype)
    made = {p.out.name for p in nests}

    def each(x: Expr) -> Expr:
        if x == code:
            return number
        return x.at(point((dim,))) if isinstance(x, Read) and x.value in made else x

    consts = {r.value: c for p in nests for r in node_reads(p) if (c := editor.constant(r.value))}
    dims = dict.fromkeys((dim, *(d for c in consts.values() for d in c.axes)))
    rows = [
        replace(
            p,
            outs=(replace(p.out, dims=(dim,)),),
            body=tuple(transform(e, each) for e in p.body),
        )
        for p in nests
    ]
    graph = Graph(
        name="table",
        dims=tuple((d, editor.extents[d]) for d in dims),
        nodes=(*consts.values(), *rows),
        outputs=(),
    )
    return interpret_values(graph, {})[nests[-1].out.name]


class _Chain:
    """What nests are made of, as far as they are functions of one number at each point."""

    def __init__(self, editor: Editor) -> None:
        """Look into none yet."""
        self.editor = editor
        self.codes: dict[str, Read | None] = {}
        """The numbers of 8 bits that the values are functions of which were looked into."""
        self.left = MOST_NESTS

    def code_of(self, n: Nest, steps: int = 0) -> Read | None:
        """The number of 8 bits that a nest is a function of, the first of a chain.

        So many `steps` behind it there is another one, or the nest that is asked about.
        """
        if steps > MOST_STEPS or any(isinstance(x, IndexValue) for e in n.body for x in walk(e)):
            return None
        found: Read | None = None
        for r in dict.fromkeys(node_reads(n)):
            if r.fill is None and self.editor.constant(r.value) is not None:
                if any(isinstance(c, Index) and c.names() for _, c in r.coords):
                    return None
                continue
            code = self._code(r, n, steps) if self._is_at_point(r, n) else None
            if code is None or found not in (None, code):
                return None
            found = code
        return None if found is None or index_names(found) - set(n.out.dims) else found

    def _is_at_point(self, r: Read, n: Nest) -> bool:
        """Whether a nest reads an element for each of its own points."""
        moved = [d for d, c in r.coords if not isinstance(c, Index) or c.names()]
        alike = all(c == Index.of(d) for d, c in r.coords if d in moved)
        more = [d for d in n.out.dims if d not in moved]
        ones = all(self.editor.extents[d] == Index.of(1) for d in more)
        return r.fill is None and alike and ones

    def nests(self, n: Nest, code: Read) -> tuple[Nest, ...]:
        """The nests from the number to this one, in order."""
        found: dict[str, Nest] = {}

        def add(p: Nest) -> None:
            for r in node_reads(p):
                made = self.editor.nest(r.value)
                if made is not None and r != code and r.value not in found:
                    add(made)
            found[p.out.name] = p

        add(n)
        return tuple(found.values())

    def _code(self, r: Read, reader: Nest, steps: int) -> Read | None:
        if r.value not in self.codes:
            p = self.editor.nest(r.value)
            self.left -= 1
            found: Read | None = None
            if p is not None and p.reducer is None and len(p.outs) == 1 and self.left > 0:
                beside = self.editor.block(p) == self.editor.block(reader)
                behind = 0 if r.dtype in CODES else steps + 1
                found = self.code_of(p, behind) if beside else None
            self.codes[r.value] = found
        # Another element of the same value is another number.
        return self.codes[r.value] or (r if r.dtype in CODES else None)
