"""Operands that say how an operator works (axes, shapes, pads): they must be known at import."""

from __future__ import annotations

import numpy as np

from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor, ints_of
from rutc.tensor_ir import Index


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis. Raises OperatorError where it is out of range."""
    if not -rank <= axis < rank:
        raise OperatorError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Non-negative axes. Raises OperatorError where one is out of range or named twice."""
    found = tuple(axis_of(a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise OperatorError(f"axes {axes} name an axis twice")
    return found


def indices(t: Tensor, what: str) -> tuple[Index, ...]:
    """The elements of a known integer operand, as expressions of the symbolic sizes."""
    if t.known is None:
        raise OperatorError(
            f"{what} is computed at run time; it must be known when compiling "
            "(where it is an input, --value fixes it)"
        )
    return ints_of(t.known)


def ints(t: Tensor, what: str) -> tuple[int, ...]:
    """The elements of a known integer operand without symbolic sizes."""
    found = indices(t, what)
    if not all(i.is_const for i in found):
        text = ", ".join(map(str, found))
        raise OperatorError(f"{what} ({text}) depends on a symbolic size; fix that size")
    return tuple(i.const for i in found)


def array(t: Tensor, what: str) -> np.ndarray:
    """The elements of a known operand."""
    if t.array is None:
        raise OperatorError(
            f"{what} is computed at run time; it must be known when compiling "
            "(where it is an input, --value fixes it)"
        )
    return t.array


def static(extent: Index, what: str) -> int:
    """An extent that is a number."""
    if not extent.is_const:
        raise OperatorError(f"{what} is the symbolic size {extent}; fix it")
    return extent.const
