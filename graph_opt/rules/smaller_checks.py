"""Checks of a whole tensor are those of less: a branch that passes a value on is a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rutc.graph_opt.editor import Editor, merge_origins, rename_reads
from rutc.graph_opt.exprs import at_point
from rutc.graph_opt.kinds import matches
from rutc.graph_opt.rewrite import Reason, Result
from rutc.tensor_ir import Body, Call, Const, If, Nest, Node, Value
from rutc.tensor_ir.expr import reads


@matches("other")
def check_operand(n: Node, editor: Editor) -> Result:
    """What ends a run or passes a value on passes on the smallest that this is made of.

    %x{m,n} = %a[m, n] + %b[n]
    %y{m,n} = if %bad { fail } else { %t{m,n} = %x[m, n]  yield %t }
    ->
    %b.checked{n} = if %bad { fail } else { %t{n} = %b[n]  yield %t }
    %y{m,n} = %a[m, n] + %b.checked[n]

    Constant factors of sums stay constants, which are laid out before a run.
    """
    if not isinstance(n, If):
        return Reason("not an If")
    bodies = tuple(editor.body(n, i) for i in range(2))
    ends = [any(isinstance(x, Call) and x.routine == "fail" for x in nodes) for nodes in bodies]
    if ends.count(True) != 1 or len(n.outs) != 1:
        return Reason("not a check of one value")
    failing = ends.index(True)
    match bodies[failing], bodies[1 - failing]:
        case (Call() as fail,), (Nest(reducer=None) as copy,) if len(copy.outs) == 1:
            pass
        case _:
            return Reason("its branches do more than to end the run and to pass a value on")
    source = next((r.value for r in reads(copy.body[0])), None)
    made = None if source is None else editor.nest(source)
    if made is None or len(made.outs) != 1 or copy.body[0] != at_point(made.out):
        return Reason("what it passes on is no result of a nest, as it is")
    if copy.out.dims != made.out.dims:
        return Reason(f"it repeats %{made.out.name}, which would be computed as often")
    if editor.readers(made.out.name) != (copy,) or editor.is_output(made.out.name):
        return Reason(f"%{made.out.name} has other readers")
    if editor.block(made) != editor.block(n):
        return Reason(f"%{made.out.name} is made outside of the block")
    operand = min(_operands(made, editor), key=lambda v: editor.typical(v.dims), default=None)
    if operand is None or editor.typical(operand.dims) >= editor.typical(made.out.dims):
        return Reason("nothing that it is made of is smaller")
    checked = replace(operand, name=editor.fresh_value(f"{operand.name}.checked"))
    lost, same = (
        replace(operand, name=editor.fresh_value(f"{checked.name}.{end}"))
        for end in ("none", "same")
    )
    failed = Body((replace(fail, outs=(lost,), out_axes=()),), (lost.name,))
    passed = Body((Nest((same,), (), None, (at_point(operand),), copy.origin),), (same.name,))
    then, orelse = (passed, failed) if failing else (failed, passed)
    names = {operand.name: checked.name}
    return (
        If((checked,), n.cond, then, orelse, n.origin),
        replace(
            made,
            outs=n.outs,
            body=tuple(rename_reads(e, names) for e in made.body),
            origin=merge_origins(made, n),
        ),
    )


def _operands(made: Nest, editor: Editor) -> Iterator[Value]:
    """The values that a nest reads, but for constants that it sums over."""
    for name in dict.fromkeys(r.value for e in made.body for r in reads(e)):
        if made.reducer is None or not isinstance(editor.producer(name), Const):
            yield editor.values[name]
