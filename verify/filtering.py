"""Where filtering costs accuracy: layers whose inputs differ too much within a tile.

A filter's errors are relative to the largest elements of a whole tile
(`graph_opt/minimal_filter.py`), and so hide outputs whose own windows hold much smaller ones. What
the filtered layers read is computed by ONNX Runtime on the inputs of the verification, and the
error of each output predicted:

    2^-24 * `typical` * sqrt(mean of squares in the tile / mean of squares in the window)

relative to the output's products, where `typical` is the filter's error for inputs of one
magnitude. Layers in the bodies of loops and branches, and those of models of 2 GB, are not looked
at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from rutc.base.files import Workplace
from rutc.base.record import record
from rutc.errors import UserError
from rutc.importer.extract import MOST_BYTES, ModelParts, NodeInfo
from rutc.verify.feeding.session_values import session_values
from rutc.verify.feeding.sizes import modest_common_sizes
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.judging.compare import Value
from rutc.verify.reference import Reference

Energy = npt.NDArray[np.float64]
"""The sum of squares of all channels at each place of each image."""

LOSS = 2.0**-16
"""The error of an output beyond which it counts as lost: 8 of the 24 bits of a float."""
SHARE = 1e-3
"""The share of lost outputs beyond which a layer is not filtered."""
UNIT = 2.0**-24
LAYERS = frozenset(["Conv", "ConvTranspose", "FusedConv"])
"""Operators whose first operand is filtered by the second."""


@record
class Filter:
    """One filtered sum, as the manifest has it: outputs of a tile and taps along each dim."""

    name: str
    origin: tuple[str, ...]
    outputs: tuple[int, ...]
    taps: tuple[int, ...]
    typical: float


@record
class Refusal:
    """A filtered layer whose inputs differ too much: by what factor, and how many outputs suffer.

    `name` is the sum's, as `Options.spread` takes it.
    """

    name: str
    layer: str
    factor: float
    share: float

    def __str__(self) -> str:
        by = f"are spread over {self.factor:.0e}" if np.isfinite(self.factor) else "are not finite"
        return f"{self.layer}: its inputs {by} within a tile"


def refusals(
    model: Path,
    library: Path,
    inputs: Mapping[str, Value] | None = None,
    threads: int | None = None,
    target: str | None = None,
    every: bool = False,
) -> tuple[Refusal, ...]:
    """Returns the filtered layers of a compiled model that inputs lose accuracy in, or `every` one.

    None where ONNX Runtime does not run the model, which a verification then tells. Inputs that
    are not given are generated. Of a library of several targets it is told of one, None: the best.

    Raises:
        rutc.runtime.ModelError: the library does not load.
    """
    with WholeSession(library, threads=1, target=target) as session:
        filters = filters_of(session.manifest)
        weights = session.manifest.get("weight_bytes")
        if not filters or not isinstance(weights, int) or weights > MOST_BYTES:
            return ()
        if inputs is None:
            inputs = session_values(session, (), dims=modest_common_sizes(session))
    return lossy(model, filters, inputs, threads, every)


def lossy(
    model: Path,
    filters: Sequence[Filter],
    inputs: Mapping[str, Value],
    threads: int | None = None,
    every: bool = False,
) -> tuple[Refusal, ...]:
    """Returns those of some layers that inputs lose accuracy in if they are filtered.

    `every` one that is looked at is among them, however little it loses.
    """
    parts = ModelParts(model)
    layers = {f.name: node for f in filters if (node := _layer(f, parts.nodes)) is not None}
    names = sorted({node.inputs[0] for node in layers.values()} - set(inputs))
    values = dict(inputs)
    if names:
        with Workplace() as place:
            path = place.path / "part.onnx"
            try:
                parts.write_with_outputs(path, names)
                values |= Reference(path, threads, optimise=True).run(inputs)
            except UserError:
                return ()
    found: list[Refusal] = []
    for f in filters:
        node = layers.get(f.name)
        x = None if node is None else values.get(node.inputs[0])
        if node is None or not isinstance(x, np.ndarray):
            continue
        weight = parts.constant(node.inputs[1])
        factor, share = measure(f, x, weight, transposed=node.op == "ConvTranspose")
        if every or share > SHARE:
            found.append(Refusal(f.name, str(node), factor, share))
    return tuple(found)


def filters_of(manifest: Mapping[str, object]) -> tuple[Filter, ...]:
    """Returns the sums of a manifest whose filters mix inputs of several windows."""
    listed = manifest.get("algorithms")
    facts = [a for a in listed if a["reach"] != a["taps"]] if isinstance(listed, list) else []
    return tuple(
        Filter(
            a["sum"], tuple(a["origin"]), tuple(a["outputs"]), tuple(a["taps"]), float(a["typical"])
        )
        for a in facts
    )


def _layer(f: Filter, nodes: Sequence[NodeInfo]) -> NodeInfo | None:
    """The node that a sum comes from."""
    named = (n for n in nodes if n.op in LAYERS and {n.name, *n.outputs}.intersection(f.origin))
    return next(named, None)


def measure(
    f: Filter, x: np.ndarray, weight: np.ndarray | None, *, transposed: bool = False
) -> tuple[float, float]:
    """Returns (the largest spread within a tile, the share of outputs that are lost).

    `x` {n, c, ...} is filtered along the axes after these; `weight` is the layer's own.
    """
    energy = _energy(x, weight, 0 if transposed else 1)
    kernel = None if weight is None else weight.shape[2:]
    window, tile = energy, energy
    for axis, (outputs, taps) in _filtered_axes(f, energy.ndim - 1, kernel).items():
        window, tile = _along(window, axis, taps), _tiles(tile, axis, taps, outputs)
    with np.errstate(all="ignore"):
        ratio = np.sqrt(tile / window)
    ratio[np.isfinite(window) & ~np.isfinite(tile)] = np.inf
    known = np.isfinite(window) & (window > 0)
    if not known.any():
        return 1.0, 0.0
    # Where all elements are alike, a mean is the sum over so many more of them.
    alike = np.prod([(m + r - 1) / r for m, r in zip(f.outputs, f.taps, strict=True)])
    lost = UNIT * f.typical * ratio[known] / np.sqrt(alike) > LOSS
    return float(ratio[known].max()), float(lost.mean())


def _energy(x: np.ndarray, weight: np.ndarray | None, axis: int) -> Energy:
    """The squares of `x`, summed over channels as the weights of each channel count."""
    each = np.ones(1)
    if weight is not None:
        others = tuple(i for i in range(weight.ndim) if i != axis)
        each = np.square(weight, dtype=np.float64).mean(axis=others)
    found = np.zeros((x.shape[0], *x.shape[2:]))
    # All squares at once would take twice the memory of what is read.
    for channel in range(x.shape[1]):
        # Weights of groups have the channels of one group.
        found += each[channel % len(each)] * np.square(x[:, channel], dtype=np.float64)
    return found


def _filtered_axes(
    f: Filter, count: int, kernel: tuple[int, ...] | None
) -> dict[int, tuple[int, int]]:
    """Axis -> (outputs of a tile, taps): those where the kernel has as many taps, or the last."""
    found: dict[int, tuple[int, int]] = {}
    for outputs, taps in zip(f.outputs, f.taps, strict=True):
        free = [i for i in range(1, count + 1) if i not in found]
        fitting = [i for i in free if kernel is not None and kernel[i - 1 : i] == (taps,)]
        found[(fitting or free[-1:])[0]] = outputs, taps
    return found


def _along(e: Energy, axis: int, taps: int) -> Energy:
    """The sums over the window around each element."""
    before = (taps - 1) // 2
    padded = _padded(e, axis, before, taps - 1 - before)
    return np.asarray(sliding_window_view(padded, taps, axis).sum(axis=-1))


def _tiles(e: Energy, axis: int, taps: int, outputs: int) -> Energy:
    """The sums over the tile that each element's output is computed in."""
    size, before = e.shape[axis], (taps - 1) // 2
    padded = _padded(e, axis, before, taps + outputs)
    sums = sliding_window_view(padded, outputs + taps - 1, axis).sum(axis=-1)
    each = np.take(sums, np.arange(0, size, outputs), axis)
    return np.take(np.repeat(each, outputs, axis), np.arange(size), axis)


def _padded(e: Energy, axis: int, before: int, after: int) -> Energy:
    return np.pad(e, [(before, after) if i == axis else (0, 0) for i in range(e.ndim)])
