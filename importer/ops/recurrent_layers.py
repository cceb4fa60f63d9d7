"""What LSTM, GRU and RNN have in common: projections, steps over time, lengths, directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import add
from rutc.importer.ops.contraction import sum_products
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.fixed_point import Stored
from rutc.importer.ops.gate_functions import Function
from rutc.importer.ops.movement import reversed_within, transpose
from rutc.importer.ops.operands import static
from rutc.importer.ops.positions import checked_lengths
from rutc.importer.ops.reductions import reduced
from rutc.importer.ops.scans import scanned
from rutc.importer.ops.size_operands import bound
from rutc.tensor_ir import DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO

Step = Callable[[Index, Sequence[Tensor]], tuple[Tensor, ...]]


@record
class Layer:
    """One direction of a recurrent layer over x{time, batch, features}."""

    b: Builder
    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None
    direction: int
    gates: int
    hidden: int
    lengths: Tensor | None
    stored: tuple[Stored, Stored] | None = None
    """The weights as numbers in few bits, by which products are computed in fixed point."""

    def inputs(self, *, recurrent: bool = True) -> Tensor:
        """p{time, batch, gate, hidden}: the input's part of every gate, with the bias.

        Where it is `recurrent`, the bias of the state's part is added, too.
        """
        own = self.biases(recurrent=False)
        offset = _added(self.b, [own, self.biases(recurrent=True) if recurrent else None])
        projected = self._projected()
        return projected if offset is None else self.b.map(add, projected, offset)

    def _projected(self) -> Tensor:
        """The product of the input at every step with the weights of every gate."""
        b, x = self.b, self.x
        steps, batch = b.axis(x.shape[0], "t"), b.axis(x.shape[1], "n")
        g, h, k = b.axis(self.gates, "g"), b.axis(self.hidden, "h"), b.axis(x.shape[2], "k")
        row = g.index * self.hidden + h.index
        if self.stored is not None:
            return self.stored[0].sums(b, x, self.direction, (g, h), row)
        factors = (
            b.read(x, [steps.index, batch.index, k.index]),
            b.read(self.w, [self.direction, row, k.index]),
        )
        return sum_products(b, (steps, batch, g, h), (k,), factors, x.dtype)

    def recurred(self, state: Tensor, gates: range | None = None) -> Tensor:
        """The state's part {batch, gate, hidden} of some gates (all by default)."""
        b = self.b
        chosen = gates or range(self.gates)
        batch, k = b.axis(state.shape[0], "n"), b.axis(state.shape[1], "k")
        g, h = b.axis(len(chosen), "g"), b.axis(self.hidden, "h")
        row = (g.index + chosen.start) * self.hidden + h.index
        if self.stored is not None:
            return self.stored[1].sums(b, state, self.direction, (g, h), row)
        factors = (
            b.read(state, [batch.index, k.index]),
            b.read(self.r, [self.direction, row, k.index]),
        )
        return sum_products(b, (batch, g, h), (k,), factors, state.dtype)

    def biases(self, *, recurrent: bool) -> Tensor | None:
        """The bias {gate, hidden} of the input's or of the state's projection."""
        b = self.b
        if self.bias is None:
            return None
        first = self.gates * self.hidden if recurrent else 0
        bias, direction, hidden = self.bias, self.direction, self.hidden

        def at(g: Index, h: Index) -> tuple[Index, Index]:
            return Index.of(direction), g * hidden + h + first

        return b.view(bias, (self.gates, self.hidden), at, ("g", "h"))

    def run(self, step: Step, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The first state after every step {time, batch, hidden}, and all states at the end."""

        def trip(t: Index, before: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            after = self._masked(t, step(t, before), before)
            return after, (self._output(t, after[0]),)

        lasts, (every,) = scanned(self.b, self.x.shape[0], states, trip)
        return every, [self._last(s, first) for s, first in zip(lasts, states, strict=True)]

    def _last(self, state: Tensor, first: Tensor) -> Tensor:
        """A state at the end; 0, as ONNX Runtime has it, of a sequence without steps."""
        if self.lengths is None or (first.array is not None and not first.array.any()):
            return state
        return self._while_running(self.lengths, ZERO, state)

    def _while_running(
        self, lengths: Tensor, t: Index, state: Tensor, ended: Tensor | None = None
    ) -> Tensor:
        """A state of sequences that have a step t; of those that ended before another one, or 0."""
        axes = self.b.axes(state.shape)
        running = apply("gt", _as_i64(self.b.read(lengths, [axes[0].index])), IndexValue(t))
        new = self.b.spread(state, axes)
        old = lit(0, state.dtype) if ended is None else self.b.spread(ended, axes)
        return self.b.nest(axes, apply("select", running, new, old))

    def _masked(
        self, t: Index, after: tuple[Tensor, ...], before: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The states after a step; those of a sequence that has ended stay."""
        if self.lengths is None:
            return after
        pairs = zip(after, before, strict=True)
        return tuple(self._while_running(self.lengths, t, new, old) for new, old in pairs)

    def _output(self, t: Index, state: Tensor) -> Tensor:
        """What a step gives: the state, 0 where the sequence has ended."""
        if self.lengths is None:
            return state
        return self._while_running(self.lengths, t, state)


def _as_i64(e: Expr) -> Expr:
    return cast(e, DType.I64)


def _added(b: Builder, parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of those that are given."""
    given = [p for p in parts if p is not None]
    if len(given) < 2:
        return given[0] if given else None
    return b.map(add, given[0], given[1])


def _reversed(b: Builder, x: Tensor, lengths: Tensor | None) -> Tensor:
    """`x` with its time axis (the first) reversed, each sequence within its length."""
    if lengths is not None:
        return reversed_within(b, x, lengths, 1, 0)
    n = x.shape[0]
    if n == ONE:
        return x
    return b.view(x, x.shape, lambda t, *rest: [n - 1 - t, *rest])


def swapped(b: Builder, t: Tensor) -> Tensor:
    """`t` with its first two axes exchanged."""
    return transpose(b, t, perm=(1, 0, *range(2, t.rank)))


def _check_rows(b: Builder, t: Tensor | None, shape: tuple[int, int], what: str) -> None:
    """Raises OperatorError where an operand that is given is not of a shape."""
    if t is None:
        return
    if t.rank != 2:
        raise OperatorError(f"{what} {t} is not of rank 2")
    for extent, wanted in zip(t.shape, shape, strict=True):
        b.number(extent, wanted, f"an extent of {what}")


Cell = Callable[[Layer, Sequence[Function]], tuple[Tensor, list[Tensor]]]


@record
class Operands:
    """The operands and attributes that LSTM, GRU and RNN share."""

    b: Builder
    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None
    lengths: Tensor | None
    gates: int
    hidden_size: int | None
    direction: str
    layout: int
    peepholes: Tensor | None = None
    stored: tuple[Stored, Stored] | None = None

    @property
    def directions(self) -> int:
        """How many ways the layer goes over time."""
        return 2 if self.direction == "bidirectional" else 1

    def run(self, cell: Cell, functions: Sequence[Sequence[Function]]) -> tuple[Tensor, ...]:
        """Y and the last states, in the layout asked for."""
        b = self.b
        names = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
        if self.direction not in names:
            raise OperatorError(f"direction {self.direction!r} is unknown")
        ways = names[self.direction]
        if not self.x.rank == self.w.rank == self.r.rank == 3:
            raise OperatorError(f"the operands {self.x}, {self.w} and {self.r} are not of rank 3")
        if self.hidden_size is None:
            hidden = static(self.r.shape[2], "the hidden size")
        else:
            hidden = b.number(self.r.shape[2], self.hidden_size, "the hidden size of the weights")
        for t in (self.w, self.r):
            b.number(t.shape[0], len(ways), "the number of directions of the weights")
            b.number(t.shape[1], self.gates * hidden, "the number of rows of the weights")
        _check_rows(b, self.bias, (len(ways), 2 * self.gates * hidden), "the bias")
        _check_rows(b, self.peepholes, (len(ways), 3 * hidden), "the peepholes' weights")
        x = swapped(b, self.x) if self.layout else self.x
        if x.shape[2] != self.w.shape[2]:
            features = b.same(x.shape[2], self.w.shape[2])
            x = b.view(x, (*x.shape[:2], features), lambda *at: at)
        lengths = self._lengths(x)
        full, steps = x.shape[0], self._steps(x.shape[0], lengths)
        if steps != full:
            x = b.view(x, (steps, *x.shape[1:]), lambda *at: at)
        outputs: list[Tensor] = []
        states: list[list[Tensor]] = []
        for d, backward in enumerate(ways):
            source = _reversed(b, x, lengths) if backward else x
            layer = Layer(
                b, source, self.w, self.r, self.bias, d, self.gates, hidden, lengths, self.stored
            )
            every, last = cell(layer, functions[d])
            outputs.append(_reversed(b, every, lengths) if backward else every)
            states.append(last)
        units = [b.reshaped(y, (y.axes[0], b.axis(1), *y.axes[1:])) for y in outputs]
        y = concat(b, *units, axis=1)
        if steps != full:
            y = b.view(y, (full, *y.shape[1:]), lambda *at: at, fill=lit(0, y.dtype))
        ends = [
            concat(b, *(b.reshaped(s, (b.axis(1), *s.axes)) for s in last), axis=0)
            for last in zip(*states, strict=True)
        ]
        if self.layout:
            y = transpose(b, y, perm=(2, 0, 1, 3))
            ends = [swapped(b, s) for s in ends]
        return (y, *ends)

    def _lengths(self, x: Tensor) -> Tensor | None:
        """The sequences' lengths; None where all last to the end."""
        if self.lengths is None:
            return None
        known = self.lengths.array
        full = x.shape[0]
        if known is not None and full.is_const and np.all(known == full.const):
            return None
        return checked_lengths(self.b, self.lengths, full)

    def _steps(self, full: Index, lengths: Tensor | None) -> Index:
        """The steps of the longest sequence: those that are padding of all are left out.

        There is one at least where there is one in every run.
        """
        if lengths is None:
            return full
        if lengths.array is not None:
            return Index.of(max(int(lengths.array.max(initial=0)), 1))
        b = self.b
        low, high = full.bounds(b.ranges) or (0, MOST)
        least = min(max(low, 0), 1)
        longest = b.read(reduced(b, lengths, (0,), "max", keepdims=False), [])
        some = apply("max", _as_i64(longest), lit(least, DType.I64))
        steps = bound(b, some, "steps", high, least)
        b.longest_of[next(iter(steps.names()))] = full
        return steps

    def initial(self, given: Sequence[Tensor | None], direction: int) -> list[Tensor]:
        """The initial states {batch, hidden} of a direction; 0 where none is given."""
        b = self.b
        shape = (self.x.shape[0 if self.layout else 1], self.r.shape[2])
        states = [swapped(b, s) if s is not None and self.layout else s for s in given]
        for s in states:
            if s is None:
                continue
            if s.rank != 3 or (s.shape[2].is_const and s.shape[2] != self.r.shape[2]):
                raise OperatorError(f"the initial state {s} does not fit {self.x}")
            shape = (b.same(shape[0], s.shape[1]), b.same(shape[1], s.shape[2]))

        def start(s: Tensor | None) -> Tensor:
            if s is None:
                return b.nest(b.axes(shape, ("n", "h")), lit(0, self.x.dtype))
            if s.shape[0] == ONE and s.shape[1:] == shape:
                return b.reshaped(s, s.axes[1:])
            return b.view(s, shape, lambda n, h: [Index.of(direction), n, h], ("n", "h"))

        return [start(s) for s in states]
