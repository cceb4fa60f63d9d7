"""A model that compiles for more sizes than it runs at."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def rows_of_48(path: Path) -> Path:
    """Writes what runs at 48 to 95 rows `h`: a pool of 48 rows, of which one result is wanted."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[48, 1], strides=[48, 1]),
        helper.make_node("Reshape", ["p", "s"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    shape = numpy_helper.from_array(np.array([3, 5]), "s")
    graph = helper.make_graph(nodes, "g", [x], [y], [shape])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path
