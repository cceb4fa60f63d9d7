"""Windows of narrow floats compare whole numbers that have the floats' order.

Floats of 16 bits compute in 32: each comparison of one would widen it, and take half as many.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import at_point, index_coords, is_gathered
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.graph_opt.rules.windows_narrow import ORDERS
from rutc.tensor_ir import DType, Expr, Lit, Nest, Node, Read, Value, apply
from rutc.tensor_ir.expr import BitCast
from rutc.tensor_ir.interpreter.evaluate import evaluate_expr
from rutc.tensor_ir.reducer import highest, reducer

HALVES = (DType.F16, DType.BF16)
BITS = DType.U16.bits
ALL_BUT_SIGN = highest(DType.I16)


@matches("reduction")
def order_windows(n: Node, editor: Editor) -> Result:
    """The largest of windows of floats of 16 bits is looked for among whole numbers.

    %m{n} = max{k} %x[i=2*n + k - 1 else -inf]
    ->
    %m.order{i} = order(%x[i])
    %m.first{n} = max{k} %m.order[i=2*n + k - 1 else order(-inf)]
    %m{n} = float(%m.first[n])

    `order` is the floats' bits as u16, of negative numbers all but the sign inverted, and moved so
    that NaN is beyond all numbers: where max and min look for it. `float` is its inverse.
    """
    if not isinstance(n, Nest) or n.reducer is None or n.reducer.name not in ORDERS:
        return Reason("not the largest or smallest of some numbers")
    x = n.body[0]
    if not isinstance(x, Read) or is_gathered(x):
        return Reason("it is of computed numbers")
    kind = x.dtype
    if kind not in HALVES:
        return Reason(f"{kind} is compared as it is")
    if all(c.is_const or c.as_var for _, c in index_coords(x)):
        return Reason("it is of no windows: each element is compared once")
    source = editor.values[x.value]
    largest = n.reducer.name == "max"
    value = Value(editor.fresh_value(f"{n.out.name}.order"), DType.U16, source.dims)
    ordered = Nest((value,), (), None, (_order(at_point(source), kind, largest),), n.origin)
    fill = None if x.fill is None else _literal(_order(x.fill, kind, largest))
    first = Value(editor.fresh_value(f"{n.out.name}.first"), DType.U16, n.out.dims)
    found = replace(
        n,
        outs=(first,),
        reducer=reducer(n.reducer.name, DType.U16),
        body=(Read(value.name, x.coords, DType.U16, fill),),
    )
    back = Nest(n.outs, (), None, (_float(at_point(first), kind, largest),), n.origin)
    return ordered, found, back


def _order(x: Expr, kind: DType, largest: bool) -> Expr:
    moved = Lit(_move(kind, largest), DType.U16)
    return apply("add", _turned(BitCast(x, DType.U16)), moved)


def _float(order: Expr, kind: DType, largest: bool) -> Expr:
    moved = Lit(_move(kind, largest), DType.U16)
    return BitCast(_turned(apply("sub", order, moved)), kind)


def _turned(bits: Expr) -> Expr:
    """The bits, of those with a sign all others inverted: of floats' bits the order, and back."""
    sign = apply("shr", BitCast(bits, DType.I16), Lit(BITS - 1, DType.I16))
    others = apply("bitand", sign, ALL_BUT_SIGN)
    return apply("bitxor", bits, BitCast(others, DType.U16))


def _move(kind: DType, largest: bool) -> int:
    """What is added to turned bits: NaN of either sign is the largest then, or the smallest.

    As whole numbers with a sign they are -infinite - 1 to infinite, with NaN on both sides.
    """
    infinite = int(_literal(BitCast(Lit(inf, kind), DType.U16)).value)
    return infinite + 1 if largest else (1 << BITS) - infinite - 1


def _literal(e: Expr) -> Lit:
    return Lit(int(evaluate_expr(e, {}, {})), e.dtype)
