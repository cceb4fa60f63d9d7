"""Comparison with ONNX Runtime: verification, bisection and benchmarks of compiled models."""

from rutc.verify.compare import OutputComparison, compare_outputs, compare_values
from rutc.verify.tolerance import Level, Tolerance, tolerance
from rutc.verify.verify import Verification, VerificationFailed, verify_model

__all__ = [
    "Level",
    "OutputComparison",
    "Tolerance",
    "Verification",
    "VerificationFailed",
    "compare_outputs",
    "compare_values",
    "tolerance",
    "verify_model",
]
