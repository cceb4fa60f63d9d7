"""Sequences of fixed length, and optionals."""

from __future__ import annotations

from onnx import TensorProto

from tests.fuzz.graph import Build, Refused, Val, maker


def _construct(b: Build) -> tuple[Val, Val, int]:
    """A sequence, its first element and its length."""
    x = b.pick(["float", "int64", "double"], lambda v: v.rank > 0, lambda: b.shape(1, 3))
    parts = [x, *(b.like(x) for _ in range(b.number(0, 2)))]
    return b.node("SequenceConstruct", parts)[0], x, len(parts)


@maker("SequenceConstruct SequenceAt SequenceLength")
def at(b: Build, op: str) -> None:
    s, _, length = _construct(b)
    if op == "SequenceLength":
        b.node(op, [s])
    else:
        place = b.scalar(b.number(-length, length - 1))
        b.node("SequenceAt", [s, place])


@maker("ConcatFromSequence")
def concat_from(b: Build, op: str) -> None:
    s, x, _ = _construct(b)
    b.node(op, [s], axis=b.number(0, x.rank - 1), new_axis=b.one([None, 1]))


@maker("SequenceInsert SequenceErase")
def edit(b: Build, op: str) -> None:
    s, x, length = _construct(b)
    place = [b.scalar(b.number(-length, length - 1))]
    place = place if b.chance(60) else []
    middle = [b.like(x)] if op == "SequenceInsert" else []
    made = b.node(op, [s, *middle, *place])[0]
    if length + (1 if middle else -1) > 0:
        b.node("ConcatFromSequence", [made], axis=0)


@maker("SplitToSequence")
def split_to(b: Build, op: str) -> None:
    x = b.pick(["float", "int64"], lambda v: v.rank > 0 and 0 not in v.shape, lambda: [4, 3])
    axis = b.number(0, x.rank - 1)
    keep = b.one([None, 0, 1])
    s = b.node(op, [x], axis=axis, keepdims=keep)[0]
    place = b.scalar(0)
    b.node("SequenceAt", [s, place])


@maker("SequenceEmpty")
def empty(b: Build, op: str) -> None:
    s = b.node(op, [], dtype=int(TensorProto.FLOAT))[0]
    if b.chance(50):
        b.node("SequenceLength", [s])
    else:
        x = b.pick(["float"])
        b.node("SequenceAt", [b.node("SequenceInsert", [s, x])[0], b.scalar(0)])


@maker("Optional OptionalGetElement OptionalHasElement")
def optional(b: Build, op: str) -> None:
    if b.opset < 18:
        raise Refused
    x = b.pick(["float", "int64", "bool"])
    held = b.node("Optional", [x])[0] if b.chance(60) else x
    if held is not x:
        b.values.remove(held)
    if not held.is_tensor:
        raise Refused(op)
    b.node("OptionalHasElement" if op == "OptionalHasElement" else "OptionalGetElement", [held])


@maker("SequenceMap")
def sequence_map(b: Build, op: str) -> None:
    s, x, _ = _construct(b)
    inner = b.inner([])
    each = Val(b.name("e"), x.runs)
    operands, inputs = [s], [each]
    made = inner.node(b.one(["Neg", "Abs", "Identity"]), [each])[0]
    if b.chance(40):
        more = b.like(x)
        second = Val(b.name("e"), more.runs)
        operands.append(more)
        inputs.append(second)
        made = inner.node("Add", [made, second])[0]
    b.node(op, operands, body=inner.graph(inputs, [made]))
