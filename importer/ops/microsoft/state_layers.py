"""Layers with a state, as com.microsoft has them beside the standard's."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import mul
from rutc.importer.ops.fixed_point import stored
from rutc.importer.ops.linear_attention import causal_conv_with_state, linear_attention
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.recurrent import Gates, lstm_of
from rutc.importer.ops.recurrent_layers import Operands
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO


@operator("LinearAttention", DOMAIN)
def linear_attention_of_one_state(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, ...]:
    """LinearAttention of the standard."""
    if state_window:
        raise OperatorError("states of several steps (state_window) are not supported")
    return linear_attention(
        b,
        query,
        key,
        value,
        past,
        decay,
        beta,
        kv_num_heads=kv_num_heads,
        q_num_heads=q_num_heads,
        scale=scale,
        update_rule=update_rule,
    )


@operator("CausalConvWithState", DOMAIN)
def causal_conv_of_one_axis(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    ndim: int = 1,
    state_window: int = 0,
) -> tuple[Tensor, ...]:
    """CausalConvWithState of the standard."""
    if channels_last or dilation != 1 or ndim != 1 or state_window:
        raise OperatorError("only one axis, after the channels, without dilation is supported")
    return causal_conv_with_state(b, x, w, bias, past, activation=activation)


def _real(b: Builder, w: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Quantised weights {directions, k, gates} as real ones {directions, gates, k}."""
    axes = b.axes((w.shape[0], w.shape[2], w.shape[1]))
    d, g, k = (a.index for a in axes)

    def by(t: Tensor) -> Expr:
        """The element for a direction, or for each of its gates."""
        at = [d] if t.rank == 1 else [d, ZERO if t.shape[1] == ONE else g]
        return b.read(t, at)

    wide = apply("sub", cast(b.read(w, [d, k, g]), DType.I32), cast(by(zero), DType.I32))
    return b.nest(axes, mul(cast(wide, scale.dtype), by(scale)))


@operator("DynamicQuantizeLSTM", DOMAIN)
def dynamic_quantize_lstm(
    b: Builder,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    peepholes: Tensor | None,
    w_scale: Tensor,
    w_zero: Tensor,
    r_scale: Tensor,
    r_zero: Tensor,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Tensor, ...]:
    """LSTM with quantised weights, by which rows in fixed point are multiplied."""
    real = _real(b, w, w_scale, w_zero), _real(b, r, r_scale, r_zero)
    known = stored(b, w, w_scale, w_zero), stored(b, r, r_scale, r_zero)
    both = (known[0], known[1]) if known[0] is not None and known[1] is not None else None
    shared = Operands(
        b, x, *real, bias, sequence_lens, 4, hidden_size, direction, 0, peepholes, both
    )
    gates = Gates(activations, activation_alpha, activation_beta, clip, input_forget)
    return lstm_of(shared, (initial_h, initial_c), gates)
