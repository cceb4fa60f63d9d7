"""Loops: a number of trips known at import as a scan, any other as a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto

from rutc.importer.builder import Builder, OperatorError, lit
from rutc.importer.ops.operands import axis_of, indices
from rutc.importer.registry import operator
from rutc.importer.tensor import Axis, Tensor, known_ints
from rutc.tensor_ir import Carry, DType, Index, Node, Scan, While, apply
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
    starts = [b.relabelled(s, a) for s, a in zip(inits, spaces, strict=True)]
    params = [b.tensor(s.dtype, a, f"{b.base}_state") for s, a in zip(inits, spaces, strict=True)]
    with b.body([]) as nodes:
        after, collected = step(t.index, params)
        nexts = _states(b, params, after, spaces)
        shown = [b.relabelled(c, b.axes(c.shape)) for c in collected]
    outs = [b.tensor(p.dtype, p.axes) for p in params]
    every = [b.tensor(c.dtype, (t, *c.axes)) for c in shown]
    carries = _carries(b, params, starts, nexts)
    values = tuple(b.value(o) for o in (*outs, *every))
    names = tuple(c.name for c in shown)
    b.nodes.append(Scan(values, t.dim, carries, names, tuple(nodes), b.origin))
    return outs, every


def _states(
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
        made.append(b.relabelled(new, axes))
    return made


def _carries(
    b: Builder, params: Sequence[Tensor], starts: Sequence[Tensor], nexts: Sequence[Tensor]
) -> tuple[Carry, ...]:
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
        results = b.subgraph(body, (*states, *parts))
        return results[:count], results[count:]

    lasts, every = scanned(b, trips, inits, step)
    places = tuple(scan_output_axes) or (0,) * len(every)
    ways = tuple(scan_output_directions) or (0,) * len(every)
    stacked = [
        _axis_moved(b, y, axis_of(p, y.rank), backward=bool(way))
        for y, p, way in zip(every, places, ways, strict=True)
    ]
    return (*lasts, *stacked)


@operator("Loop")
def loop(
    b: Builder,
    trip_count: Tensor | None = None,
    condition: Tensor | None = None,
    *inits: Tensor,
    body: GraphProto,
) -> tuple[Tensor, ...]:
    """The body run a number of times or while a condition holds; states, then stacked outputs."""
    start = True if condition is None else _known_bool(condition)
    if start is False:
        raise OperatorError("a loop that never runs is not supported")
    count = len(inits)
    always = True

    def run(trip: Tensor, states: Sequence[Tensor], going: Tensor) -> tuple[Tensor, ...]:
        return b.subgraph(body, (trip, going, *states))

    def step(t: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        nonlocal always
        trip = b.constant(known_ints([t], (), DType.I64), DType.I64)
        results = run(trip, states, b.constant(np.array(True)))
        always = always and _known_bool(results[0]) is True
        return results[1 : count + 1], results[count + 1 :]

    if start and trip_count is not None and trip_count.known is not None:
        before = len(b.nodes)
        (trips,) = indices(trip_count, "the trip count")
        if trips == ZERO:
            raise OperatorError("a loop that never runs is not supported")
        lasts, every = scanned(b, trips, inits, step)
        if always:
            return (*lasts, *every)
        del b.nodes[before:]
    if len(b.outputs) > count:
        raise OperatorError("the length of its stacked outputs is known at run time only")
    return _while(b, trip_count, condition, inits, run)


def _known_bool(t: Tensor) -> bool | None:
    return None if t.array is None else bool(t.array.reshape(-1)[0])


def _while(
    b: Builder,
    trip_count: Tensor | None,
    condition: Tensor | None,
    inits: Sequence[Tensor],
    run: Callable[[Tensor, Sequence[Tensor], Tensor], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """The loop as a while that carries its condition, the trip and the states."""

    def scalar(t: Tensor) -> Tensor:
        return b.nest((), b.read(t, [0] * t.rank))

    def within(trip: Tensor, going: Tensor) -> Tensor:
        if trip_count is None:
            return going
        limit = b.read(trip_count, [0] * trip_count.rank)
        left = apply("lt", b.read(trip, []), limit)
        return b.nest((), apply("and", b.read(going, []), left))

    first = b.nest((), lit(0, DType.I64))
    given = scalar(condition) if condition is not None else b.nest((), lit(1, DType.BOOL))
    going = within(first, given)
    spaces = [b.axes(s.shape) for s in inits]
    starts = [going, first, *(b.relabelled(s, a) for s, a in zip(inits, spaces, strict=True))]
    params = [b.tensor(s.dtype, s.axes, f"{b.base}_state") for s in starts]
    with b.body([]) as nodes:
        results = run(params[1], params[2:], params[0])
        trip = b.map(lambda i: apply("add", i, lit(1, DType.I64)), params[1])
        after = [within(trip, scalar(results[0])), trip]
        after += _states(b, params[2:], results[1 : len(inits) + 1], spaces)
    outs = [b.tensor(p.dtype, p.axes) for p in params]
    carries = _carries(b, params, starts, after)
    values = tuple(b.value(o) for o in outs)
    inner: tuple[Node, ...] = tuple(nodes)
    b.nodes.append(While(values, params[0].name, carries, inner, b.origin))
    return tuple(outs[2:])
