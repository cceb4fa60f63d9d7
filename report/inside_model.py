"""What `rutc inspect` shows of an ONNX model: what it takes and gives, and its operators."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import RenderableType

from rutc.importer import import_model
from rutc.importer.contents import contents
from rutc.report import display
from rutc.report.inspection import Shown, open_sizes, write_page
from rutc.report.page import model_page
from rutc.report.printable import counted
from rutc.runtime.bundles import bundles
from rutc.runtime.dtypes import onnx_type
from rutc.runtime.ports import NodeArg, whole_args
from rutc.tensor_ir import Graph
from rutc.tensor_ir.indices.affine import Index, Size, plain
from rutc.tensor_ir.indices.ranges import Range, common_sizes
from rutc.tensor_ir.stated_sizes import stated_sizes


def inspect_model(
    path: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int | tuple[int, ...] | str],
    values: Mapping[str, np.ndarray],
    page: Path | None = None,
) -> Shown:
    """Returns a model's inputs, outputs, opset, weights and operators, and what import makes of it.

    All of it is drawn on a `page`.

    Raises:
        UserError: the model cannot be imported, or the page cannot be written.
    """
    graph = import_model(path, shapes=shapes, dims=dims, values=values)
    ports = _ports(graph)
    held = contents(path)
    sizes = _sizes(graph)
    told_sizes = open_sizes(sizes)
    kinds = Counter(type(node).__name__ for node in graph.nodes)
    payload: dict[str, object] = {
        "model": path,
        "opsets": dict(held.opsets),
        "inputs": [asdict(port) for port in ports[0]],
        "outputs": [asdict(port) for port in ports[1]],
        "sizes": {name: list(bounds) for name, bounds in sizes.items()},
        "common_sizes": common_sizes(sizes),
        "weights": held.weights,
        "weight_bytes": held.weight_bytes,
        "operators": dict(held.operators),
        "nodes": dict(sorted(kinds.items())),
    }
    weight_bytes = display.quantity(held.weight_bytes, "B", display.BYTES)
    shown: list[RenderableType] = [
        f"{path}: {counted(sum(held.operators.values()), 'node')}, "
        f"{', '.join(f'{domain} {version}' for domain, version in held.opsets.items())}, "
        f"{counted(held.weights, 'weight')} of {weight_bytes}",
        display.ports_table(*ports),
        *told_sizes,
        display.operators_table(held.operators),
    ]
    if page is not None:
        told = model_page(path, held, ports[0], ports[1], told_sizes)
        shown.append(write_page(page, told, payload))
    return payload, shown


def _ports(graph: Graph) -> tuple[list[NodeArg], list[NodeArg]]:
    """The inputs and outputs of a model, as an artifact of it has them."""
    dtypes, stated = graph.values, stated_sizes(graph)
    takes, gives = (
        [
            NodeArg(
                n,
                [_extent(Index.of(graph.extents[a]).subs(stated)) for a in axes],
                onnx_type(dtype.stored_name),
            )
            for n, axes, dtype in found
        ]
        for found in (
            [(i.name, i.axes, i.out.dtype) for i in graph.inputs],
            [(o.name, o.axes, dtypes[o.value].dtype) for o in graph.outputs],
        )
    )
    if graph.interface is None:
        return takes, gives
    facts = {"interface": graph.interface.facts()}
    return whole_args(takes, bundles(facts, "inputs")), whole_args(gives, bundles(facts, "outputs"))


def _extent(size: Size) -> int | str:
    size = plain(size)
    return size if isinstance(size, int) else str(size)


def _sizes(graph: Graph) -> dict[str, Range]:
    """The sizes in the shapes of inputs, with their ranges."""
    extents = [Index.of(graph.extents[a]) for i in graph.inputs for a in i.axes]
    named = {name for extent in extents for name in extent.names()}
    return {name: bounds for name, bounds in graph.symbols if name in named}
