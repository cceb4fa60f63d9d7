"""Parts of ONNX models: models with more outputs, and the nodes between given values."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from rutc.base.record import record
from rutc.errors import UserError
from rutc.importer.opsets.order import names_read, sort_nodes
from rutc.importer.opsets.scopes import name_outputs

Array = npt.NDArray[np.generic]

MOST_BYTES = (1 << 31) - 1
"""Messages of protobuf are no larger."""


@record
class NodeInfo:
    """One node of the main graph: what it reads (its bodies included) and what it computes."""

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.op} {self.name or self.outputs[0]!r}"


class ModelParts:
    """A model in memory, its external data included, and ways to take parts of it."""

    def __init__(self, path: Path) -> None:
        self._model = onnx.load(path)
        name_outputs(self._model.graph)
        sort_nodes(self._model)
        self._graph = self._model.graph
        self._constants = {tensor.name for tensor in self._graph.initializer}
        self._constants |= {tensor.values.name for tensor in self._graph.sparse_initializer}
        self.nodes = tuple(_info(index, node) for index, node in enumerate(self._graph.node))
        self._makers = {name: node.index for node in self.nodes for name in node.outputs}

    def write_with_outputs(
        self, path: Path, names: Iterable[str], values: Mapping[str, Array] | None = None
    ) -> None:
        """Writes the model with the named values as its outputs, typed by `values` where known.

        Nodes that none of them needs are left out.

        Raises:
            UserError: it is too large for one file.
        """
        wanted = list(names)
        nodes = self._needed(wanted)
        self._write(path, nodes, list(self._graph.input), wanted, values or {})

    def write_between(
        self, path: Path, nodes: Iterable[int], outputs: Iterable[str], values: Mapping[str, Array]
    ) -> tuple[str, ...]:
        """Writes a model of some nodes and returns its inputs' names.

        What the nodes read and none of them computes becomes an input, typed by `values`, or as
        the model declares a sequence or optional; constants that they read stay constants.

        Raises:
            UserError: it is too large for one file.
        """
        whole = set(nodes)
        whole |= {
            maker
            for index in whole
            for maker in self.producers(index)
            if self.nodes[maker].op == "Constant"
        }
        chosen = [self._graph.node[index] for index in sorted(whole)]
        made = {name for node in chosen for name in node.output}
        read = [name for node in chosen for name in names_read(node)]
        outside = [n for n in dict.fromkeys(read) if n not in made and n not in self._constants]
        declared = {i.name: i for i in self._graph.input if not i.type.HasField("tensor_type")}
        inputs = [declared[n] if n in declared else _typed(n, values) for n in outside]
        self._write(path, chosen, inputs, list(outputs), values)
        return tuple(outside)

    def constant(self, name: str) -> Array | None:
        """Returns a constant of the model; None if there is none of that name."""
        found = next((t for t in reversed(self._graph.initializer) if t.name == name), None)
        return None if found is None else numpy_helper.to_array(found)

    def producers(self, index: int) -> tuple[int, ...]:
        """Returns the nodes whose outputs a node reads."""
        found = (self._makers.get(name) for name in self.nodes[index].inputs)
        return tuple(dict.fromkeys(maker for maker in found if maker is not None))

    def _needed(self, wanted: Iterable[str]) -> list[NodeProto]:
        needed = set(wanted)
        nodes: list[NodeProto] = []
        for node in reversed(self._graph.node):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(names_read(node))
        return nodes[::-1]

    def _write(
        self,
        path: Path,
        nodes: Sequence[NodeProto],
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[str],
        values: Mapping[str, Array],
    ) -> None:
        """Writes a part. Raises UserError where it is too large for one file."""
        read = {name for node in nodes for name in names_read(node)} | set(outputs)
        graph = GraphProto(name="part")
        graph.node.extend(nodes)
        graph.input.extend(inputs)
        graph.output.extend(_typed(name, values) for name in outputs)
        graph.initializer.extend(t for t in self._graph.initializer if t.name in read)
        graph.sparse_initializer.extend(
            t for t in self._graph.sparse_initializer if t.values.name in read
        )
        model = ModelProto()
        model.CopyFrom(self._model)
        model.graph.CopyFrom(graph)
        if model.ByteSize() > MOST_BYTES:
            raise UserError(
                f"a part of the model takes {model.ByteSize()} bytes; one file of ONNX holds at "
                f"most {MOST_BYTES}"
            )
        path.write_bytes(model.SerializeToString())


def _typed(name: str, values: Mapping[str, Array]) -> ValueInfoProto:
    if name not in values:
        return ValueInfoProto(name=name)
    value = values[name]
    element = (
        onnx.TensorProto.STRING
        if value.dtype.kind == "O"
        else helper.np_dtype_to_tensor_dtype(value.dtype)
    )
    return helper.make_tensor_value_info(name, element, value.shape)


def _info(index: int, node: NodeProto) -> NodeInfo:
    outputs = tuple(name for name in node.output if name)
    return NodeInfo(index, node.name, node.op_type, tuple(dict.fromkeys(names_read(node))), outputs)
