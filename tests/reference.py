"""Sessions of ONNX Runtime where tests take its answers for the right ones."""

import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Lacking

CPU = ["CPUExecutionProvider"]


def exact_options() -> onnxruntime.SessionOptions:
    """Quiet, and with exact products of 8-bit numbers.

    Where a CPU has no dot products of bytes, ONNX Runtime's sums of two products saturate by
    default.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def oracle(model: bytes) -> onnxruntime.InferenceSession:
    """A session with exact products, unless ONNX Runtime lacks what it makes of an operator then.

    Of QGemm with weights of signed numbers it makes one with other types, which it does not have.
    """
    try:
        return onnxruntime.InferenceSession(model, exact_options(), providers=CPU)
    except Lacking:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(model, options, providers=CPU)
