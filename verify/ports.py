"""What a model takes and gives, before anything is compiled of it."""

from __future__ import annotations

from pathlib import Path

from rutc.runtime import InferenceSession
from rutc.runtime.ports import Ports
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.graph import Data
from rutc.verify.inputs import InputSpec, spec


def ports_of(graph: Graph) -> Ports:
    """Returns the inputs and outputs of an imported model as those of its artifact will be."""

    def port(
        name: str, dtype: DType, axes: tuple[str, ...], fixed: Data | None = None
    ) -> dict[str, object]:
        extents = [graph.extents[axis] for axis in axes]
        shape = [e.value if e.is_const else str(e) for e in extents]
        about: dict[str, object] = {"name": name, "dtype": dtype.stored_name, "shape": shape}
        # Strings have no bytes to tell; no artifact is made that holds an input to them.
        if fixed is not None and not dtype.is_opaque:
            about["fixed"] = fixed.array.tobytes().hex()
        return about

    manifest: dict[str, object] = {
        "inputs": [port(n.name, n.out.dtype, n.axes, n.fixed) for n in graph.inputs],
        "outputs": [port(o.name, graph.values[o.value].dtype, o.axes) for o in graph.outputs],
    }
    if graph.interface is not None:
        manifest["interface"] = graph.interface.facts()
    return Ports.of(Path(graph.name), manifest)


def input_specs(model: Ports | InferenceSession) -> tuple[InputSpec, ...]:
    """Returns the tensors that a model takes.

    Raises:
        UserError: an input is a map, or of a type that is unknown.
    """
    return tuple(spec(port.name, port.type, port.shape, port.value) for port in model.get_ports())
