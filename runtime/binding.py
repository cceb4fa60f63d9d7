"""Runs that read and write the same tensors, which are described to the library once."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from rutc.runtime.c_interface import Pointer
from rutc.runtime.errors import ModelError
from rutc.runtime.tensors import Slot, TensorInfo

Addresses = ctypes.Array[ctypes.c_void_p]
Arguments = tuple[Pointer, int, Pointer, int]
"""Tables of addresses of descriptors and their lengths, of the inputs and of the outputs."""
Tensors = Sequence[tuple[TensorInfo, object]]


class Binding:
    """A model's run on tensors of the caller; `InferenceSession.bind` makes it.

        binding = session.bind({"x": x}, {"y": y})
        x[:] = 1.0
        binding.run()

    It holds the tensors. A run reads and writes the memory that they had when they were bound.
    """

    def __init__(self, run: Callable[[Arguments], None], inputs: Tensors, outputs: Tensors) -> None:
        self._run = run
        self._slots: list[Slot] = []
        self._arguments = arguments_of(self._table("input", inputs), self._table("output", outputs))

    def run(self) -> None:
        """Runs the model once.

        Raises:
            ModelError: the session is closed, or the run fails.
        """
        self._run(self._arguments)

    def _table(self, role: str, tensors: Tensors) -> Addresses:
        """The addresses of the tensors' descriptors."""
        addresses = []
        for info, value in tensors:
            slot = _slot(role, info)
            addresses.append(slot.describe(value))
            _check_place(role, info, value)
            self._slots.append(slot)
        return (ctypes.c_void_p * len(addresses))(*addresses)


def arguments_of(inputs: Addresses, outputs: Addresses) -> Arguments:
    """Returns what a library's function is passed for descriptors at these addresses."""
    return ctypes.byref(inputs), len(inputs), ctypes.byref(outputs), len(outputs)


def _slot(role: str, info: TensorInfo) -> Slot:
    if info.dtype_name in {"string", "tensor"}:
        raise ModelError(f"{role} {info.name!r} holds objects of Python, which cannot be bound")
    return Slot(role, info)


def _check_place(role: str, info: TensorInfo, value: object) -> None:
    """Raises ModelError where a slot describes a copy of an array."""
    if not isinstance(value, np.ndarray):
        return
    if not value.flags.aligned or any(stride % value.itemsize for stride in value.strides):
        raise ModelError(
            f"{role} {info.name!r} must be aligned and have strides of whole elements to be bound"
        )
