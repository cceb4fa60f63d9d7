"""Sums of products of a value with a constant: convolutions, and products of matrices."""

from __future__ import annotations

from rutc.graph_opt.editor import Editor
from rutc.graph_opt.exprs import index_coords, is_gathered
from rutc.graph_opt.rewrite import Reason
from rutc.tensor_ir import Apply, Const, DType, Nest, Read


def weighted(n: Nest, editor: Editor) -> tuple[Read, Read, Const] | Reason:
    """(input, weights, the weights' node) of a nest that sums products of two reads."""
    match n.body[0]:
        case Apply(op="mul", args=(Read() as a, Read() as b)):
            pass
        case _:
            return Reason("it does not sum products of two reads")
    if n.out.dtype is not DType.F32 or a.dtype is not DType.F32:
        return Reason(f"its type is {n.out.dtype}, not f32")
    return weighted_reads(a, b, editor)


def weighted_reads(a: Read, b: Read, editor: Editor) -> tuple[Read, Read, Const] | Reason:
    """(input, weights, the weights' node) of two factors, one of which is read as weights are."""
    const = editor.constant(b.value)
    if const is None:
        a, b, const = b, a, editor.constant(a.value)
    if const is None or editor.constant(a.value) is not None:
        return Reason("not one of its factors is constant")
    if is_gathered(a):
        return Reason(f"%{a.value} is gathered")
    if a.fill is not None and a.fill.value != 0:
        return Reason(f"outside of %{a.value} is {a.fill.value}, not 0")
    loops = [c.as_var for _, c in index_coords(b)]
    if b.fill is not None or None in loops or len(set(loops)) < len(b.coords):
        return Reason(f"%{b.value} is not read at one loop per dim")
    if any(
        editor.extents[d] != editor.extents[v] for d, v in zip(_dims(b), loops, strict=True) if v
    ):
        return Reason(f"not all of %{b.value} is read")
    return a, b, const


def _dims(r: Read) -> list[str]:
    return [d for d, _ in r.coords]
