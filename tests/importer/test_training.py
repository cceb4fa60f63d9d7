"""Optimisers (ai.onnx.preview.training), against ONNX's reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from rutc.errors import UserError

DOMAIN = "ai.onnx.preview.training"
STATES = {"Adagrad": "h", "Adam": "vh", "Momentum": "v"}
OPTIONS = {
    "Adagrad": {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-4},
    "Adam": {"alpha": 0.95, "beta": 0.85, "norm_coefficient": 0.1, "norm_coefficient_post": 0.2},
    "Momentum": {"alpha": 0.95, "beta": 0.8, "norm_coefficient": 0.01, "mode": "standard"},
}
NESTEROV = {**OPTIONS["Momentum"], "mode": "nesterov"}
CASES = [*OPTIONS.items(), ("Momentum", NESTEROV)]


def inputs_of(op, count, steps, rng):
    arrays = {"r": np.float32(0.1), "t": np.array(steps, np.int64)}
    for kind in "xg" + STATES[op]:
        for i in range(count):
            values = rng.standard_normal(3 + i).astype("f4")
            arrays[f"{kind}{i}"] = np.abs(values) if kind == "h" else values
    return arrays


@pytest.mark.parametrize(("op", "options"), CASES)
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_optimisers(op, options, steps, count, check, make_node, make_model, rng):
    inputs = inputs_of(op, count, steps, rng)
    outputs = [f"new_{kind}{i}" for kind in "x" + STATES[op] for i in range(count)]
    step = make_node(op, list(inputs), outputs, domain=DOMAIN, **options)
    model = make_model([step], inputs, outputs, {})
    expected = [e.astype("f4") for e in ReferenceEvaluator(model).run(outputs, inputs)]
    check(step, inputs, outputs=outputs, expected=expected)


def test_a_missing_state_is_an_error(check, make_node, rng):
    inputs = inputs_of("Adagrad", 1, 1, rng)
    del inputs["h0"]
    step = make_node("Adagrad", list(inputs), ["y"], domain=DOMAIN)
    with pytest.raises(UserError, match="expected a multiple of 3"):
        check(step, inputs, expected=[])
