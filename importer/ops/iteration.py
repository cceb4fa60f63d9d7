"""Loops: by their trip count a scan, by their condition a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto

from rutc.errors import UserError
from rutc.importer.builder import MOST, Builder, OperatorError, lit
from rutc.importer.ops.control import branched, tensors
from rutc.importer.ops.loops import carries, scanned, states_after
from rutc.importer.ops.movement import concat
from rutc.importer.ops.operands import indices
from rutc.importer.ops.selection import front
from rutc.importer.registry import operator
from rutc.importer.tensor import Item, Tensor, known_ints
from rutc.tensor_ir import DType, Expr, Index, Lit, Node, While, apply
from rutc.tensor_ir.affine import ZERO

UNROLLED = 64
"""A loop whose states change shape or are sequences is written out up to this many trips."""


@operator("Loop")
def loop(
    b: Builder,
    trip_count: Tensor | None = None,
    condition: Tensor | None = None,
    *inits: Item,
    body: GraphProto,
) -> tuple[Item, ...]:
    """The body run a number of times or while a condition holds; states, then stacked outputs.

    A scan where nothing but the trip count ends it; written out where trips change the states'
    shapes and their number is known and small; else a while, or, for stacked outputs, a scan whose
    trips do nothing once the condition fails.
    """
    return _Loop(b, trip_count, condition, inits, body).results()


@dataclass
class _Loop:
    b: Builder
    trip_count: Tensor | None
    condition: Tensor | None
    inits: tuple[Item, ...]
    body: GraphProto

    def __post_init__(self) -> None:
        self.count = len(self.inits)
        self.start = True if self.condition is None else _known_bool(self.condition)
        self.limit: Index | None = None
        if self.trip_count is not None and self.trip_count.known is not None:
            (self.limit,) = indices(self.trip_count, "the trip count")
            if self.limit.is_const:
                self.limit = Index.of(max(self.limit.const, 0))

    def results(self) -> tuple[Item, ...]:
        if self.start is False or self.limit == ZERO:
            return self.never()
        before = len(self.b.nodes)
        failure: UserError | OperatorError | None = None
        for way in (self.counted, self.unrolled):
            try:
                made = way()
            except (UserError, OperatorError) as e:
                failure = failure or e
                made = None
            if made is not None:
                return made
            self.b.restore(before)
        if failure is not None and (self.limit is None or self.start is None):
            hint = "with a trip count and condition that are known when compiling, short loops can"
            raise OperatorError(f"{failure}; {hint} be written out trip by trip") from failure
        if failure is not None:
            raise failure
        states = tensors(self.inits)
        if len(self.b.outputs) > self.count and any(self.b.outputs[self.count :]):
            return self.gated(states)
        return self.repeated(states)

    def trip(self, t: Tensor | Index, states: Sequence[Item]) -> tuple[Tensor, tuple[Item, ...]]:
        """(whether to go on, the states and what is collected) after trip t."""
        if isinstance(t, Index):
            t = self.b.constant(known_ints([t], (), DType.I64), DType.I64)
        # In a trip that runs, the condition before it held.
        going = self.b.constant(np.array(True))
        first, *rest = self.b.subgraph(self.body, (t, going, *states))
        return tensors((first,))[0], tuple(rest)

    def never(self) -> tuple[Item, ...]:
        with self.b.body([]):
            _, made = self.trip(ZERO, self.inits)
        shown = tensors(made[self.count :])
        empty = [self.b.nest(self.b.axes((0, *t.shape)), lit(0, t.dtype)) for t in shown]
        return (*self.inits, *empty)

    # -- ways -----------------------------------------------------------------------------------
    def counted(self) -> tuple[Item, ...] | None:
        """As a scan, unless something else than the trip count may end it."""
        if self.trip_count is None:
            return None
        states = tensors(self.inits)
        always = True

        def step(t: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            nonlocal always
            going, made = self.trip(t, states)
            always = always and _known_bool(going) is True
            return tensors(made[: self.count]), tensors(made[self.count :])

        lasts, every = scanned(self.b, self.trips(), states, step)
        return (*lasts, *every) if always else None

    def trips(self) -> Index:
        """How many trips there are if the condition holds before the first, and in each."""
        if self.limit is not None and self.start:
            return self.limit
        b, most = self.b, MOST
        assert self.trip_count is not None
        if self.limit is not None and self.limit.is_const:
            most = self.limit.const
        number = apply("max", b.read(self.trip_count, [0] * self.trip_count.rank), _I64_ZERO)
        if self.start is None:
            number = apply("select", self.starting(), number, _I64_ZERO)
        return b.size(b.nest((), number), "trips", most)

    def starting(self) -> Expr:
        """Whether the condition holds before the first trip."""
        if self.condition is None:
            return Lit(True, DType.BOOL)
        return self.b.read(self.condition, [0] * self.condition.rank)

    def unrolled(self) -> tuple[Item, ...] | None:
        """Written out, if the number of trips is known and small."""
        if not self.start:
            return None
        most = self.limit.const if self.limit is not None and self.limit.is_const else None
        if most is not None and most > UNROLLED:
            return None
        states: Sequence[Item] = self.inits
        shown: list[tuple[Tensor, ...]] = []
        going = True
        while going and len(shown) != most:
            if len(shown) == UNROLLED:
                return None
            last, made = self.trip(Index.of(len(shown)), states)
            states = made[: self.count]
            shown.append(tensors(made[self.count :]))
            known = _known_bool(last)
            if known is None and len(shown) != most:
                return None
            going = known is not False
        stacked = [
            concat(self.b, *(self.b.reshaped(t, (self.b.axis(1), *t.axes)) for t in column), axis=0)
            for column in zip(*shown, strict=True)
        ]
        return (*states, *stacked)

    def repeated(self, inits: Sequence[Tensor]) -> tuple[Item, ...]:
        """As a while that carries its condition, the trip and the states."""
        b = self.b
        first = b.nest((), _I64_ZERO)
        going = self.within(first, self.starting())
        spaces = [b.axes(s.shape) for s in inits]
        starts = [
            going,
            first,
            *(b.defined(b.relabelled(s, a)) for s, a in zip(inits, spaces, strict=True)),
        ]
        params = [b.tensor(s.dtype, s.axes, f"{b.base}_state") for s in starts]
        with b.body([]) as nodes:
            last, made = self.trip(params[1], params[2:])
            if self.trip_count is None and _known_bool(last):
                raise OperatorError("the loop never ends: its condition is always true")
            trip = b.map(lambda i: apply("add", i, lit(1, DType.I64)), params[1])
            after = [self.within(trip, b.read(last, [0] * last.rank)), trip]
            after += states_after(b, params[2:], tensors(made[: self.count]), spaces)
        outs = [b.tensor(p.dtype, p.axes) for p in params]
        moved = carries(b, params, starts, after)
        values = tuple(b.value(o) for o in outs)
        inner: tuple[Node, ...] = tuple(nodes)
        b.nodes.append(While(values, params[0].name, moved, inner, b.origin))
        return tuple(outs[2:])

    def within(self, trip: Tensor, going: Expr) -> Tensor:
        """Whether the condition holds and the trip count is not reached."""
        if self.trip_count is None:
            return self.b.nest((), going)
        limit = self.b.read(self.trip_count, [0] * self.trip_count.rank)
        left = apply("lt", self.b.read(trip, []), limit)
        return self.b.nest((), apply("and", going, left))

    def gated(self, inits: Sequence[Tensor]) -> tuple[Item, ...]:
        """As a scan over the most trips that carries its condition and counts those that ran."""
        b = self.b
        if self.trip_count is None:
            raise OperatorError(
                "nothing limits the length of its stacked outputs; give the loop a trip count"
            )
        with b.body([]):
            _, made = self.trip(ZERO, inits)
        shown = tensors(made[self.count :])
        trips = self.trips()

        def step(t: Index, states: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            going, number, *rest = states

            def run() -> Sequence[Tensor]:
                last, made = self.trip(t, rest)
                on = b.nest((), b.read(last, [0] * last.rank))
                after = b.map(lambda i: apply("add", i, lit(1, DType.I64)), number)
                return (on, after, *tensors(made))

            def stay() -> Sequence[Tensor]:
                zeros = [b.nest(b.axes(s.shape), lit(0, s.dtype)) for s in shown]
                return (going, number, *rest, *zeros)

            results = branched(b, going, run, stay)
            return results[: self.count + 2], results[self.count + 2 :]

        starts = (b.nest((), self.starting()), b.nest((), _I64_ZERO), *inits)
        lasts, every = scanned(b, trips, starts, step)
        bounds = trips.bounds(b.ranges)
        most = MOST if bounds is None else min(max(bounds[1], 0), MOST)
        length = b.size(lasts[1], "trips", most)
        return (*lasts[2:], *(front(b, t, length) for t in every))


_I64_ZERO = Lit(0, DType.I64)


def _known_bool(t: Tensor) -> bool | None:
    return None if t.array is None else bool(t.array.reshape(-1)[0])
