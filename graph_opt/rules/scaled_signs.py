"""Products of bytes that are scaled part by part: signs of rows go to the constant.

Without instructions that add products of bytes to 32 bits, bytes are widened to 16 in the loop of a
sum, which takes longer than memory does to bring them. An instruction adds up two products of
bytes, unsigned by signed ones, in 16 bits: magnitudes are at most 128, so that two products of them
with signed bytes fit (`alternatives.signs`). Where parts of a sum have scales of their own, as
blocks of a decoder's weights have, sums of integers are inside one of real numbers.
"""

from __future__ import annotations

import numpy as np

from rutc.base.record import record
from rutc.graph_opt.alternatives.signs import magnitudes_and_signs
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import at_point, index_coords, is_plain
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import (
    Cast,
    Const,
    Data,
    DType,
    Expr,
    Index,
    Lit,
    Nest,
    Node,
    Read,
    Value,
    apply,
)
from rutc.tensor_ir.expr import transform
from rutc.tensor_ir.facts.products import LARGEST_SIZE, are_small, scaled, whole_product
from rutc.tensor_ir.machine import COMMON, QUAD, Machine
from rutc.tensor_ir.reducer import reducer

LARGEST_HALVES = 1 << 24
"""So many halves, and all fewer, are float32 numbers."""


@matches("reduction")
@record
class TakeScaledSigns:
    """The other factor's magnitudes are multiplied, its signs change the constant's bits.

    %y{n} = sum{b,k} f32(i32(%q[b, k]) * i32(%w[b, k, n])) * %s[b, n]      with %q : i8, %w : u8
      ->  %q.sizes{b,k} = |i32(%q[b, k])| as u8
          %q.signs{b,k} = i32(%q[b, k]) < 0 ? -1 : 0
          %q.sizes.sum{b} = sum{k} i32(%q.sizes[b, k])
          %q.sum{b} = sum{k} i32(%q[b, k])
          %y.rest{b} = f32(%q.sizes.sum[b]) * 0.5 + f32(%q.sum[b]) * 127.5
          %y{n} = sum{b,k} (f32(i32(%w.whole[b, k, n] ^ %q.signs[b, k]) * i32(%q.sizes[b, k]))
                            + %y.rest[b] * 0.5) * %s[b, n]

    with %w.whole = %w - 128 as i8, and two k. Exact: a part has a power of two elements, and so few
    that what they add up to is some whole number of halves, which float32 has.
    """

    machine: Machine = COMMON

    def __call__(self, n: Node, editor: Editor) -> Result:
        """The nodes of magnitudes and signs, what they leave to add, and the sum."""
        m = self.machine
        if m.products(DType.U8, DType.I8, small=True) != QUAD or m.adds_products:
            return Reason("there is an instruction for all such products, or none for small ones")
        if m.has_matrices(DType.I8):
            return Reason("registers for matrices take such products")
        if not isinstance(n, Nest):
            return Reason("not a sum")
        found = scaled(n.reducer, n.body)
        if found is None or any(len(f.reads) > 1 for f in found.factors):
            return Reason("no products of bytes are scaled in it")
        reads = [f.reads[0] for f in found.factors]
        consts = [editor.constant(r.value) for r in reads]
        if sum(c is not None for c in consts) != 1:
            return Reason("not one of its factors is constant")
        (w, const), (q, _) = sorted(zip(reads, consts, strict=True), key=lambda x: x[1] is None)
        assert const is not None
        if q.dtype is not DType.I8 or w.dtype not in (DType.I8, DType.U8):
            return Reason("it is not a constant of bytes by signed ones")
        if w.dtype is DType.U8 and are_small(const.data.array):
            return Reason("its products are small")
        places = {c.as_var: d for d, c in index_coords(q)}
        if not is_plain(q) or len(places) < len(q.coords) or None in places:
            return Reason(f"%{q.value} is read otherwise than along its dims")
        part = [v for v in n.bound if v in places and found.is_summed(v)]
        length = editor.size(part)
        zero = LARGEST_SIZE if w.dtype is DType.U8 else 0
        if length is None or length < QUAD or length & (length - 1):
            return Reason("parts of one scale are no power of two")
        if 2 * length * LARGEST_SIZE * (zero + 1) > LARGEST_HALVES:
            return Reason("parts of one scale are long")
        made = _Made(n, editor)
        whole = made.shifted(w, const, zero)
        sizes, signs = magnitudes_and_signs(q, 0, editor, made.nest)
        rest = made.rest(q, sizes, zero, part)
        product = apply(
            "mul", Cast(apply("bitxor", whole, signs), DType.I32), Cast(sizes, DType.I32)
        )
        each = apply("mul", rest, Lit(1 / length, DType.F32))
        instead = apply("add", Cast(product, DType.F32), each)
        body = transform(n.body[0], lambda e: e if whole_product(e) is None else instead)
        return (*made.nodes, Nest(n.outs, n.bound, n.reducer, (body,), n.origin))


class _Made:
    """The nodes that a sum reads then, as they are made."""

    def __init__(self, n: Nest, editor: Editor) -> None:
        self.of, self.editor = n, editor
        self.nodes: list[Node] = []

    def shifted(self, w: Read, const: Const, zero: int) -> Read:
        """The constant less a zero point, as signed bytes."""
        if not zero:
            return w
        less = (const.data.array.astype(np.int16) - zero).astype(np.int8)
        value = Value(self.editor.fresh_value(f"{w.value}.whole"), DType.I8, const.out.dims)
        self.nodes.append(Const(value, const.axes, Data(less), const.origin))
        return Read(value.name, w.coords, DType.I8)

    def nest(self, name: str, dims: tuple[str, ...], element: Expr) -> str:
        """A new value of such elements."""
        value = Value(self.editor.fresh_value(name), element.dtype, tuple(sorted(dims)))
        self.nodes.append(Nest((value,), (), None, (element,), self.of.origin))
        return value.name

    def rest(self, q: Read, sizes: Read, zero: int, part: list[str]) -> Read:
        """What a part of the sum is more than its products.

        A changed byte is less by 1 than the negative one: magnitudes of numbers below 0 are left,
        which are half of what all magnitudes are more than the numbers; and so is the zero point.
        """
        own = dict(index_coords(q))
        bound = tuple(d for d, c in own.items() if c.as_var in part)
        dims = tuple(sorted(d for d in own if d not in bound))
        terms: list[Expr] = []
        for r, times in ((sizes, 0.5), (q, zero - 0.5)):
            element = Cast(Read(r.value, tuple((d, Index.of(d)) for d in own), r.dtype), DType.I32)
            total = Value(self.editor.fresh_value(f"{r.value}.sum"), DType.I32, dims)
            sums = reducer("sum", DType.I32)
            self.nodes.append(Nest((total,), bound, sums, (element,), self.of.origin))
            real = Cast(at_point(total), DType.F32)
            terms.append(apply("mul", real, Lit(times, DType.F32)))
        name = self.nest(f"{self.of.out.name}.rest", dims, apply("add", *terms))
        return Read(name, tuple((d, own[d]) for d in dims), DType.F32)
