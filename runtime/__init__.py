"""The runtime: loads a compiled model and runs it. Needs numpy and nothing else of rutc."""

from rutc.runtime.binding import Binding
from rutc.runtime.errors import ModelError
from rutc.runtime.ports import NodeArg
from rutc.runtime.session import InferenceSession, load
from rutc.runtime.step_profile import ProfileEntry

__all__ = ["Binding", "InferenceSession", "ModelError", "NodeArg", "ProfileEntry", "load"]
