"""What a routine is given, and the meaning of a failure in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from rutc.base.record import record
from rutc.errors import UserError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.graph import Attribute, Origin


@record
class Result:
    """The type and shape of what a routine has to compute."""

    dtype: DType
    shape: tuple[int, ...]


@record
class Job:
    """One call: operands and results with their axes in the call's order.

    `draws` tells how often the session has made this call before, which random routines take in.
    """

    args: Sequence[np.ndarray]
    results: tuple[Result, ...]
    attributes: Mapping[str, Attribute]
    origin: Origin
    draws: int

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute."""
        found = self.attributes[name] if default is None else self.attributes.get(name, default)
        assert isinstance(found, int)
        return found

    def number(self, name: str) -> float:
        """A float attribute."""
        found = self.attributes[name]
        assert isinstance(found, int | float)
        return float(found)

    def text(self, name: str) -> str:
        """A string attribute."""
        return str(self.attributes[name])

    def fail(self, why: str) -> NoReturn:
        """End the run with an error that names the ONNX nodes."""
        raise UserError(f"{', '.join(self.origin) or 'a call'}: {why}")


Routine = Callable[[Job], Sequence[np.ndarray]]
