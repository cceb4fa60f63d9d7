"""Models of old opsets that the generator found, which once failed: by name what was wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.test_found import gives


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("shape", ["0, 7", "3, 0", "2, 0, 5"])
def test_softmaxes_of_flattened_rows_without_elements(op: str, shape: str) -> None:
    x = np.zeros([int(e) for e in shape.split(", ")], np.float32)
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ y = {op} <axis = 0> (x) }}"
    gives(text, [x], opset=11, x=x)


@pytest.mark.parametrize("element", ["float16", "float", "double"])
def test_paddings_of_old_opsets_are_of_the_type_of_what_they_pad(element: str) -> None:
    kind = {"float16": np.float16, "float": np.float32, "double": np.float64}[element]
    x = np.array([1, 2, 3], kind)
    text = f"""
    g ({element}[3] x) => ({element}[6] y) {{ y = Pad <pads = [1, 2], value = 1.5> (x) }}
    """
    gives(text, [np.array([1.5, 1, 2, 3, 1.5, 1.5], kind)], opset=10, x=x)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_a_softmax_of_rows_that_a_branch_reads(op: str) -> None:
    text = f"""
    g (bool[1] c, float[2, 1, 3] x) => (float[2, 1, 3] z) {{
        y = {op} <axis = 1> (x)
        d = Squeeze (c)
        z = If (d) <then_branch = t () => (float[2, 1, 3] a) {{ a = Identity (y) }},
            else_branch = e () => (float[2, 1, 3] b) {{ b = {op} <axis = 1> (y) }}>
    }}
    """
    x = np.array([[[0, 200, 0]], [[-200, 0, -400]]], np.float32)
    low = x - x.max(-1, keepdims=True)
    want = low if op == "LogSoftmax" else (low == 0).astype(np.float32)
    gives(text, [want], opset=11, c=np.array([True]), x=x)


def test_bounds_of_an_old_clip_in_a_branch() -> None:
    text = """
    g (bool[1] c, double[3] x) => (double[3] z) {
        d = Squeeze (c)
        z = If (d) <then_branch = t () => (double[3] a) { a = Clip <min = -1.5> (x) },
            else_branch = e () => (double[3] b) { b = Pad <pads = [0, 0]> (x) }>
    }
    """
    x = np.array([-4, 2, 1])
    gives(text, [np.array([-1.5, 2, 1])], opset=10, c=np.array([True]), x=x.astype(float))
    gives(text, [x.astype(float)], opset=10, c=np.array([False]), x=x.astype(float))
