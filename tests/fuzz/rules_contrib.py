"""What `tests.fuzz.rules` says, of operators of com.microsoft."""

from __future__ import annotations

_SUMS = """
    FusedMatMul TransposeMatMul FusedGemm FusedConv NhwcFusedConv Inverse SkipLayerNormalization
    SkipSimplifiedLayerNormalization EmbedLayerNormalization GridSample Attention MultiHeadAttention
    GroupQueryAttention RotaryEmbedding LinearAttention CausalConvWithState MatMulIntegerToFloat
    DynamicQuantizeMatMul QGemm MatMulNBits DynamicQuantizeLSTM QAttention FastGelu Gelu BiasGelu
    QuickGelu BiasAdd BiasSplitGelu FusedMatMulActivation GemmFastGelu GroupNorm LayerNormalization
    SimplifiedLayerNormalization NhwcConv CDist
"""
_ABSOLUTE = """
    Attention MultiHeadAttention GroupQueryAttention DynamicQuantizeLSTM QAttention FusedGemm
    FusedConv NhwcFusedConv Gelu FastGelu BiasGelu QuickGelu BiasSplitGelu FusedMatMulActivation
    GemmFastGelu GroupNorm
"""
_GATED = "Gelu FastGelu BiasGelu QuickGelu BiasSplitGelu GemmFastGelu GroupNorm"
_EXACT = "ExpandDims NGramRepeatBlock GatherND Trilu Pad NhwcMaxPool"
_FINITE = """
    Attention MultiHeadAttention GroupQueryAttention QAttention DynamicQuantizeLSTM MatMulNBits
    LinearAttention CausalConvWithState FusedConv NhwcFusedConv NhwcConv GridSample Inverse
    NGramRepeatBlock GroupNorm LayerNormalization SimplifiedLayerNormalization BiasSplitGelu
"""
_STEPS = """
    QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearSoftmax QLinearConcat QLinearWhere
    QLinearAveragePool QLinearGlobalAveragePool QLinearConv QGemm QuantizeLinear QLinearReduceMean
"""


def _named(names: str) -> frozenset[str]:
    return frozenset(f"com.microsoft.{n}" for n in names.split())


SINGLE = _named("Gelu QuickGelu FastGelu BiasGelu BiasSplitGelu GemmFastGelu")
SUMS, ABSOLUTE, EXACT = _named(_SUMS), _named(_ABSOLUTE), _named(_EXACT)
GATED = _named(_GATED)
"""Operators that multiply what they are given by a logistic or an error function of it."""
FINITE = _named(_FINITE)
"""Operators on finite numbers: what becomes of others depends on the order of sums and masks."""
_PRODUCTS = """
    FusedMatMul TransposeMatMul MatMulIntegerToFloat DynamicQuantizeMatMul FusedGemm
    FusedMatMulActivation GemmFastGelu
"""
NOT_EMPTY = _named(_PRODUCTS)
"""Operators of which ONNX Runtime does not compute empty products."""
STEPS = _named(_STEPS)
"""Operators whose quantised results may be a step away: ONNX Runtime rounds sums in its order."""
SKIPPING = _named("SkipLayerNormalization SkipSimplifiedLayerNormalization")
"""Operators that add their second operand to the first."""
