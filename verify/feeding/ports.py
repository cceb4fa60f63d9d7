"""What a model takes and gives, before anything is compiled of it.

The tensors of its graph make up the same sequences, optionals and maps as those of its artifact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rutc.runtime import InferenceSession
from rutc.runtime.bundles import boxed
from rutc.runtime.ports import Ports
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.graph import Data
from rutc.tensor_ir.interpreter.routines import Box
from rutc.verify.feeding.input_spec import InputSpec, spec
from rutc.verify.judging.compare import Array, Value


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
    told = model.manifest if isinstance(model, InferenceSession) else {}
    divisors, known, tables = (told.get(key) for key in ("divisors", "texts", "rows"))
    divides = divisors if isinstance(divisors, list) else []
    texts = known if isinstance(known, dict) else {}
    rows = tables if isinstance(tables, dict) else {}
    return tuple(
        spec(
            p.name,
            p.type,
            p.shape,
            p.value,
            divides=p.name in divides,
            texts=tuple(texts.get(p.name, ())),
            rows=tuple(rows.get(p.name, ())),
        )
        for p in model.get_ports()
    )


def graph_inputs(ports: Ports, inputs: Mapping[str, Value]) -> dict[str, Array]:
    """Returns the tensors that a graph takes, those whose structure the run tells as boxes {n}.

    Raises:
        rutc.runtime.ModelError: an input is missing or no such value.
    """
    opened = boxed(ports.takes)
    return {
        name: _boxes(value) if name in opened and isinstance(value, list) else _array(value)
        for name, value in ports.spread(inputs).items()
    }


def graph_outputs(ports: Ports, tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Returns the outputs by name that the tensors of a graph make up."""
    inside = {
        name: _opened(tensors[name], bundle.contents.count("(") - 1)
        for name, bundle in boxed(ports.gives).items()
    }
    return ports.bundled_outputs({**tensors, **inside})


def _boxes(items: Sequence[object]) -> Array:
    """The boxes {n} of arrays, or of sequences of such."""
    found: npt.NDArray[np.object_] = np.empty(len(items), object)
    for place, item in enumerate(items):
        found[place] = Box(_boxes(item) if isinstance(item, list | tuple) else _array(item))
    return found


def _opened(boxes: Array, levels: int) -> Array:
    """What is in boxes {n}, as objects: arrays, or lists where there are more levels of boxes."""
    found: npt.NDArray[np.object_] = np.empty(len(boxes), object)
    for place, box in enumerate(boxes.tolist()):
        found[place] = list(_opened(box.array, levels - 1)) if levels > 1 else box.array
    return found


def _array(value: object) -> Array:
    """An array as graphs take them: strings as objects."""
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "UST" else array
