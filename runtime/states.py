"""What a session keeps from run to run, as the manifest describes it."""

import ctypes
from collections.abc import Mapping
from typing import Final

import numpy as np

from rutc.runtime.c_interface import DLTensor, StateEntryPoints
from rutc.runtime.errors import ModelError
from rutc.runtime.ports import NodeArg, node_arg
from rutc.runtime.tensors import Array, Slot, TensorInfo, tensor_infos


class States:
    """The states of a library: inputs of a run that have what outputs of the one before had."""

    def __init__(self, manifest: Mapping[str, object]) -> None:
        entries = manifest.get("states", [])
        assert isinstance(entries, list)
        self.inputs: Final = tensor_infos([x["input"] for x in entries])
        self.outputs: Final = tensor_infos([x["output"] for x in entries])
        self.axes: Final = [x.get("axis") for x in entries]
        self.grows: Final = any(axis is not None for axis in self.axes)
        self._names: Final = {
            name: taken
            for taken, given in zip(self.inputs, self.outputs, strict=True)
            for name in (given.name, taken.name)
        }

    def args(self) -> list[NodeArg]:
        """Returns the states as inputs."""
        return [node_arg(info) for info in self.inputs]

    def info(self, name: str) -> TensorInfo:
        """Returns the state of an input, or of the output that it is.

        Raises:
            ModelError: there is none.
        """
        if name not in self._names:
            has = ", ".join(repr(info.name) for info in self.inputs) or "none"
            raise ModelError(f"the model has no state {name!r}; it has {has}")
        return self._names[name]

    def read(self, entries: StateEntryPoints, handle: int, name: str) -> Array | None:
        """Returns a copy of a state; None if the library refuses."""
        info = self.info(name)
        tensor = DLTensor()
        if entries.get_state(handle, info.name.encode(), ctypes.byref(tensor)) != 0:
            return None
        shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        if 0 in shape:
            return np.empty(shape, info.dtype)
        size = info.dtype.itemsize
        dense = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        steps = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else dense
        reach = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + 1
        memory = (ctypes.c_char * (reach * size)).from_address(tensor.data)
        strides = tuple(step * size for step in steps)
        return np.ndarray(shape, info.dtype, memory, 0, strides).copy()

    def shorten(self, entries: StateEntryPoints, handle: int, length: int) -> bool:
        """Cuts all states that grow down to a length; returns whether the library did it.

        Raises:
            ModelError: the length is negative.
        """
        if length < 0:
            raise ModelError(f"states have no length of {length}")
        for info, axis in zip(self.inputs, self.axes, strict=True):
            if axis is None:
                continue
            name, tensor = info.name.encode(), DLTensor()
            if entries.get_state(handle, name, ctypes.byref(tensor)) != 0:
                return False
            if tensor.shape[axis] <= length:
                continue
            shape = (ctypes.c_int64 * tensor.ndim)(*(tensor.shape[d] for d in range(tensor.ndim)))
            shape[axis] = length
            tensor.shape = shape
            if entries.set_state(handle, name, ctypes.byref(tensor)) != 0:
                return False
        return True

    def write(self, entries: StateEntryPoints, handle: int, name: str, value: object) -> int:
        """Copies a tensor into a state and returns the library's answer.

        Raises:
            ModelError: it is no tensor in CPU memory, or has another dtype or shape.
        """
        info = self.info(name)
        slot = Slot("state", info)
        return int(entries.set_state(handle, info.name.encode(), slot.describe(value)))

