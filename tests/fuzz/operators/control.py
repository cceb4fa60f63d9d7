"""If, Loop and Scan, with small bodies that read values from outside."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.fuzz.graph import RUNS, Build, Refused, Val, maker

ALONE = ("Relu", "Neg", "Abs", "Identity", "Tanh", "Sigmoid")
INSIDE = ("Add", "Mul", "Sub", "Max", "Min", "Where", *ALONE)
DEEPEST = 3
"""How many subgraphs may lie in each other."""
KINDS = ("float", "int64", "double", "int32")


def _steps(b: Build, x: Val, depth: int = 1) -> Val:
    """A value of the same type and shape, made of one by a few nodes of the body."""
    for _ in range(b.number(1, 3)):
        if depth < DEEPEST and b.chance(10):
            x = _chosen(b, x, depth + 1)
            continue
        op = b.one(INSIDE)
        operand = None if op in ALONE else _second(b, x)
        if op == "Where":
            condition = b.node("Greater", [x, operand])[0]
            made = b.node(op, [condition, x, operand])
        else:
            made = b.node(op, [x] if operand is None else [x, operand])
        if made[0].shape != x.shape or made[0].dtype != x.dtype:
            raise Refused
        x = made[0]
    return x


def _second(b: Build, x: Val) -> Val:
    fits = [
        v
        for v in b.values
        if v.is_tensor
        and v.dtype == x.dtype
        and v.rank <= x.rank
        and all(e in (1, w) for e, w in zip(v.shape[::-1], x.shape[::-1], strict=False))
    ]
    return b.one(fits[::-1]) if fits and b.chance(80) else b.leaf(x.dtype, x.shape)


def _condition(b: Build) -> Val:
    return b.pick(["bool"], lambda v: v.shape == (), lambda: ())


@maker("If")
def if_(b: Build, op: str) -> None:
    _chosen(b, b.pick(KINDS), 1, shaped=b.chance(60))


def _chosen(b: Build, x: Val, depth: int, *, shaped: bool = True) -> Val:
    """What one of two branches makes of a value, of its shape or also of others."""
    branches = []
    for _ in "te":
        inner = b.inner(b.values)
        y = _steps(inner, x, depth)
        branches.append(inner.graph([], [y if shaped else _reshaped(inner, y)]))
    return b.node("If", [_condition(b)], then_branch=branches[0], else_branch=branches[1])[0]


def _reshaped(b: Build, x: Val) -> Val:
    """The elements of a value, or the same twice, as another shape, or as its own."""
    how = b.number(0, 3)
    if how == 0 or b.opset < 13:
        return x
    if how == 1 and x.rank:
        return b.node("Concat", [x, x], axis=b.number(0, x.rank - 1))[0]
    if how == 2:
        return b.node("Reshape", [x, b.integers([-1], fixed=True)])[0]
    return b.node("Unsqueeze", [x, b.integers([b.number(0, x.rank)], fixed=True)])[0]


def _argument(b: Build, array: np.ndarray, prefix: str) -> Val:
    return Val(b.name(prefix), (array,) * RUNS)


def _row(b: Build, number: Val) -> Val:
    """The row of a value from outside that a trip's number tells."""
    rows = b.leaf(b.dtype(KINDS), [b.one([3, 1, 5]), *b.shape(0, 2)])
    count = b.given(np.array(rows.shape[0], np.int64))
    (at,) = b.node("Mod", [number, count])
    return b.node("Gather", [rows, at], axis=0)[0]


def _collected(b: Build, op: str) -> None:
    """A sequence that grows in every trip, and what is made of it."""
    x = b.pick(["float"], lambda v: v.rank > 0, lambda: b.shape(1, 3))
    (empty,) = b.node("SequenceEmpty", [], dtype=int(TensorProto.FLOAT))
    inner = b.inner(b.values)
    number = _argument(b, np.array(0, np.int64), "i")
    going = _argument(b, np.array(True), "c")
    rows = Val(b.name("q"), empty.runs)
    part = _steps(inner, x)
    place = [b.scalar(0)] if b.chance(30) else []
    if b.chance(30):
        part = _reshaped(inner, part)
    (longer,) = inner.node("SequenceInsert", [rows, part, *place])
    (again,) = inner.node("Identity", [going])
    body = inner.graph([number, going, rows], [again, longer])
    trips = b.given(np.array(b.number(0, 4), np.int64), fixed=not b.chance(50))
    (made,) = b.node(op, [trips, None, empty], body=body)
    if made.runs[0] and part.rank:
        b.node("ConcatFromSequence", [made], axis=b.number(0, part.rank - 1))
    else:
        b.node("SequenceLength", [made])


@maker("Loop")
def loop(b: Build, op: str) -> None:
    if b.opset > 12 and b.chance(15):
        _collected(b, op)
        return
    x = b.pick(KINDS)
    inner = b.inner(b.values)
    number = _argument(b, np.array(0, np.int64), "i")
    going = _argument(b, np.array(True), "c")
    state = Val(b.name("s"), x.runs)
    inner.values += [number, state]
    after = _steps(inner, state)
    limited = b.opset > 8 and b.chance(30)
    limit = b.given(np.array(b.number(0, 4), np.int64), fixed=b.chance(50)) if limited else None
    again = inner.node("Less", [number, limit])[0] if limit else inner.node("Identity", [going])[0]
    inputs, starts, outputs = [number, going, state], [x], [again, after]
    changing: list[Val] = []
    if b.opset > 12 and x.rank and b.chance(30):
        grown = Val(b.name("s"), x.runs)
        longer = inner.node("Concat", [grown, state], axis=b.number(0, x.rank - 1))[0]
        inputs, starts, outputs = [*inputs, grown], [x, x], [*outputs, longer]
        changing = [grown, longer]
    if b.chance(50):
        outputs.append(_steps(inner, state))
    if b.chance(30):
        outputs.append(_row(inner, number))
    body = inner.graph(inputs, outputs, changing=changing)
    trips = b.given(np.array(b.number(0, 5), np.int64), fixed=not b.chance(50))
    start = b.given(np.array(True), fixed=True) if b.chance(50) else None
    b.node(
        op, [None if limit and b.chance(50) else trips, start, *starts], len(outputs) - 1, body=body
    )


@maker("Scan")
def scan(b: Build, op: str) -> None:
    if b.opset < 9:
        raise Refused
    x = b.pick(KINDS, lambda v: v.rank > 0 and v.shape[0] > 0, lambda: [3, *b.shape(0, 2)])
    if not x.shape[0]:
        raise Refused
    inner = b.inner(b.values)
    state = b.like(x, x.shape[1:])
    carried = Val(b.name("s"), state.runs)
    part = Val(b.name("e"), tuple(r[0] for r in x.runs))
    inner.values += [carried, part]
    total = inner.node(b.one(["Add", "Mul", "Max"]), [carried, part])[0]
    after = _steps(inner, total) if b.chance(50) else total
    given = inner.node("Identity", [total])[0]
    body = inner.graph([carried, part], [after, given])
    directions = [1] if b.chance(30) else None
    b.node(op, [state, x], 2, body=body, num_scan_inputs=1, scan_input_directions=directions)
