"""Operands in few bits: when sums of products widen them, and when that is done before."""

from __future__ import annotations

from dataclasses import replace

from rutc.base.record import record
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import at_point, is_gathered, is_plain, node_reads
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.contraction import inlined
from rutc.graph_opt.rules.fold import FoldConstants
from rutc.tensor_ir import Cast, DType, Expr, Lit, Nest, Node, Read, Value
from rutc.tensor_ir.expr import index_names
from rutc.tensor_ir.machine import COMMON, Machine
from rutc.tensor_ir.terms import factors, product_of


@matches("reduction")
@record
class WidenOperands:
    """An operand that is read many times is widened first, a constant while compiling.

    It has to be read so often in small runs, too, as one with few rows waits for its bytes: be they
    of weights or of a cache. What many rows share, their schedule may widen for all of them.

    %y{m,n} = sum{k} f32(%x[m, k]) * f32(%w[k, n])
    ->
    %x.wide{m,k} = f32(%x[m, k])
    %w.wide{k,n} = f32(%w[k, n])
    %y{m,n} = sum{k} %x.wide[m, k] * %w.wide[k, n]

    Both operands may be parts of one value, which is widened once.
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The wide operands, and their sum; or why not."""
        if not isinstance(n, Nest) or not n.is_sum:
            return Reason("not a sum")
        parts = factors(n.body[0])
        if len(parts) < 2:
            return Reason("not a sum of products")
        wide: dict[str, Nest] = {}
        why = Reason("no operand is stored in fewer bits")
        for i, part in enumerate(parts):
            match part:
                case Cast(Read() as r, DType.F32) if r.dtype.is_float and r.dtype.bits < 32:
                    pass
                case _:
                    continue
            if is_gathered(r):
                why = Reason(f"%{r.value} is gathered")
                continue
            others = [d for d in n.dims if d not in index_names(r)]
            times = editor.fewest(others)
            if times < self.machine.coefficients.fusion.widened:
                why = Reason(f"%{r.value} is read {times} times")
                continue
            source = editor.values[r.value]
            if r.value not in wide:
                out = Value(editor.fresh_value(f"{r.value}.wide"), DType.F32, source.dims)
                element = Cast(at_point(source), DType.F32)
                wide[r.value] = Nest((out,), (), None, (element,), n.origin)
            parts[i] = _reading(wide[r.value].out, r)
        if not wide:
            return why
        return (*wide.values(), replace(n, body=(product_of(parts),)))


@matches("reduction")
@record
class SumPacked:
    """A sum of products reads constants in few bits as they are, and makes numbers of them itself.

    %b{k,n} = (f32(%w[k, n]) - 8.0) * %s[n, g=k // 32]      with constants %w : u4 and %s
    %y{m,n} = sum{k} %x[m, k] * %b[k, n]
    ->
    %y{m,n} = sum{k} %x[m, k] * ((f32(%w[k, n]) - 8.0) * %s[n, g=k // 32])

    Only where the numbers take more than `small_bytes`, and more than `growth` times what they are
    computed from: others are computed while compiling.
    """

    small_bytes: int = FoldConstants.small_bytes
    growth: float = FoldConstants.growth

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The sum over the packed operand."""
        if not isinstance(n, Nest) or not n.is_sum:
            return Reason("not a sum")
        parts = factors(n.body[0])
        if len(parts) < 2:
            return Reason("not a sum of products")
        why = Reason("no operand is computed from constants")
        for r in parts:
            p = editor.nest(r.value) if isinstance(r, Read) else None
            if p is None or p.reducer is not None or not isinstance(r, Read) or not is_plain(r):
                continue
            sources = [editor.constant(x.value) for x in node_reads(p)]
            size = editor.size(p.out.dims)
            if size is None or not all(map(is_plain, node_reads(p))) or None in sources:
                continue
            stored = sum(c.data.array.size * c.out.dtype.bytes for c in sources if c is not None)
            if size * p.out.dtype.bytes <= max(self.small_bytes, self.growth * stored):
                why = Reason(f"%{r.value} is small enough to store")
                continue
            return (inlined(n, r, p),)
        return why


def _reading(wide: Value, r: Read) -> Expr:
    fill = None if r.fill is None else Lit(r.fill.value, DType.F32)
    return Read(wide.name, r.coords, DType.F32, fill)
