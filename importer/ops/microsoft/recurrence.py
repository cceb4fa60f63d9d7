"""Linear attention and causal convolution with what com.microsoft adds to the standard's."""

from __future__ import annotations

from rutc.importer.builder import Builder, OperatorError
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.recurrence import causal_conv_with_state, linear_attention
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor


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
