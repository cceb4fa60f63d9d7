"""Linear attention and causal convolution: the standard's and ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from rutc.tensor_ir import Scan

BATCH, HEADS, SHARED, SIZE, WIDE = 2, 4, 2, 3, 5
RULES = ["linear", "gated", "delta", "gated_delta"]


@pytest.fixture
def agree(check, make_node, make_model):
    """`agree(op, inputs, outputs, **attributes)`: both domains; the standard's graph."""

    def run(op, inputs, names, outputs, **attributes):
        step = make_node(op, names, outputs, **attributes)
        model = make_model([step], inputs, outputs, {}, 27)
        expected = ReferenceEvaluator(model).run(list(outputs), inputs)
        graph = check(step, inputs, outputs=outputs, opset=27, expected=expected)
        own = make_node(op, names, outputs, domain="com.microsoft", **attributes)
        check(own, inputs, outputs=outputs)
        return graph

    return run


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_linear_attention(rule, steps, past, each, agree, rng):
    def normal(*shape):
        return rng.standard_normal(shape).astype("f4")

    inputs = {
        "q": normal(BATCH, steps, HEADS * SIZE),
        "k": normal(BATCH, steps, SHARED * SIZE) / 2,
        "v": normal(BATCH, steps, SHARED * WIDE),
    }
    names = ["q", "k", "v", "", "", ""]
    if past:
        inputs["s"], names[3] = normal(BATCH, SHARED, SIZE, WIDE), "s"
    if rule.startswith("gated"):
        width = SHARED * SIZE if each else SHARED
        inputs["g"], names[4] = -np.abs(normal(BATCH, steps, width)), "g"
    if rule.endswith("delta"):
        inputs["b"], names[5] = np.abs(normal(BATCH, steps, SHARED)), "b"
    options = {"q_num_heads": HEADS, "kv_num_heads": SHARED, "update_rule": rule}
    if each:
        options["scale"] = 0.3
    graph = agree("LinearAttention", inputs, names, ("y", "state"), **options)
    assert any(isinstance(n, Scan) for n in graph.nodes) == (steps > 1)


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(taps, length, past, activation, agree, rng):
    def normal(*shape):
        return rng.standard_normal(shape).astype("f4")

    inputs = {"x": normal(BATCH, 4, length), "w": normal(4, 1, taps)}
    names = ["x", "w", "", ""]
    if activation != "none":
        inputs["b"], names[2] = normal(4), "b"
    if past:
        inputs["s"], names[3] = normal(BATCH, 4, taps - 1), "s"
    agree("CausalConvWithState", inputs, names, ("y", "state"), activation=activation)
