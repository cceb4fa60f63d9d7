"""The runtime: loads a compiled model and runs it. Needs numpy and nothing else of rutc."""

from rutc.runtime.binding import Binding
from rutc.runtime.errors import ModelError
from rutc.runtime.measured import ProfileEntry
from rutc.runtime.ports import NodeArg
from rutc.runtime.session import InferenceSession, load

__all__ = ["Binding", "InferenceSession", "ModelError", "NodeArg", "ProfileEntry", "load"]
