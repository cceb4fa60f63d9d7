"""Scans, the body of a loop run for every index of a dim, and loops that may end early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Self

from onnx import GraphProto

from rutc.base.earlier import Earlier
from rutc.base.record import record
from rutc.importer.boxes import (
    Leaf,
    boxed,
    concatenated,
    gathered,
    is_plain,
    join,
    leaves,
    opened,
    packed,
    spread,
    type_of,
    unpacked,
)
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import (
    Absent,
    Axis,
    Boxed,
    Item,
    ListType,
    OptionalType,
    Tensor,
    TensorType,
    Type,
)
from rutc.importer.ops.operands import axis_of
from rutc.importer.registry import operator
from rutc.tensor_ir import Carry, DType, Index, IndexValue, Scan, While, apply
from rutc.tensor_ir.indices.affine import ONE, ZERO

Step = Callable[[Index, Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""(trip, states) -> (the states after it, what is collected of it)."""


Repetition = Callable[[Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]
"""states -> (whether another trip may change something, the states after this one)."""


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


def repeated(b: Builder, most: int, inits: Sequence[Tensor], step: Repetition) -> list[Tensor]:
    """The states after so many trips, or after the first that says that there need be no more."""
    spaces = [b.axes(s.shape) for s in inits]
    starts = [
        b.nest((), lit(True, DType.BOOL)),
        b.nest((), lit(0, DType.I64)),
        *(b.defined(b.relabelled(s, a)) for s, a in zip(inits, spaces, strict=True)),
    ]
    params = [b.tensor(s.dtype, s.axes, f"{b.base}_state") for s in starts]
    with b.body([]) as nodes:
        going, after = step(params[2:])
        trip = b.map(lambda i: apply("add", i, lit(1, DType.I64)), params[1])
        left = apply("lt", b.read(trip, []), lit(most, DType.I64))
        nexts = [b.nest((), apply("and", b.read(going, []), left)), trip]
        nexts += states_after(b, params[2:], after, spaces)
    outs = [b.tensor(p.dtype, p.axes) for p in params]
    moved = carries(b, params, starts, nexts)
    values = tuple(b.value(o) for o in outs)
    b.nodes.append(While(values, params[0].name, moved, tuple(nodes), b.origin))
    return outs[2:]


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
    order = list(range(1, y.rank))
    order.insert(to, 0)
    return b.permuted(y, order)


ItemStep = Callable[[Index | Tensor, Sequence[Item]], tuple[Sequence[Item], Sequence[Item]]]
"""(trip, states) -> (the states after it, what is collected of it), of any type."""

PASSES = 16
"""Trips that are looked at until the states' types no longer change."""


@record
class Carried:
    """The types that the states of a loop have in every trip, and those of what it collects.

    `opaque` says that a trip makes shapes from its number, which must be a tensor then.
    """

    states: tuple[Type, ...]
    collected: tuple[Type, ...]
    opaque: bool

    @classmethod
    def of(
        cls,
        b: Builder,
        inits: Sequence[Item],
        step: ItemStep,
        trips: Index | None = None,
        *,
        opaque: bool = False,
    ) -> Self:
        """The narrowest types. Raises OperatorError where a state's type has no bound."""
        known = Earlier(b.ranges)
        types = tuple(type_of(i) for i in inits)
        t = b.axis(MOST if trips is None else trips, "t")
        for _ in range(PASSES):
            before = len(b.extents)
            with b.body([]):
                trip = b.nest((), IndexValue(t.index)) if opaque else t.index
                made, shown = step(trip, [_any(b, u) for u in types])
                after = tuple(_after(u, i, known) for u, i in zip(types, made, strict=True))
                collected = tuple(type_of(i, known) for i in shown)
            counted = any(t.dim in e.names() for e in islice(b.extents.values(), before, None))
            if after == types and counted <= opaque:
                return cls(types, collected, opaque)
            types, opaque = after, opaque or counted
        raise OperatorError("the types of the carried values change in every trip")

    @property
    def flat(self) -> list[Leaf]:
        """The types of what a tensor each carries."""
        return [leaf for t in self.states for leaf in leaves(t)]

    @property
    def shown(self) -> list[Leaf]:
        """The types of what is collected."""
        return [leaf for t in self.collected for leaf in leaves(t)]

    def packed(self, b: Builder, items: Sequence[Item]) -> list[Tensor]:
        """The tensors that carry the states."""
        return _packed(b, items, self.states)

    def unpacked(self, b: Builder, tensors: Sequence[Tensor]) -> list[Item]:
        """The states that tensors carry."""
        left = iter([unpacked(b, t, u) for t, u in zip(tensors, self.flat, strict=True)])
        return [gathered(left, t) for t in self.states]

    def stacked(self, b: Builder, boxes: Boxed) -> Tensor:
        """The tensors that trips collected as boxes, their axis first."""
        return concatenated(b, boxes, 0, new_axis=True)


def _packed(b: Builder, items: Sequence[Item], types: Sequence[Type]) -> list[Tensor]:
    made = [x for i, t in zip(items, types, strict=True) for x in spread(i, t)]
    flat = [leaf for t in types for leaf in leaves(t)]
    return [packed(b, i, t) for i, t in zip(made, flat, strict=True)]


def _after(before: Type, item: Item, known: AbstractSet[str]) -> Type:
    found = type_of(item, known)
    try:
        made = join(before, found)
    except OperatorError as e:
        raise OperatorError(f"a carried value changes from {before} to {found}") from e
    assert made is not None
    return made


def _any(b: Builder, t: Type) -> Item:
    """Some item of a type, in a body that is thrown away."""
    left: list[Item] = []
    for leaf in leaves(t):
        if isinstance(leaf, TensorType) and leaf.fixed is not None:
            left.append(b.tensor(leaf.dtype, b.axes(leaf.fixed)))
        elif leaf == OptionalType(None):
            left.append(Absent())
        else:
            left.append(opened(b, b.tensor(DType.TENSOR, ()), leaf))
    return gathered(left, t)


def counted(
    b: Builder, trips: Index, inits: Sequence[Item], step: ItemStep, carried: Carried | None = None
) -> tuple[list[Item], list[Tensor]]:
    """`scanned` for states of any type; what is collected are tensors."""
    types = carried if carried is not None else Carried.of(b, inits, step, trips)

    def trip(t: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        number = b.nest((), IndexValue(t)) if types.opaque else t
        after, shown = step(number, types.unpacked(b, states))
        return types.packed(b, after), _packed(b, shown, types.collected)

    lasts, every = scanned(b, trips, types.packed(b, inits), trip)
    rows = [
        y if is_plain(t) else types.stacked(b, Boxed(ListType(t), y))
        for y, t in zip(every, types.shown, strict=True)
    ]
    return types.unpacked(b, lasts), rows


def collected(b: Builder, trips: Index, step: ItemStep) -> list[Boxed]:
    """What each trip collects, as sequences."""
    types = Carried.of(b, (), step, trips)

    def trip(t: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        _, shown = step(b.nest((), IndexValue(t)) if types.opaque else t, ())
        made = [boxed(b, i, u) for i, u in zip(shown, types.collected, strict=True)]
        return (), made

    _, every = scanned(b, trips, (), trip)
    return [Boxed(ListType(t), y) for t, y in zip(types.collected, every, strict=True)]


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
) -> tuple[Item, ...]:
    """The body run over slices of the scan inputs; the last states, and the stacked outputs."""
    count = len(operands) - num_scan_inputs
    if num_scan_inputs < 1 or count < 0:
        raise OperatorError(f"num_scan_inputs is {num_scan_inputs} of {len(operands)} inputs")
    for what, given in (("axes", scan_input_axes), ("directions", scan_input_directions)):
        if given and len(given) != num_scan_inputs:
            raise OperatorError(
                f"scan_input_{what} has {len(given)} elements for {num_scan_inputs} scan inputs"
            )
    inits, sources = operands[:count], operands[count:]
    axes = [
        axis_of(a, x.rank)
        for a, x in zip(scan_input_axes or (0,) * len(sources), sources, strict=True)
    ]
    backward = tuple(scan_input_directions) or (0,) * len(sources)
    trips = sources[0].shape[axes[0]]
    for x, a in zip(sources, axes, strict=True):
        trips = b.same(trips, x.shape[a])

    def step(t: Index | Tensor, states: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
        assert isinstance(t, Index)
        parts = [
            _step_of(b, x, a, trips - 1 - t if back else t)
            for x, a, back in zip(sources, axes, backward, strict=True)
        ]
        results = b.subgraph(body, (*states, *parts))
        if len(results) < count:
            raise OperatorError(f"the body has {len(results)} outputs for {count} states")
        return results[:count], results[count:]

    lasts, every = counted(b, trips, inits, step)
    places = tuple(scan_output_axes) or (0,) * len(every)
    ways = tuple(scan_output_directions) or (0,) * len(every)
    if not len(every) == len(places) == len(ways):
        raise OperatorError(
            f"scan_output_axes or scan_output_directions do not fit {len(every)} scan outputs"
        )
    stacked = [
        _axis_moved(b, y, axis_of(p, y.rank), backward=bool(way))
        for y, p, way in zip(every, places, ways, strict=True)
    ]
    return (*lasts, *stacked)
