"""Sequences of fixed length, and classical models of ai.onnx.ml."""

from __future__ import annotations

import numpy as np

from tests.fuzz.graph import Build, Refused, Val, maker

ML = "ai.onnx.ml"


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
        place = b.given(np.array(b.number(-length, length - 1), np.int64), fixed=True)
        b.node("SequenceAt", [s, place])


@maker("ConcatFromSequence")
def concat_from(b: Build, op: str) -> None:
    s, x, _ = _construct(b)
    b.node(op, [s], axis=b.number(0, x.rank - 1), new_axis=b.one([None, 1]))


@maker("SequenceInsert SequenceErase")
def edit(b: Build, op: str) -> None:
    s, x, length = _construct(b)
    place = [b.given(np.array(b.number(-length, length - 1), np.int64), fixed=True)]
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
    place = b.given(np.array(0, np.int64), fixed=True)
    b.node("SequenceAt", [s, place])


@maker("Scaler Normalizer Binarizer")
def scaling(b: Build, op: str) -> None:
    if b.opset < 15:
        raise Refused
    rows, columns = b.one([1, 3, 7]), b.one([2, 1, 5])
    x = b.leaf(np.dtype(np.float32), [rows, columns])
    if op == "Scaler":
        numbers = {
            n: [b.one([0.5, 1.0, -2.0]) for _ in range(columns)] for n in ("offset", "scale")
        }
        b.node(op, [x], domain=ML, **numbers)
    elif op == "Normalizer":
        b.node(op, [x], domain=ML, norm=b.one(["MAX", "L1", "L2"]))
    else:
        b.node(op, [x], domain=ML, threshold=b.one([0.0, 0.5, -1.0]))


@maker("LinearRegressor")
def linear(b: Build, op: str) -> None:
    if b.opset < 15:
        raise Refused
    columns, targets = b.one([2, 1, 5]), b.one([1, 3])
    x = b.leaf(np.dtype(np.float32), [b.one([1, 3, 7]), columns])
    weights = b.leaf(np.dtype(np.float32), [columns * targets], low=-2, high=2, fixed=True)
    b.node(
        op,
        [x],
        domain=ML,
        coefficients=weights.array.tolist(),
        intercepts=[0.5] * targets,
        targets=targets,
    )


@maker("ArrayFeatureExtractor")
def features(b: Build, op: str) -> None:
    if b.opset < 15:
        raise Refused
    x = b.leaf(np.dtype(b.one([np.float32, np.int64])), [b.one([1, 3]), 5])
    b.node(op, [x, b.leaf(np.dtype(np.int64), [b.number(1, 4)], low=0, high=4)], domain=ML)


@maker("LabelEncoder")
def labels(b: Build, op: str) -> None:
    if b.opset < 15:
        raise Refused
    x = b.leaf(np.dtype(np.int64), b.shape(1, 2), low=-2, high=4)
    b.node(
        op,
        [x],
        domain=ML,
        keys_int64s=[0, 1, 3],
        values_floats=[0.5, -1.0, 7.0],
        default_float=b.one([-0.0, 2.0]),
    )
