"""Reductions, normalisations, softmax."""

from __future__ import annotations

import numpy as np
import pytest

REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("axes", "keepdims"), [([1], 1), ([0, -1], 0), ([], 1), ([2], 0)])
def test_reduce(op, axes, keepdims, check, make_node, rng):
    x = {"x": rng.uniform(0.5, 2, (2, 3, 5)).astype("f4")}
    constants = {"axes": np.array(axes, np.int64)}
    check(make_node(op, ["x", "axes"], keepdims=keepdims), x, constants)


def test_reduce_over_nothing_and_units(check, make_node, rng):
    x = {"x": rng.standard_normal((2, 1, 3)).astype("f4")}
    constants = {"axes": np.array([1], np.int64)}
    check(make_node("ReduceMean", ["x", "axes"]), x, constants)
    none = {"axes": np.array([], np.int64)}
    check(make_node("ReduceSum", ["x", "axes"], noop_with_empty_axes=1), x, none)
    empty = {"x": np.zeros((2, 0, 3), "f4")}
    check(make_node("ReduceSum", ["x", "axes"], keepdims=0), empty, constants)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_extremes(op, axis, last, check, make_node, rng):
    x = {"x": rng.integers(0, 3, (3, 4, 5)).astype("f4")}
    check(make_node(op, ["x"], axis=axis, select_last_index=last, keepdims=0), x)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(op, axis, check, make_node, rng):
    check(make_node(op, ["x"], axis=axis), {"x": 30 * rng.standard_normal((2, 3, 5)).astype("f4")})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_old_softmax_flattens(op, check, make_node, rng):
    x = {"x": rng.standard_normal((2, 3, 5)).astype("f4")}
    check(make_node(op, ["x"], axis=1), x, opset=11)


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization(axis, check, make_node, rng):
    x = rng.standard_normal((2, 3, 5)).astype("f4")
    shape = x.shape[axis:]
    inputs = {"x": x, "g": rng.standard_normal(shape).astype("f4")}
    inputs["b"] = rng.standard_normal(shape).astype("f4")
    check(make_node("LayerNormalization", ["x", "g", "b"], axis=axis), inputs)
    check(make_node("LayerNormalization", ["x", "g"], axis=axis), {n: inputs[n] for n in "xg"})


def test_other_normalizations(check, make_node, rng):
    x = rng.standard_normal((2, 4, 3, 5)).astype("f4")
    g, c = (rng.standard_normal(4).astype("f4") for _ in range(2))
    inputs = {"x": x, "g": g, "b": c}
    check(make_node("InstanceNormalization", ["x", "g", "b"]), inputs)
    check(make_node("GroupNormalization", ["x", "g", "b"], num_groups=2), inputs)
    check(make_node("LpNormalization", ["x"], axis=1, p=2), {"x": x})
    check(make_node("MeanVarianceNormalization", ["x"]), {"x": x})
    inputs |= {"m": g, "v": np.abs(c)}
    check(make_node("BatchNormalization", ["x", "g", "b", "m", "v"], epsilon=1e-3), inputs)
