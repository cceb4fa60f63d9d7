"""Puts as LLVM IR: values combined into elements that are chosen while running."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from rutc.emit.expression import ExpressionEmitter
from rutc.emit.index import CHOSEN
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import is_vector
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Buffer, Put
from rutc.tensor_ir.reducer import Reducer, as_locals


def emit_put(expressions: ExpressionEmitter, put: Put) -> None:
    """The put at the current point: a test of the coordinates, and what happens inside of it.

    Lanes put to different elements. Where the test differs between them it becomes their mask.
    """
    buffer = expressions.buffers[put.target.buffer]
    if buffer.layout.size == 0:
        return
    coords, guard = expressions.target(put.target, buffer)
    if coords is None:
        return
    index = expressions.index
    address = buffer.layout.address(coords, index.ranges)
    lane = index.lane
    masked = guard if guard is not None and is_vector(guard) else None
    branch = nullcontext() if guard is None or masked else expressions.builder.if_then(guard)
    with branch, index.scope(), expressions.region():
        if masked is not None and lane is not None:
            mask = masked if lane.mask is None else expressions.builder.and_(lane.mask, masked)
            # No loop ends where these lanes do, so that nothing takes the mask for a loop's own.
            index.lane = replace(lane, mask=mask, end=CHOSEN)
        value = expressions.emit(put.value)
        if put.reducer is not None:
            value = _combined(expressions, buffer, address, put.reducer, value)
        expressions.put(buffer, address, value)
        index.lane = lane


def _combined(
    expressions: ExpressionEmitter, buffer: Buffer, address: Index, r: Reducer, value: ir.Value
) -> ir.Value:
    """The element with `value` taken in."""
    old = expressions.element(buffer, address)
    states: list[list[ir.Value]] = []
    for x in (old, value):
        expressions.locals = {"x0": x}
        states.append([expressions.emit(e) for e in r.lift])
    mine, other = states
    expressions.locals = as_locals(a=mine, b=other)
    merged = [expressions.emit(e) for e in r.merge]
    expressions.locals = as_locals(s=merged)
    result = expressions.emit(r.finish[0])
    expressions.locals = {}
    return result
