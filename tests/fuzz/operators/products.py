"""Matrix products, convolutions, recurrent networks and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.data import is_integer
from tests.fuzz.graph import Build, Refused, Val, maker
from tests.fuzz.operators.windows import window

LENGTHS = (2, 3, 1, 5, 8, 17, 0, 4, 31)


def length(b: Build) -> int:
    """An extent of a matrix."""
    return int(b.one(LENGTHS))


@maker("MatMul")
def matmul(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank >= 1, lambda: b.shape(1))
    if b.chance(15):
        b.node(op, [x, b.like(x, [x.shape[-1]])])
        return
    batch = list(x.shape[:-2])
    batch = [1 if b.chance(30) else e for e in batch][b.number(0, len(batch)) :]
    columns = length(b)
    if x.rank >= 2 and b.chance(20):
        b.node(op, [b.like(x, [*batch, columns, x.shape[-2]]), x])
    else:
        b.node(op, [x, b.like(x, [*batch, x.shape[-1], columns])])


@maker("Gemm")
def gemm(b: Build, op: str) -> None:
    x = b.pick(b.types(op), lambda v: v.rank == 2, lambda: b.shape(2, 2))
    left, right = b.number(0, 1), b.number(0, 1)
    rows, inner = x.shape[::-1] if left else x.shape
    columns = length(b)
    w = b.like(x, [columns, inner] if right else [inner, columns])
    shapes = [[rows, columns], [columns], [1, columns], [rows, 1], [], [1]]
    bias = [b.like(x, b.one(shapes))] if b.chance(70) or b.opset < 11 else []
    named = () if is_integer(x.dtype) else ("alpha", "beta")
    scales: dict[str, Any] = {n: b.one([0.5, 2.0, 0.0]) for n in named if b.chance(30)}
    b.node(op, [x, w, *bias], transA=left, transB=right, **scales)


EQUATIONS = (
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij->ji",
    "ij->",
    "ii->i",
    "ii",
    "i,j->ij",
    "bhqd,bhkd->bhqk",
    "...ij,...jk->...ik",
    "ij,ij->i",
    "abc,cd,de->abe",
    "ijk->kj",
    "bi,bi->b",
    "ij,kj->ik",
    "i,i->",
    "ab,bc,cd->da",
)


@maker("Einsum")
def einsum(b: Build, op: str) -> None:
    equation = b.one(EQUATIONS)
    extents: dict[str, int] = {}
    kind = b.dtype(["float", "double", "int64", "float16", "int32"])
    operands: list[Val] = []
    for term in equation.split("->")[0].split(","):
        shape = [3] if "..." in term else []
        for letter in term.replace("...", ""):
            extents.setdefault(letter, b.one([2, 3, 1, 5, 8]))
            shape.append(extents[letter])
        operands.append(b.leaf(kind, shape))
    b.node(op, operands, equation=equation)


@maker("Conv")
def conv(b: Build, op: str) -> None:
    _convolve(b, op, b.dtype(b.types(op)))


def _convolve(b: Build, op: str, kind: np.dtype) -> None:
    spatial = b.number(1, 3) if b.chance(40) else 2
    attrs, extents = window(b, spatial)
    groups = b.one([1, 1, 2, 3])
    ins, outs = b.one([1, 2, 3, 8]) * groups, b.one([1, 2, 5, 16]) * groups
    if b.chance(15):
        groups = ins
        outs = ins * b.one([1, 2])
    x = _image(b, kind, [b.one([1, 2, 0]), ins, *extents])
    w = b.leaf(kind, [outs, ins // groups, *attrs["kernel_shape"]])
    bias = [b.leaf(kind, [outs])] if b.chance(50) else []
    b.node(op, [x, w, *bias], group=groups, **attrs)


def _image(b: Build, kind: np.dtype, shape: list[int]) -> Val:
    return b.leaf(kind, shape)


@maker("ConvTranspose")
def conv_transpose(b: Build, op: str) -> None:
    spatial = b.number(1, 2)
    kind = b.dtype(b.types(op))
    kernel = [b.one([1, 2, 3]) for _ in range(spatial)]
    strides = [b.one([1, 2, 3]) for _ in range(spatial)]
    dilations = [b.one([1, 1, 2]) for _ in range(spatial)]
    groups = b.one([1, 1, 2])
    ins, outs = b.one([1, 2, 3]) * groups, b.one([1, 2, 5])
    x = b.leaf(kind, [b.one([1, 2]), ins, *(b.one([2, 1, 3, 5, 7]) for _ in range(spatial))])
    w = b.leaf(kind, [ins, outs, *kernel])
    bias = [b.leaf(kind, [outs * groups])] if b.chance(50) else []
    given: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
    if b.chance(30):
        # ONNX Runtime gives less than extent times stride where the kernel is smaller.
        covered = all(k >= s for k, s in zip(kernel, strides, strict=True))
        given["auto_pad"] = b.one(["VALID", *(["SAME_UPPER", "SAME_LOWER"] if covered else [])])
    elif b.chance(60):
        given["pads"] = [b.one([0, 1]) for _ in range(2 * spatial)]
        given["output_padding"] = [b.number(0, s - 1) for s in strides]
    b.node(op, [x, w, *bias], **given)


@maker("RNN GRU LSTM")
def recurrent(b: Build, op: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    kind = b.dtype(b.types(op))
    direction = b.one(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    steps, batch, width, hidden = (
        b.one([2, 1, 5]),
        b.one([1, 2, 3]),
        b.one([3, 1, 8]),
        b.number(1, 5),
    )
    x = b.leaf(kind, [steps, batch, width])
    w = b.leaf(kind, [ways, gates * hidden, width])
    r = b.leaf(kind, [ways, gates * hidden, hidden])
    operands: list[Val | None] = [x, w, r]
    operands.append(b.leaf(kind, [ways, 2 * gates * hidden]) if b.chance(50) else None)
    lengths = b.leaf(np.dtype(np.int32), [batch], low=0, high=steps) if b.chance(25) else None
    operands.append(lengths)
    operands.append(b.leaf(kind, [ways, batch, hidden]) if b.chance(40) else None)
    given: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        operands.append(b.leaf(kind, [ways, batch, hidden]) if b.chance(40) else None)
        operands.append(b.leaf(kind, [ways, 3 * hidden]) if b.chance(30) else None)
    if op == "GRU":
        given["linear_before_reset"] = b.number(0, 1)
    while operands[-1] is None:
        operands.pop()
    b.node(op, operands, b.number(1, 3 if op == "LSTM" else 2), **given)


@maker("Attention")
def attention(b: Build, op: str) -> None:
    heads, shared, size = b.one([1, 2, 4]), b.one([1, 1, 2]), b.one([2, 4, 8, 5])
    batch, queries, keys = b.one([1, 2]), b.one([3, 1, 5]), b.one([3, 1, 4, 7])
    kind = b.dtype(["float", "float16", "double"])
    q = b.leaf(kind, [batch, heads * shared, queries, size])
    k = b.leaf(kind, [batch, heads, keys, size])
    v = b.leaf(kind, [batch, heads, keys, b.one([size, 3])])
    mask = []
    if b.chance(40):
        mask = [b.leaf(b.one([np.dtype(bool), kind]), [queries, keys])]
    scale = b.one([None, 0.5])
    causal = b.one([None, 0, 1])
    b.node(op, [q, k, v, *mask], is_causal=causal, scale=scale, softcap=b.one([None, 2.0]))


@maker("MatMulInteger")
def matmul_integer(b: Build, op: str) -> None:
    rows, inner, columns = length(b), length(b), length(b)
    kinds = ["uint8", "int8"]
    x = b.leaf(b.dtype(kinds), [rows, inner])
    w = b.leaf(b.dtype(kinds), [inner, columns])
    zeros = [b.like(x, ()), b.like(w, b.one([(), (columns,)]))] if b.chance(60) else []
    b.node(op, [x, w, *zeros])


@maker("ConvInteger")
def conv_integer(b: Build, op: str) -> None:
    attrs, extents = window(b, 2)
    ins, outs = b.one([1, 2, 3]), b.one([1, 2, 5])
    x = b.leaf(np.dtype(np.uint8), [b.one([1, 2]), ins, *extents])
    w = b.leaf(b.one([np.dtype(np.uint8), np.dtype(np.int8)]), [outs, ins, *attrs["kernel_shape"]])
    zeros = [b.like(x, ()), b.like(w, ())] if b.chance(60) else []
    b.node(op, [x, w, *zeros], **attrs)


@maker("QLinearMatMul")
def qlinear_matmul(b: Build, op: str) -> None:
    rows, inner, columns = length(b), length(b), length(b)
    if not rows * inner * columns:
        raise Refused
    kind = np.dtype(b.one([np.uint8, np.int8]))
    parts: list[Val] = []
    for shape in ([rows, inner], [inner, columns]):
        parts += [b.leaf(kind, shape), *_scale(b, kind)]
    b.node(op, [*parts, *_scale(b, kind)])


def _scale(b: Build, kind: np.dtype) -> list[Val]:
    scale = b.given(np.array(b.one([0.5, 0.25, 1.0, 0.0123]), np.float32))
    return [scale, b.leaf(kind, ())]


@maker("QLinearConv")
def qlinear_conv(b: Build, op: str) -> None:
    attrs, extents = window(b, 2)
    kind = np.dtype(b.one([np.uint8, np.int8]))
    ins, outs = b.one([1, 2, 3]), b.one([1, 2, 5])
    x = b.leaf(kind, [b.one([1, 2]), ins, *extents])
    w = b.leaf(kind, [outs, ins, *attrs["kernel_shape"]])
    bias = [b.leaf(np.dtype(np.int32), [outs])] if b.chance(40) else []
    operands = [x, *_scale(b, kind), w, *_scale(b, kind), *_scale(b, kind), *bias]
    b.node(op, operands, **attrs)
