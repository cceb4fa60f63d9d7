"""Attention with masks, windows, caches and shared heads, against ONNX's reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from rutc.errors import UserError

BATCH, HEADS, SHARED, QUERIES, KEYS, SIZE, WIDE = 2, 4, 2, 3, 5, 4, 6


@pytest.fixture
def operands(rng):
    """Queries, keys and values with twice as many query heads as key heads."""
    shapes = {
        "q": (BATCH, HEADS, QUERIES, SIZE),
        "k": (BATCH, SHARED, KEYS, SIZE),
        "v": (BATCH, SHARED, KEYS, WIDE),
    }
    return {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}


@pytest.fixture
def against_reference(check, make_model):
    """`against_reference(step, inputs, outputs)`: compares with onnx.reference."""

    def run(step, inputs, outputs=("y",)):
        model = make_model([step], inputs, outputs, {}, 25)
        expected = ReferenceEvaluator(model).run(list(outputs), inputs)
        return check(step, inputs, outputs=outputs, opset=25, expected=expected)

    return run


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    "mask", ["none", "float", "bool", "heads", "short", "one key", "all masked"]
)
def test_masks(mask, causal, operands, against_reference, make_node, rng):
    float_mask = rng.standard_normal((QUERIES, KEYS)).astype("f4")
    masks = {
        "float": float_mask,
        "bool": float_mask > 0,
        "heads": rng.standard_normal((BATCH, 1, QUERIES, KEYS)).astype("f4"),
        "short": float_mask[:, :3],
        "one key": float_mask[:, :1],
        "all masked": np.where(np.arange(QUERIES)[:, None] == 1, False, float_mask > -9),
    }
    names = ["q", "k", "v"]
    if mask != "none":
        operands["m"] = masks[mask]
        names.append("m")
    against_reference(make_node("Attention", names, is_causal=causal), operands)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("keys", [3, KEYS])
def test_masks_of_whole_numbers(keys, causal, operands, check, make_model, make_node, rng):
    mask = rng.integers(-3, 3, (QUERIES, keys))
    step = make_node("Attention", ["q", "k", "v", "m"], is_causal=causal)
    floats = {**operands, "m": mask.astype("f4")}
    expected = ReferenceEvaluator(make_model([step], floats, ["y"], {}, 25)).run(["y"], floats)
    check(step, {**operands, "m": mask}, opset=25, expected=expected)


@pytest.mark.parametrize("operand", ["k", "v"])
def test_batches_that_differ_are_refused(operand, operands, check, make_node):
    operands[operand] = np.concatenate([operands[operand]] * 2)
    with pytest.raises(UserError, match=r"do not broadcast: \[4\] to \[2\]"):
        check(make_node("Attention", ["q", "k", "v"]), operands, opset=25)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("windows", [(-1, -1), (1, -1), (-1, 0), (1, 1), (0, 0)])
@pytest.mark.parametrize("cache", ["none", "past", "lengths"])
def test_windows_and_caches(windows, causal, cache, operands, against_reference, make_node, rng):
    names = ["q", "k", "v"]
    outputs = ["y"]
    if cache == "past":
        operands["pk"] = rng.standard_normal((BATCH, SHARED, 2, SIZE)).astype("f4")
        operands["pv"] = rng.standard_normal((BATCH, SHARED, 2, WIDE)).astype("f4")
        names += ["", "pk", "pv"]
        outputs += ["key", "value"]
    if cache == "lengths":
        operands["l"] = np.array([5, 2], np.int64)
        names += ["", "", "", "l"]
    left, right = windows
    step = make_node(
        "Attention",
        names,
        outputs,
        is_causal=causal,
        left_window_size=left,
        right_window_size=right,
    )
    against_reference(step, operands, outputs)


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_scores_are_shown(mode, operands, against_reference, make_node, rng):
    operands["m"] = rng.standard_normal((QUERIES, KEYS)).astype("f4")
    step = make_node(
        "Attention",
        ["q", "k", "v", "m"],
        ["y", "", "", "s"],
        qk_matmul_output_mode=mode,
        softcap=1.5,
        scale=0.7,
    )
    against_reference(step, operands, ("y", "s"))


@pytest.mark.parametrize("kind", ["f2", "f8"])
def test_flat_operands_and_types(kind, against_reference, make_node, rng):
    inputs = {
        "q": rng.standard_normal((BATCH, QUERIES, HEADS * SIZE)).astype(kind),
        "k": rng.standard_normal((BATCH, KEYS, SHARED * SIZE)).astype(kind),
        "v": rng.standard_normal((BATCH, KEYS, SHARED * WIDE)).astype(kind),
    }
    step = make_node("Attention", list(inputs), q_num_heads=HEADS, kv_num_heads=SHARED)
    against_reference(step, inputs)
