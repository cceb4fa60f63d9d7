"""Comparison with float64 and ONNX Runtime: verification and benchmarks."""

from rutc.verify.each_target import targets_in, targets_of, verify_targets
from rutc.verify.filtering import Refusal, refusals
from rutc.verify.judging.compare import OutputComparison, compare_outputs, compare_values
from rutc.verify.judging.tolerance import Level, Tolerance, tolerance
from rutc.verify.truth.oracle import BRIEF, THOROUGH, Effort
from rutc.verify.verification import Verification, VerificationFailed
from rutc.verify.verify import verify_model

__all__ = [
    "BRIEF",
    "THOROUGH",
    "Effort",
    "Level",
    "OutputComparison",
    "Refusal",
    "Tolerance",
    "Verification",
    "VerificationFailed",
    "compare_outputs",
    "compare_values",
    "refusals",
    "targets_in",
    "targets_of",
    "tolerance",
    "verify_model",
    "verify_targets",
]
