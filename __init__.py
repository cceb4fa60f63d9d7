"""rutc: an ahead-of-time compiler from ONNX models to standalone shared libraries.

    rutc.compile("model.onnx", "model.so")            # compile and check against ONNX Runtime
    session = rutc.load("model.so", threads=2)        # needs numpy only
    outputs = session.run(None, {"x": array})

Importing `rutc` is light: the compiler, ONNX and ONNX Runtime are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rutc.driver.api import Compiled, compile
    from rutc.errors import UserError
    from rutc.runtime import InferenceSession, ModelError, load
    from rutc.verify import VerificationFailed

__version__ = "0.1.0"

__all__ = [
    "Compiled",
    "InferenceSession",
    "ModelError",
    "UserError",
    "VerificationFailed",
    "__version__",
    "compile",
    "load",
]

_HOME = {
    "Compiled": "rutc.driver.api",
    "InferenceSession": "rutc.runtime",
    "ModelError": "rutc.runtime",
    "UserError": "rutc.errors",
    "VerificationFailed": "rutc.verify",
    "compile": "rutc.driver.api",
    "load": "rutc.runtime",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'rutc' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
