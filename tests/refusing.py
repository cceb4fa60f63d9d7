"""A model that compiles for more sizes than it runs at."""

from pathlib import Path

import numpy as np
from onnx import helper

from tests.onnx_files import write_model


def rows_of_48(path: Path) -> Path:
    """Writes what runs at 48 to 95 rows `h`: a pool of 48 rows, of which one result is wanted."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[48, 1], strides=[48, 1]),
        helper.make_node("Reshape", ["p", "s"], ["y"]),
    ]
    weights = {"s": np.array([3, 5])}
    return write_model(path, nodes, {"x": [1, 3, "h", 5]}, {"y": None}, weights, opset=17)
