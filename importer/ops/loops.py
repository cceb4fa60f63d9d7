"""Scans: the body of a loop run for every index of a dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import GraphProto

from rutc.importer.builder import Builder, OperatorError
from rutc.importer.ops.control import tensors
from rutc.importer.ops.operands import axis_of
from rutc.importer.registry import operator
from rutc.importer.tensor import Axis, Tensor
from rutc.tensor_ir import Carry, Index, Scan
from rutc.tensor_ir.affine import ONE, ZERO

Step = Callable[[Index, Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""(trip, states) -> (the states after it, what is collected of it)."""


def scanned(
    b: Builder, trips: Index, inits: Sequence[Tensor], step: Step
) -> tuple[list[Tensor], list[Tensor]]:
    """The states after all trips, and what was collected, the trips' axis first.

    A single trip is not made a loop. Raises OperatorError where a trip changes a state's shape.
    """
    if trips == ONE:
        after, collected = step(ZERO, inits)
        return list(after), [b.reshaped(c, (b.axis(1), *c.axes)) for c in collected]
    t = b.axis(trips, "t")
    assert t.dim is not None
    spaces = [b.axes(s.shape) for s in inits]
    starts = [b.defined(b.relabelled(s, a)) for s, a in zip(inits, spaces, strict=True)]
    params = [b.tensor(s.dtype, a, f"{b.base}_state") for s, a in zip(inits, spaces, strict=True)]
    with b.body([]) as nodes:
        after, collected = step(t.index, params)
        nexts = states_after(b, params, after, spaces)
        shown = [b.defined(b.relabelled(c, b.axes(c.shape))) for c in collected]
    outs = [b.tensor(p.dtype, p.axes) for p in params]
    every = [b.tensor(c.dtype, (t, *c.axes)) for c in shown]
    values = tuple(b.value(o) for o in (*outs, *every))
    names = tuple(c.name for c in shown)
    moved = carries(b, params, starts, nexts)
    b.nodes.append(Scan(values, t.dim, moved, names, tuple(nodes), b.origin))
    return outs, every


def states_after(
    b: Builder,
    params: Sequence[Tensor],
    after: Sequence[Tensor],
    spaces: Sequence[Sequence[Axis]],
) -> list[Tensor]:
    """The states after a trip over the same dims as before it."""
    made: list[Tensor] = []
    for old, new, axes in zip(params, after, spaces, strict=True):
        if old.shape != new.shape or old.dtype is not new.dtype:
            raise OperatorError(f"a carried value changes from {old} to {new} in the loop")
        made.append(b.defined(b.relabelled(new, axes)))
    return made


def carries(
    b: Builder, params: Sequence[Tensor], starts: Sequence[Tensor], nexts: Sequence[Tensor]
) -> tuple[Carry, ...]:
    """What a loop carries: parameters, their values before the first trip and after each."""
    return tuple(
        Carry(b.value(p), s.name, n.name) for p, s, n in zip(params, starts, nexts, strict=True)
    )


def _step_of(b: Builder, x: Tensor, axis: int, position: Index) -> Tensor:
    """x at one position of an axis, without that axis."""
    shape = [e for i, e in enumerate(x.shape) if i != axis]
    return b.view(x, shape, lambda *o: [*o[:axis], position, *o[axis:]])


def _axis_moved(b: Builder, y: Tensor, to: int, *, backward: bool) -> Tensor:
    """y with its first axis at `to`, and reversed if asked for."""
    if y.shape[0] != ONE and backward:
        n = y.shape[0]
        y = b.view(y, y.shape, lambda t, *rest: [n - 1 - t, *rest])
    axes = list(y.axes[1:])
    axes.insert(to, y.axes[0])
    return Tensor(y.name, y.dtype, tuple(axes), None, y.units)


@operator("Scan")
def scan(
    b: Builder,
    *operands: Tensor,
    body: GraphProto,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """The body run over slices of the scan inputs; the last states, and the stacked outputs."""
    count = len(operands) - num_scan_inputs
    inits, sources = operands[:count], operands[count:]
    axes = [
        axis_of(a, x.rank)
        for a, x in zip(scan_input_axes or (0,) * len(sources), sources, strict=True)
    ]
    backward = tuple(scan_input_directions) or (0,) * len(sources)
    trips = sources[0].shape[axes[0]]
    if any(x.shape[a] != trips for x, a in zip(sources, axes, strict=True)):
        raise OperatorError("the scan inputs differ in length")

    def step(t: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        parts = [
            _step_of(b, x, a, trips - 1 - t if back else t)
            for x, a, back in zip(sources, axes, backward, strict=True)
        ]
        results = tensors(b.subgraph(body, (*states, *parts)))
        return results[:count], results[count:]

    lasts, every = scanned(b, trips, inits, step)
    places = tuple(scan_output_axes) or (0,) * len(every)
    ways = tuple(scan_output_directions) or (0,) * len(every)
    stacked = [
        _axis_moved(b, y, axis_of(p, y.rank), backward=bool(way))
        for y, p, way in zip(every, places, ways, strict=True)
    ]
    return (*lasts, *stacked)
