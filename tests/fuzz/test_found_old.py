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
