"""Operators that move elements: shapes, slices, joins, paddings."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tests.fuzz.graph import Build, Refused, Val, maker
from tests.fuzz.operators.reductions import axes_of


def any_value(b: Build, op: str, low: int = 0) -> Val:
    """A value of any type that the operator takes, of a least rank."""
    return b.pick(b.types(op), lambda v: v.rank >= low, lambda: b.shape(low))


@maker("Transpose")
def transpose(b: Build, op: str) -> None:
    from hypothesis import strategies as st

    x = any_value(b, op)
    perm = b.draw(st.permutations(range(x.rank))) if b.chance(85) and x.rank else None
    b.node(op, [x], perm=perm)


@maker("Reshape")
def reshape(b: Build, op: str) -> None:
    x = any_value(b, op)
    shape = list(x.shape)
    for _ in range(b.number(1, 3)):
        if len(shape) > 1 and b.chance(50):
            at = b.number(0, len(shape) - 2)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif shape:
            at = b.number(0, len(shape) - 1)
            factors = [d for d in range(1, shape[at] + 1) if shape[at] % d == 0]
            if factors:
                factor = b.one(factors)
                shape[at : at + 1] = [factor, shape[at] // factor]
        else:
            shape = [1]
    wanted = list(shape)
    if b.chance(40) and wanted and 0 not in wanted:
        wanted[b.number(0, len(wanted) - 1)] = -1
    elif b.chance(30):
        wanted = [0 if k < x.rank and e == x.shape[k] else e for k, e in enumerate(wanted)]
    if b.opset < 5:
        raise Refused
    zero = 1 if b.has(op, "allowzero") and 0 in shape and -1 not in wanted else None
    wanted = shape if zero else wanted
    b.node(op, [x, b.integers(wanted)], allowzero=zero)


@maker("Flatten")
def flatten(b: Build, op: str) -> None:
    x = any_value(b, op)
    axis = b.number(-x.rank if b.opset >= 11 else 0, x.rank)
    b.node(op, [x], axis=axis)


@maker("Squeeze")
def squeeze(b: Build, op: str) -> None:
    x = any_value(b, op)
    ones = [a for a, e in enumerate(x.shape) if e == 1 and b.chance(70)]
    ones = [a - x.rank if b.opset >= 11 and b.chance(30) else a for a in ones]
    if b.has(op, "axes"):
        b.node(op, [x], axes=ones or None)
    else:
        b.node(op, [x, b.integers(ones)] if ones else [x])


@maker("Unsqueeze")
def unsqueeze(b: Build, op: str) -> None:
    x = any_value(b, op)
    rank = x.rank + b.number(1, 2)
    axes = axes_of(b, rank, rank - x.rank)[: rank - x.rank]
    if b.has(op, "axes"):
        b.node(op, [x], axes=axes)
    else:
        b.node(op, [x, b.integers(axes)])


@maker("Expand")
def expand(b: Build, op: str) -> None:
    x = any_value(b, op)
    shape = [b.one([1, e]) if e != 1 else b.one([3, 1, 2]) for e in x.shape]
    shape = [*b.shape(0, 1), *shape] if b.chance(50) else shape[b.number(0, len(shape)) :]
    b.node(op, [x, b.integers(shape)])


@maker("Tile")
def tile(b: Build, op: str) -> None:
    x = any_value(b, op)
    b.node(op, [x, b.integers([b.one([1, 2, 3, 0]) for _ in x.shape])])


@maker("Concat")
def concat(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    axis = b.axis(x.rank)
    parts = [x]
    for _ in range(b.number(0, 3)):
        shape = list(x.shape)
        shape[axis] = b.one([shape[axis], 1, 3, 0, 5])
        parts.append(b.like(x, shape))
    b.node(op, parts[::-1], axis=axis if b.opset >= 11 else axis % x.rank)


@maker("Split")
def split(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    axis = b.axis(x.rank)
    length = x.shape[axis]
    cuts = sorted(b.number(0, length) for _ in range(b.number(0, 3)))
    sizes = list(np.diff([0, *cuts, length]))
    axis = axis if b.opset >= 11 else axis % x.rank
    if b.has(op, "split"):
        b.node(op, [x], len(sizes), axis=axis, split=sizes)
    elif b.has(op, "num_outputs") and b.chance(40):
        count = b.number(1, max(1, min(4, length)))
        b.node(op, [x], count, axis=axis, num_outputs=count)
    else:
        b.node(op, [x, b.integers(sizes)], len(sizes), axis=axis)


@maker("Slice")
def slice_(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    axes = axes_of(b, x.rank)
    starts, ends, steps = [], [], []
    for a in axes:
        extent = x.shape[a]
        starts.append(b.number(-extent - 1, extent + 1))
        ends.append(b.one([b.number(-extent - 1, extent + 1), 1 << 40, -(1 << 40)]))
        steps.append(b.one([1, 1, 2, -1, 3, -2]))
    if b.has(op, "starts"):
        if min(a for a in axes) < 0:
            raise Refused
        b.node(op, [x], starts=starts, ends=ends, axes=axes)
        return
    fixed = not b.chance(10)
    lists = [b.integers(values, fixed=fixed) for values in (starts, ends)]
    b.node(op, [x, *lists, b.integers(axes), b.integers(steps)] if b.chance(70) else [x, *lists])


@maker("Pad")
def pad(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    modes = ["constant", "reflect", "edge"] + (["wrap"] if b.opset >= 19 else [])
    mode = b.one(modes)
    pads = [b.one([0, 1, 2, 0, 5 if mode == "constant" else 1, -1]) for _ in range(2 * x.rank)]
    if b.has(op, "pads"):
        b.node(op, [x], mode=mode, pads=pads)
        return
    operands: list[Val | None] = [x, b.integers(pads)]
    if b.chance(50):
        operands.append(b.like(x, ()))
    elif b.opset >= 18 and b.chance(50):
        axes = axes_of(b, x.rank)
        operands = [x, b.integers(pads[: 2 * len(axes)]), None, b.integers(axes)]
    b.node(op, operands, mode=mode)


@maker("DepthToSpace SpaceToDepth")
def depth(b: Build, op: str) -> None:
    side = b.number(1, 3)
    rows, columns, channels = (b.one([2, 1, 3, 5]) for _ in range(3))
    kind = b.dtype([t for t in b.types(op) if t != "string"])
    mode = b.one([None, "DCR", "CRD"]) if b.has(op, "mode") else None
    if op == "DepthToSpace":
        shape = [b.one([1, 2]), channels * side * side, rows, columns]
    else:
        shape = [b.one([1, 2]), channels, rows * side, columns * side]
    b.node(op, [b.leaf(kind, shape)], blocksize=side, mode=mode)


@maker("Trilu")
def trilu(b: Build, op: str) -> None:
    x = any_value(b, op, 2)
    k = b.scalar(b.number(-4, 4)) if b.chance(60) else None
    b.node(op, [x, k] if k else [x], upper=b.one([None, 0, 1]))


@maker("Shape")
def shape_of(b: Build, op: str) -> None:
    x = any_value(b, op)
    given: dict[str, Any] = {}
    if b.opset >= 15:
        given = {n: b.number(-x.rank, x.rank) for n in ("start", "end") if b.chance(40)}
    b.node(op, [x], **given)


@maker("Size")
def size_of(b: Build, op: str) -> None:
    b.node(op, [any_value(b, op)])


@maker("ConstantOfShape")
def constant_of_shape(b: Build, op: str) -> None:
    from onnx import numpy_helper

    kinds = ["float", "int64", "bool", "double", "uint8", "float16"]
    data = b.leaf(b.dtype(kinds), [1])
    b.node(op, [b.integers(b.shape())], value=numpy_helper.from_array(data.array, "value"))


@maker("EyeLike")
def eye_like(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank == 2, lambda: b.shape(2, 2))
    b.node(op, [x], k=b.one([None, 1, -1, 3]))


@maker("CenterCropPad")
def center_crop_pad(b: Build, op: str) -> None:
    x = any_value(b, op, 1)
    axes = axes_of(b, x.rank)
    sizes = np.array([b.one([2, 1, 3, 7, 10]) for _ in axes], b.one([np.int64, np.int32]))
    b.node(op, [x, b.given(sizes, fixed=not b.chance(12))], axes=axes)


@maker("Range")
def range_(b: Build, op: str) -> None:
    kind = b.dtype([t for t in b.types(op) if t not in ("float16", "bfloat16")])
    fixed = not b.chance(30)
    step = b.one([1, 2, -1, -3])
    start, limit = b.number(-5, 5), b.number(-20, 20)
    numbers = [b.given(np.array(n, kind), fixed=fixed) for n in (start, limit, step)]
    b.node(op, numbers)


@maker("OneHot")
def one_hot(b: Build, op: str) -> None:
    kinds = [t for t in b.types(op) if "int" in t]
    depth = b.number(1, 7)
    low = -depth if b.opset >= 11 else 0
    indices = b.leaf(b.dtype(kinds), b.shape(0, 3), low=low, high=depth + 1)
    if indices.dtype.kind == "u":
        raise Refused
    amount = b.scalar(depth)
    values = b.leaf(b.dtype(["float", "int64", "double", "int32", "bool", "float16"]), [2])
    axis = b.number(-indices.rank - 1, indices.rank)
    b.node(op, [indices, amount, values], axis=axis)


@maker("ReverseSequence")
def reverse_sequence(b: Build, op: str) -> None:
    x = any_value(b, op, 2)
    batch = b.number(0, 1)
    count, length = x.shape[batch], x.shape[1 - batch]
    if prod(x.shape) == 0:
        raise Refused
    lengths = b.leaf(np.dtype(np.int64), [count], low=1, high=length)
    b.node(op, [x, lengths], batch_axis=batch, time_axis=1 - batch)
