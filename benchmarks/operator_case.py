"""A model of one node."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
OPSET = 23


@dataclass(frozen=True, slots=True)
class Fixed:
    """An operand that is a constant of the model."""

    array: Array


Operand = Array | Fixed | None


@dataclass(frozen=True, slots=True)
class Case:
    """One node: its operands in order (None is left out), attributes and number of outputs."""

    name: str
    operator: str
    operands: Sequence[Operand]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def inputs(self) -> dict[str, Array]:
        """Returns the values of the model's inputs."""
        return {f"x{i}": x for i, x in enumerate(self.operands) if isinstance(x, np.ndarray)}

    @property
    def read_bytes(self) -> int:
        """Bytes of the operands, constant ones included."""
        arrays = [x.array if isinstance(x, Fixed) else x for x in self.operands if x is not None]
        return sum(x.nbytes for x in arrays)

    def build(self) -> onnx.ModelProto:
        """Returns the model."""
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.operands)]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.operator, names, outputs, **self.attributes)
        constants = [
            numpy_helper.from_array(x.array, name)
            for name, x in zip(names, self.operands, strict=True)
            if isinstance(x, Fixed)
        ]
        ports = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in self.inputs().items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "operator", ports, results, constants)
        imports = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)
