"""A model of one convolution: 3x3 windows over pictures, as many channels out as in."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import helper

from tests.onnx_files import write_model


def window_model(path: Path, shape: Sequence[int | str], w: np.ndarray) -> Path:
    """Writes y = conv(x) with x and y of `shape` and padding that keeps it; weights `w`."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], name="conv")
    return write_model(path, [node], {"x": shape}, {"y": shape}, {"w": w})
