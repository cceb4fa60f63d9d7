"""Random numbers, whose types and shapes alone are known, constants, and what makes tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.fuzz.data import dtype_named
from tests.fuzz.graph import Build, Refused, maker
from tests.fuzz.oracles import TRAINING


def _element(b: Build, op: str) -> dict[str, int]:
    kind = dtype_named(b.one(["float", "double", "float16"]))
    return {"dtype": int(helper.np_dtype_to_tensor_dtype(kind))} if b.chance(50) else {}


@maker("RandomNormal RandomUniform")
def drawn(b: Build, op: str) -> None:
    b.node(op, [], shape=list(b.shape(1)), **_element(b, op))


@maker("RandomNormalLike RandomUniformLike")
def drawn_like(b: Build, op: str) -> None:
    b.node(op, [b.pick(["float", "double"])], **_element(b, op))


@maker("Bernoulli")
def bernoulli(b: Build, op: str) -> None:
    x = b.leaf(b.dtype(["float", "double"]), b.shape(), low=0, high=1)
    b.node(op, [x])


@maker("Multinomial")
def multinomial(b: Build, op: str) -> None:
    x = b.leaf(np.dtype(np.float32), [b.one([1, 3]), b.one([2, 1, 5])], low=-3, high=0)
    b.node(op, [x], sample_size=b.one([1, 5]))


@maker("Constant")
def constant(b: Build, op: str) -> None:
    kind = b.dtype(["float", "int64", "double", "bool", "string", "float16", "uint8"])
    data = b.leaf(kind, b.shape(0, 2), fixed=True)
    if b.opset >= 12 and b.chance(40):
        numbers: dict[str, Any] = {"value_floats": [0.5, -1.0], "value_ints": [3, -1]}
        numbers |= {"value_float": 2.5, "value_int": 7, "value_string": "ab"}
        name = b.one(list(numbers))
        b.node(op, [], **{name: numbers[name]})
    else:
        b.node(op, [], value=numpy_helper.from_array(data.array, "value"))


@maker("MelWeightMatrix")
def mel(b: Build, op: str) -> None:
    numbers = [b.number(1, 8), b.one([8, 16, 33]), b.one([8000, 16000])]
    operands = [b.given(np.array(n, np.int64), fixed=b.chance(80)) for n in numbers]
    edges = [b.one([0.0, 20.0]), b.one([4000.0, 3000.0])]
    b.node(op, [*operands, *(b.given(np.array(e, np.float32), fixed=True) for e in edges)])


@maker("AffineGrid")
def affine_grid(b: Build, op: str) -> None:
    axes = b.one([2, 3])
    size = [b.one([1, 2]), b.one([1, 3]), *(b.one([2, 3, 5]) for _ in range(axes))]
    theta = b.leaf(b.dtype(["float", "double"]), [size[0], axes, axes + 1], low=-2, high=2)
    b.node(op, [theta, b.integers(size)], align_corners=b.number(0, 1))


@maker("Adam Adagrad Momentum")
def training(b: Build, op: str) -> None:
    if b.opset < 15:
        raise Refused
    kind = b.dtype(["float", "double"])
    shape = b.shape(0, 2)
    count = {"Adam": 4, "Adagrad": 3, "Momentum": 3}[op]
    state = [b.leaf(kind, shape, low=0, high=2) for _ in range(count)]
    rate = b.given(np.array(0.1, np.float32))
    step = b.given(np.array(b.number(0, 5), np.int64))
    given = {
        "Adam": {"alpha": 0.9, "beta": 0.99, "epsilon": 1e-3, "norm_coefficient": 0.01},
        "Adagrad": {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.01},
        "Momentum": {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01},
    }[op]
    attributes: dict[str, Any] = dict(given)
    if op == "Momentum":
        attributes["mode"] = b.one(["standard", "nesterov"])
    b.node(op, [rate, step, *state], count - 1, TRAINING, **attributes)
