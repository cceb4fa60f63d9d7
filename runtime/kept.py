"""What a session keeps from run to run, as the manifest describes it."""

import ctypes
from typing import Final

import numpy as np

from rutc.runtime.c_interface import DLTensor, Pointer, StateEntryPoints
from rutc.runtime.dtypes import dlpack_type
from rutc.runtime.errors import ModelError
from rutc.runtime.loader import Library
from rutc.runtime.ports import NodeArg, named, node_arg
from rutc.runtime.tensors import Array, Slot, TensorInfo, tensor_infos


class States:
    """The states of a library: inputs of a run that have what outputs of the one before had."""

    def __init__(self, library: Library) -> None:
        entries = library.manifest.get("states", [])
        if not isinstance(entries, list):
            raise ModelError("its states are no list")
        self.inputs: Final = tensor_infos([x["input"] for x in entries])
        self.outputs: Final = tensor_infos([x["output"] for x in entries])
        self.axes: Final[list[int | None]] = [
            _told("axis", x.get("axis"), len(info.shape))
            for x, info in zip(entries, self.inputs, strict=True)
        ]
        """Along which each grows; None: it does not."""
        self.most: Final[list[int]] = [_told("capacity", x.get("capacity")) or 0 for x in entries]
        """How many elements along that axis each has room for."""
        self.grows: Final = any(axis is not None for axis in self.axes)
        self._entries: Final = library.states
        self._last_error: Final = library.entries.last_error
        self._names: Final = {
            name: taken
            for taken, given in zip(self.inputs, self.outputs, strict=True)
            for name in (given.name, taken.name)
        }

    def args(self) -> list[NodeArg]:
        """Returns the states as inputs."""
        return [node_arg(info) for info in self.inputs]

    def read(self, handle: Pointer, name: str) -> Array:
        """Returns a copy of a state.

        Raises:
            ModelError: there is none of this name, or the library has it in another type.
        """
        info, tensor = self._info(name), DLTensor()
        self._describe(handle, info, tensor)
        if (tensor.code, tensor.bits) != dlpack_type(info.dtype_name):
            raise ModelError(f"the library has another type of {name!r} than {info.dtype_name}")
        shape = tensor.extents
        if 0 in shape:
            return np.empty(shape, info.dtype)
        dense = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        steps = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else dense
        size = info.dtype.itemsize
        reach = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + 1
        memory = memoryview((ctypes.c_char * (reach * size)).from_address(tensor.data))
        return np.ndarray(shape, info.dtype, memory, 0, [step * size for step in steps]).copy()

    def write(self, handle: Pointer, name: str, value: object) -> None:
        """Copies a tensor into a state.

        Raises:
            ModelError: there is no such state, or it cannot be that tensor.
        """
        info = self._info(name)
        slot = Slot("state", info)
        self._check(handle, self._calls().set_state(handle, _text(info), slot.describe(value)))

    def shorten(self, handle: Pointer, length: int) -> None:
        """Cuts all states that grow down to a length.

        Raises:
            ModelError: the length is negative.
        """
        if length < 0:
            raise ModelError(f"states have no length of {length}")
        for info, axis in zip(self.inputs, self.axes, strict=True):
            if axis is None:
                continue
            tensor = DLTensor()
            self._describe(handle, info, tensor)
            if tensor.shape[axis] <= length:
                continue
            shape = (ctypes.c_int64 * tensor.ndim)(*tensor.extents)
            shape[axis] = length
            tensor.shape = shape
            address = ctypes.byref(tensor)
            self._check(handle, self._calls().set_state(handle, _text(info), address))

    def reset(self, handle: Pointer) -> None:
        """Makes all states as in a new session."""
        if self.inputs:
            self._check(handle, self._calls().reset(handle))

    def _describe(self, handle: Pointer, info: TensorInfo, tensor: DLTensor) -> None:
        address = ctypes.byref(tensor)
        self._check(handle, self._calls().get_state(handle, _text(info), address))

    def _calls(self) -> StateEntryPoints:
        if self._entries is None:
            raise ModelError("the library has no functions for the states that it lists")
        return self._entries

    def _check(self, handle: Pointer, status: int) -> None:
        if status != 0:
            raise ModelError(self._last_error(handle).decode(errors="replace"))

    def _info(self, name: str) -> TensorInfo:
        if name not in self._names:
            has = named("state", [info.name for info in self.inputs])
            raise ModelError(f"the model has no state {name!r}; it has {has}")
        return self._names[name]


def _told(what: str, found: object, limit: int = 1 << 63) -> int | None:
    """What the manifest says of a state, below a limit; None where it says nothing of it."""
    if found is None or (type(found) is int and 0 <= found < limit):
        return found
    raise ModelError(f"the {what} of a state cannot be {found!r}")


def _text(info: TensorInfo) -> bytes:
    return info.name.encode()
