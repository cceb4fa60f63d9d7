"""LSTM, GRU and RNN: the input's projection for all steps at once, then a scan over time.

The gates are a dim of their own, so that the projection and each step are one contraction:

    p{t,n,g,h} = sum{k} x[t,n,k] * w[g*H + h, k] + bias[g*H + h]
    scan t:  r{n,g,h} = sum{k} hidden[n,k] * r[g*H + h, k], then the cell's formulas
"""

from __future__ import annotations

from collections.abc import Sequence

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.activations import add
from rutc.importer.ops.gate_functions import Function, gate_functions
from rutc.importer.ops.recurrent_layers import Layer, Operands
from rutc.importer.registry import operator
from rutc.tensor_ir import Expr, Index, apply


@operator("LSTM")
def lstm(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    peepholes: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """Long short-term memory [Gers & Schmidhuber 2000]; outputs Y, the last h and the last c.

    With p = x W' + h R' + bias of the gates i, o, f, c in this order, weights P of the peepholes
    i, o, f, and the activations a1, a2, a3:

        i = a1(p_i + P_i * c),  f = a1(p_f + P_f * c),  c' = f * c + i * a2(p_c)
        o = a1(p_o + P_o * c'),  h' = o * a3(c')
    """
    return lstm_of(
        Operands(b, x, w, r, bias, sequence_lens, 4, hidden_size, direction, layout, peepholes),
        (initial_h, initial_c),
        Gates(activations, activation_alpha, activation_beta, clip, input_forget),
    )


@record
class Gates:
    """The attributes of LSTM that say what its gates compute."""

    activations: Sequence[str]
    alpha: Sequence[float]
    beta: Sequence[float]
    clip: float | None
    input_forget: int


def lstm_of(
    shared: Operands, initial: tuple[Tensor | None, Tensor | None], gates: Gates
) -> tuple[Tensor, ...]:
    """LSTM of its operands: the nodes of the formulas at `lstm`."""
    b, peepholes = shared.b, shared.peepholes
    functions = gate_functions(
        gates.activations,
        gates.alpha,
        gates.beta,
        ("Sigmoid", "Tanh", "Tanh"),
        shared.directions,
        gates.clip,
    )

    def cell(layer: Layer, fn: Sequence[Function]) -> tuple[Tensor, list[Tensor]]:
        inputs = layer.inputs()
        size, d = layer.hidden, layer.direction

        def step(t: Index, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
            hidden, memory = states
            part = layer.recurred(hidden)

            def gate(axes: Sequence[Axis], g: int, look: Tensor | None, p: int) -> Expr:
                n, h = axes[0].index, axes[1].index
                total: Expr = apply("add", b.read(inputs, [t, n, g, h]), b.read(part, [n, g, h]))
                if look is not None and peepholes is not None:
                    weight = b.read(peepholes, [d, h + p * size])
                    total = apply("add", total, apply("mul", weight, b.read(look, [n, h])))
                return total

            axes = b.axes(hidden.shape, ("n", "h"))
            forget = fn[0](gate(axes, 2, memory, 2))
            entry = fn[0](gate(axes, 0, memory, 0))
            if gates.input_forget:
                forget = apply("sub", lit(1, entry.dtype), entry)
            kept = apply("mul", forget, b.spread(memory, axes))
            new = apply("mul", entry, fn[1](gate(axes, 3, None, 0)))
            after = b.nest(axes, apply("add", kept, new), hint=f"{b.base}_cell")
            axes = b.axes(hidden.shape, ("n", "h"))
            out = fn[0](gate(axes, 1, after, 1))
            shown = b.nest(axes, apply("mul", out, fn[2](b.spread(after, axes))))
            return shown, after

        return layer.run(step, shared.initial(initial, d))

    return shared.run(cell, functions)


@operator("GRU")
def gru(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    """Gated recurrent units; outputs Y and the last state [Cho et al. 2014].

    With p = x W' + bias and q(h) = h R' + bias of the gates z, r, h in this order, and the
    activations a1, a2:

        z = a1(p_z + q_z(h)),  r = a1(p_r + q_r(h)),  h' = (1 - z) * a2(p_h + s) + z * h

    where s = q_h(r * h), or r * q_h(h) with `linear_before_reset`.
    """
    shared = Operands(b, x, w, r, bias, sequence_lens, 3, hidden_size, direction, layout)
    functions = gate_functions(
        activations, activation_alpha, activation_beta, ("Sigmoid", "Tanh"), shared.directions, clip
    )

    def cell(layer: Layer, fn: Sequence[Function]) -> tuple[Tensor, list[Tensor]]:
        inputs, inner = layer.inputs(recurrent=False), layer.biases(recurrent=True)

        def step(t: Index, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
            (hidden,) = states
            whole = layer.recurred(hidden, None if linear_before_reset else range(2))
            if inner is not None:
                count = 3 if linear_before_reset else 2
                part = b.view(inner, (count, layer.hidden), lambda g, h: [g, h])
                whole = b.map(add, whole, part)

            def gate(axes: Sequence[Axis], g: int) -> Expr:
                n, h = axes[0].index, axes[1].index
                return apply("add", b.read(inputs, [t, n, g, h]), b.read(whole, [n, g, h]))

            axes = b.axes(hidden.shape, ("n", "h"))
            update = b.nest(axes, fn[0](gate(axes, 0)))
            axes = b.axes(hidden.shape, ("n", "h"))
            reset = fn[0](gate(axes, 1))
            if linear_before_reset:
                n, h = axes[0].index, axes[1].index
                scaled_part = apply("mul", reset, b.read(whole, [n, 2, h]))
                total = apply("add", b.read(inputs, [t, n, 2, h]), scaled_part)
                fresh = b.nest(axes, fn[1](total))
            else:
                kept = b.nest(axes, apply("mul", reset, b.spread(hidden, axes)))
                part = layer.recurred(kept, range(2, 3))
                axes = b.axes(hidden.shape, ("n", "h"))
                n, h = axes[0].index, axes[1].index
                total = apply("add", b.read(inputs, [t, n, 2, h]), b.read(part, [n, 0, h]))
                if inner is not None:
                    total = apply("add", total, b.read(inner, [2, h]))
                fresh = b.nest(axes, fn[1](total))

            def mixed(z: Expr, new: Expr, old: Expr) -> Expr:
                left = apply("mul", apply("sub", lit(1, z.dtype), z), new)
                return apply("add", left, apply("mul", z, old))

            return (b.map(mixed, update, fresh, hidden),)

        return layer.run(step, shared.initial([initial_h], layer.direction))

    return shared.run(cell, functions)


@operator("RNN")
def rnn(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """`h` = f(x W' + h R' + bias); outputs Y and the last state."""
    shared = Operands(b, x, w, r, bias, sequence_lens, 1, hidden_size, direction, layout)
    functions = gate_functions(
        activations, activation_alpha, activation_beta, ("Tanh",), shared.directions, clip
    )

    def cell(layer: Layer, fn: Sequence[Function]) -> tuple[Tensor, list[Tensor]]:
        inputs = layer.inputs()

        def step(t: Index, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
            (hidden,) = states
            part = layer.recurred(hidden)
            axes = b.axes(hidden.shape, ("n", "h"))
            n, h = axes[0].index, axes[1].index
            total = apply("add", b.read(inputs, [t, n, 0, h]), b.read(part, [n, 0, h]))
            return (b.nest(axes, fn[0](total)),)

        return layer.run(step, shared.initial([initial_h], layer.direction))

    return shared.run(cell, functions)
