"""Operators of com.microsoft on whole tensors: ranges, pads, inverses, blocked n-grams."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -1, 2])
def test_trilu(upper, k, check, node, rng):
    constants = {} if k is None else {"k": np.array(k)}
    inputs = {"x": rng.standard_normal((2, 4, 5)).astype("f4")}
    check(node("Trilu", ["x", *constants], upper=upper), inputs, constants)


def test_gather_nd(check, node, rng):
    inputs = {"x": rng.standard_normal((3, 4, 5)).astype("f4")}
    check(node("GatherND", ["x", "i"]), inputs, {"i": np.array([[0, 1], [2, 3]])})


def test_expand_dims(check, node, rng):
    for axis in (0, 1, -1):
        inputs = {"x": rng.standard_normal((3, 4)).astype("f4")}
        check(node("ExpandDims", ["x", "a"]), inputs, {"a": np.array(axis, np.int32)})


@pytest.mark.parametrize("step", [None, 2, -1])
def test_range(step, check, node):
    constants = {"a": np.array(7 if step == -1 else 1), "b": np.array(1 if step == -1 else 8)}
    if step is not None:
        constants["c"] = np.array(step)
    check(node("Range", list(constants)), {}, constants)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode, check, node, rng):
    inputs = {"x": rng.standard_normal((3, 4)).astype("f4")}
    constants = {"p": np.array([[1, 0, 2, 1]]), "v": np.array([1.5], "f4")}
    names = ["x", "p"] + (["v"] if mode == "constant" else [])
    used = {n: constants[n] for n in names[1:]}
    check(node("Pad", names, mode=mode), inputs, used)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, check, node, rng):
    inputs = {
        "x": rng.standard_normal((1, 2, 4, 5)).astype("f4"),
        "g": rng.uniform(-1.2, 1.2, (1, 3, 3, 2)).astype("f4"),
    }
    check(node("GridSample", ["x", "g"], mode=mode, padding_mode="border"), inputs)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 5, 5)])
def test_inverse(shape, check, node, rng):
    x = rng.standard_normal(shape).astype("f4")
    x[..., 0, 0] = 0 if shape[-1] > 1 else 2
    check(node("Inverse", ["x"]), {"x": x})


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_blocked_n_grams(size, check, node, rng):
    ids = rng.integers(0, 3, (2, 8))
    inputs = {"i": ids, "s": rng.standard_normal((2, 4)).astype("f4")}
    check(node("NGramRepeatBlock", ["i", "s"], ngram_size=size), inputs)
