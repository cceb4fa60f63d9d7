"""A model of one convolution: 3x3 windows over pictures, as many channels out as in."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


def window_model(path: Path, shape: Sequence[int | str], w: np.ndarray) -> Path:
    """Writes y = conv(x) with x and y of `shape` and padding that keeps it; weights `w`."""
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], name="conv")
    graph = helper.make_graph([node], "windows", [x], [y], [numpy_helper.from_array(w, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(made, path)
    return path
