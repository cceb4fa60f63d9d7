"""Loops: by their trip count a scan, by their condition a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto

from rutc.base.earlier import Earlier
from rutc.errors import UserError
from rutc.importer.any_rank import NeedsRank
from rutc.importer.boxes import inserted, length_of, only_element, type_of
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import Boxed, Item, ListType, Tensor, TensorType, known_ints
from rutc.importer.ops.control import check_condition, tensors
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.operands import indices
from rutc.importer.ops.scans import Carried, carries, counted, states_after
from rutc.importer.ops.size_operands import number
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, Lit, Node, While, apply
from rutc.tensor_ir.indices.affine import ZERO

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

    A scan where nothing but the trip count ends it, else a while. Where trips change the states'
    shapes the loop is written out if the number of trips is known and small; or it carries boxes.
    Where only the first trip changes the states' ranks, as it does if they hold nothing of use
    before it, that one is written out.
    """
    return _Loop(b, trip_count, condition, inits, body).results()


@dataclass
class _Loop:
    b: Builder
    trip_count: Tensor | None
    condition: Tensor | None
    inits: tuple[Item, ...]
    body: GraphProto
    before: int = 0
    """The trips that are written out before the loop."""

    def __post_init__(self) -> None:
        self.count = len(self.inits)
        if self.condition is not None:
            check_condition(self.condition)
        if self.trip_count is not None and self.trip_count.dtype is not DType.I64:
            raise OperatorError(f"the trip count must be one i64, not {self.trip_count}")
        self.start = True if self.condition is None else _known_bool(self.condition)
        self.always = True
        self.limit: Index | None = None
        if self.trip_count is not None and self.trip_count.known is not None:
            (self.limit,) = indices(self.trip_count, "the trip count")
            if self.limit.is_const:
                self.limit = Index.of(max(self.limit.const, 0))

    def results(self) -> tuple[Item, ...]:
        if self.start is False or self.limit == ZERO:
            return self.never()
        before = self.b.place()
        carried: Carried | None = None
        failure: UserError | OperatorError | None = None
        try:
            carried = Carried.of(self.b, self.inits, self.step, self.limit)
        except (UserError, OperatorError) as e:
            failure = e
        steady = carried is not None and carried.states == tuple(map(type_of, self.inits))
        if carried is not None and steady and self.always and self.trip_count is not None:
            return self.counted(carried)
        try:
            made = self.unrolled()
        except (UserError, OperatorError) as e:
            failure = failure or e
            made = None
        if made is not None:
            return made
        self.b.restore(before)
        if (carried is None or _loses_rank(carried, self.inits)) and self.begins():
            try:
                return self.after_first()
            except (UserError, OperatorError) as e:
                failure = failure or e
                self.b.restore(before)
        if carried is not None:
            if self.always and self.trip_count is not None:
                return self.counted(carried)
            # A while counts its trips itself, so nothing is known of the number of one.
            if not carried.opaque:
                carried = Carried.of(self.b, self.inits, self.step, opaque=True)
            return self.repeated(carried)
        assert failure is not None
        if isinstance(failure, NeedsRank):
            raise failure
        if self.limit is None or self.start is None:
            hint = "with a trip count and condition that are known when compiling, short loops can"
            raise OperatorError(f"{failure}; {hint} be written out trip by trip") from failure
        raise failure

    def trip(self, t: Tensor | Index, states: Sequence[Item]) -> tuple[Tensor, tuple[Item, ...]]:
        """(whether to go on, the states and what is collected) after trip t."""
        if isinstance(t, Index):
            t = self.b.constant(known_ints([t + self.before], (), DType.I64), DType.I64)
        elif self.before:
            t = self.b.map(lambda i: apply("add", i, lit(self.before, DType.I64)), t)
        # In a trip that runs, the condition before it held.
        going = self.b.constant(np.array(True))
        made = self.b.subgraph(self.body, (t, going, *states))
        if len(made) <= self.count:
            raise OperatorError(
                f"the body has {len(made)} outputs; {self.count + 1} are needed: "
                "the condition and the carried values"
            )
        (last,) = tensors([only_element(self.b, made[0])])
        check_condition(last)
        return last, made[1:]

    def step(
        self, t: Index | Tensor, states: Sequence[Item]
    ) -> tuple[Sequence[Item], Sequence[Item]]:
        """The states after trip t, and what is collected."""
        going, made = self.trip(t, states)
        self.always = self.always and _known_bool(going) is True
        return made[: self.count], made[self.count :]

    def never(self) -> tuple[Item, ...]:
        """No trip: the states, and stacked outputs without elements; unknown extents are 0."""
        known = Earlier(self.b.ranges)
        with self.b.body([]):
            _, made = self.trip(ZERO, self.inits)
        empty: list[Item] = []
        for t in tensors(made[self.count :]):
            shape = [e if e.names() <= known else ZERO for e in t.shape]
            empty.append(self.b.empty(self.b.axes((0, *shape)), t.dtype))
        return (*self.inits, *empty)

    def begins(self) -> bool:
        """Whether the first trip is known to run, and more than one may."""
        limit = self.limit
        more = self.trip_count is None or (limit is not None and limit.is_const and limit.const > 1)
        return self.start is True and more and not self.before

    # -- ways -----------------------------------------------------------------------------------
    def after_first(self) -> tuple[Item, ...]:
        """As a first trip, and a loop that runs the others."""
        b = self.b
        going, made = self.trip(ZERO, self.inits)
        count = self.trip_count
        if count is not None and self.limit is not None:
            count = b.constant(known_ints([self.limit - 1], (), DType.I64), DType.I64)
        rest = _Loop(b, count, going, made[: self.count], self.body, before=1).results()
        first = [b.reshaped(t, (b.axis(1), *t.axes)) for t in tensors(made[self.count :])]
        others = tensors(rest[self.count :])
        rows = [concat(b, one, more, axis=0) for one, more in zip(first, others, strict=True)]
        return (*rest[: self.count], *rows)

    def counted(self, carried: Carried) -> tuple[Item, ...]:
        """As a scan: nothing but the trip count ends it."""
        lasts, every = counted(self.b, self.trips(), self.inits, self.step, carried)
        return (*lasts, *every)

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
        if most is None and self.trip_count is not None:
            return None
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

    def repeated(self, carried: Carried) -> tuple[Item, ...]:
        """As a while that carries its condition, the trip, the states and what it collects."""
        b = self.b
        lists = tuple(ListType(t) for t in carried.collected)
        every = Carried((*carried.states, *lists), (), opaque=True)
        empty = [Boxed(t, b.constant(np.empty(0, object), DType.TENSOR)) for t in lists]
        first = b.nest((), _I64_ZERO)
        inits = every.packed(b, (*self.inits, *empty))
        spaces = [b.axes(s.shape) for s in inits]
        starts = [
            self.within(first, self.starting()),
            first,
            *(b.defined(b.relabelled(s, a)) for s, a in zip(inits, spaces, strict=True)),
        ]
        params = [b.tensor(s.dtype, s.axes, f"{b.base}_state") for s in starts]
        with b.body([]) as nodes:
            states = every.unpacked(b, params[2:])
            last, made = self.trip(params[1], states[: self.count])
            if self.trip_count is None and _known_bool(last):
                raise OperatorError("the loop never ends: its condition is always true")
            trip = b.map(lambda i: apply("add", i, lit(1, DType.I64)), params[1])
            longer = [
                inserted(b, rows, item, number(length_of(rows)))
                for rows, item in zip(states[self.count :], made[self.count :], strict=True)
                if isinstance(rows, Boxed)
            ]
            after = [self.within(trip, b.read(last, [0] * last.rank)), trip]
            nexts = every.packed(b, (*made[: self.count], *longer))
            after += states_after(b, params[2:], nexts, spaces)
        outs = [b.tensor(p.dtype, p.axes) for p in params]
        moved = carries(b, params, starts, after)
        values = tuple(b.value(o) for o in outs)
        inner: tuple[Node, ...] = tuple(nodes)
        b.nodes.append(While(values, params[0].name, moved, inner, b.origin))
        found = every.unpacked(b, outs[2:])
        rows = [every.stacked(b, r) for r in found[self.count :] if isinstance(r, Boxed)]
        return (*found[: self.count], *rows)

    def within(self, trip: Tensor, going: Expr) -> Tensor:
        """Whether the condition holds and the trip count is not reached."""
        if self.trip_count is None:
            return self.b.nest((), going)
        limit = self.b.read(self.trip_count, [0] * self.trip_count.rank)
        left = apply("lt", self.b.read(trip, []), limit)
        return self.b.nest((), apply("and", going, left))


_I64_ZERO = Lit(0, DType.I64)


def _loses_rank(carried: Carried, inits: Sequence[Item]) -> bool:
    """Whether trips give a state another rank than it has at first."""
    return any(
        isinstance(state, TensorType) and state.shape is None and isinstance(init, Tensor)
        for state, init in zip(carried.states, inits, strict=True)
    )


def _known_bool(t: Tensor) -> bool | None:
    return None if t.array is None else bool(t.array.reshape(-1)[0])
