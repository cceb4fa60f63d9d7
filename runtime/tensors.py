"""Tensors of the caller as DLPack descriptors, without copying where possible."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rutc.runtime.c_interface import CPU, DLTensor, first_byte
from rutc.runtime.dtypes import dlpack_type, numpy_dtype
from rutc.runtime.errors import ModelError
from rutc.runtime.received import Keep, received

Array = npt.NDArray[np.generic]


@runtime_checkable
class DLPackTensor(Protocol):
    """A tensor of any library that can hand out its memory as DLPack describes."""

    def __dlpack__(self) -> object:
        """Returns a capsule that holds a DLManagedTensor."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the device type and number."""
        ...


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output: its name, shape and numpy dtype; `fixed` is what alone it may hold.

    An extent that is known only when the model runs is the name or formula of a size. Where a run
    itself computes the shape of an output, `computed` is set.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[np.generic]
    dtype_name: str
    fixed: bytes | None = None
    computed: bool = False

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        """The shape, or None where it is known only when the model runs."""
        known = tuple(extent for extent in self.shape if isinstance(extent, int))
        return known if len(known) == len(self.shape) else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Returns whether a tensor has this shape, as far as it is known."""
        return len(shape) == len(self.shape) and all(
            isinstance(mine, str) or mine == given
            for mine, given in zip(self.shape, shape, strict=True)
        )

    @property
    def shape_text(self) -> str:
        """The shape as text, sizes by their names: `[batch, 3]`."""
        return f"[{', '.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return f"{self.dtype_name}{self.shape_text}"


def tensor_infos(entries: Sequence[Mapping[str, object]]) -> tuple[TensorInfo, ...]:
    """Returns the inputs or outputs that the manifest lists."""
    infos = []
    for entry in entries:
        dtype, shape = str(entry["dtype"]), entry["shape"]
        if not isinstance(shape, list) or not all(map(_is_extent, shape)):
            raise ModelError(f"it gives {entry['name']} no shape")
        fixed = bytes.fromhex(str(entry["fixed"])) if "fixed" in entry else None
        name, computed = str(entry["name"]), "computed" in entry
        kind = numpy_dtype(dtype)
        infos.append(TensorInfo(name, tuple(shape), kind, dtype, fixed, computed))
    return tuple(infos)


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raises ModelError where what the library says of an output is no shape."""
    if shape and min(shape) < 0:
        raise ModelError(
            f"output {name!r} has no shape for these inputs: {list(shape)} it would be"
        )


def _is_extent(extent: object) -> bool:
    return isinstance(extent, str) or (type(extent) is int and 0 <= extent < 1 << 63)


class Slot:
    """One input or output of a session, and the descriptor that is handed to the library."""

    def __init__(self, role: str, info: TensorInfo) -> None:
        self._role: Final = role
        self._info: Final = info
        ndim = len(info.shape)
        fixed = [extent if isinstance(extent, int) else 0 for extent in info.shape]
        self._shape = (ctypes.c_int64 * ndim)(*fixed)
        self._strides = (ctypes.c_int64 * ndim)()
        code, bits = dlpack_type(info.dtype_name)
        self._tensor = DLTensor(None, CPU, 0, ndim, code, bits, 1, self._shape, None, 0)
        self._address = ctypes.addressof(self._tensor)
        self._usual_dtype = info.dtype
        self._is_buffer = info.dtype.kind in "biufc" and info.dtype.isbuiltin == 1
        self._known_shape = info.known_shape
        # The shape that the descriptor has, if the caller's tensor was the last to be described.
        self._usual_shape = self._known_shape
        self._held: object = None

    def describe(self, value: object) -> int:
        """Returns the address of a descriptor of the caller's tensor, valid until `release`.

        Raises:
            ModelError: it is no tensor, not in CPU memory, or has another dtype or shape.
        """
        if (
            type(value) is np.ndarray
            and value.shape == self._usual_shape
            and value.dtype == self._usual_dtype
            and value.flags.carray
        ):
            # Nothing to check or to convert: small models run as long as what follows takes.
            self._tensor.strides = None
            if self._is_buffer and value.size:
                # A third of the time that the array interface takes.
                self._tensor.data = ctypes.addressof(first_byte(value))
            else:
                self._tensor.data = value.__array_interface__["data"][0]
            self._held = value
            return self._address
        if isinstance(value, np.ndarray | np.generic):
            if self._role == "output" and not isinstance(value, np.ndarray):
                raise ModelError(f"output {self._info.name!r} must be an array, not a number")
            return self._describe_array(np.asarray(value))
        if isinstance(value, DLPackTensor):
            return self._describe_dlpack(value)
        raise ModelError(
            f"{self._role} {self._info.name!r} must be a numpy array or a DLPack tensor, not "
            f"{type(value).__name__}"
        )

    def describe_nothing(self) -> int:
        """Returns the address of a descriptor that asks for the session's own memory."""
        self._tensor.data = None
        self._tensor.strides = None
        if self._known_shape is None:
            self._tensor.shape = None
            self._usual_shape = None
        return self._address

    def describe_shape(self) -> int:
        """Returns the address of a descriptor whose `shape` is to be filled in."""
        self._tensor.shape = self._shape
        self._usual_shape = self._known_shape
        return self._address

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the descriptor."""
        return tuple(self._shape[:])

    def read(self, keep: Keep) -> Array:
        """Returns what the library has described: its memory, if that can be kept, or a copy."""
        tensor = self._tensor
        whole = received(tensor, tensor.extents, self._usual_dtype, keep)
        if whole is not None:
            return whole
        result = np.empty(tensor.extents, self._usual_dtype)
        if result.size:
            address = result.__array_interface__["data"][0]
            ctypes.memmove(address, tensor.data, result.nbytes)
        return result

    def finish(self) -> None:
        """Completes the caller's tensor after a run."""

    def release(self) -> None:
        """Lets go of the caller's tensor."""
        self._held = None

    def _check_fits(self, shape: tuple[int, ...]) -> None:
        """Raises ModelError where a tensor has another shape than the model takes or gives."""
        info = self._info
        if not info.fits(shape):
            raise ModelError(
                f"{self._role} {info.name!r} must have shape {info.shape_text}, not {list(shape)}"
            )

    def _describe_array(self, array: Array) -> int:
        info = self._info
        if array.dtype != info.dtype:
            raise ModelError(
                f"{self._role} {info.name!r} must have dtype {info.dtype_name}, not {array.dtype}"
            )
        self._check_fits(array.shape)
        flags = array.flags
        if self._role == "output":
            if not flags.writeable or not flags.aligned:
                raise ModelError(f"output {info.name!r} must be writeable and aligned")
        elif not flags.aligned:
            array = np.array(array)
            flags = array.flags
        if self._known_shape is None:
            self._shape[:] = list(array.shape)
            self._tensor.shape = self._shape
            self._usual_shape = array.shape
        if flags.c_contiguous:
            self._tensor.strides = None
        else:
            array = self._set_strides(array)
        self._tensor.data = array.ctypes.data
        self._held = array
        return self._address

    def _set_strides(self, array: Array) -> Array:
        """Describes the strides, or those of a dense copy if they are no whole elements."""
        if any(stride % array.itemsize for stride in array.strides):
            if self._role == "output":
                raise ModelError(f"output {self._info.name!r} has strides of no whole elements")
            self._tensor.strides = None
            return np.array(array, order="C")
        for dim, stride in enumerate(array.strides):
            self._strides[dim] = stride // array.itemsize
        self._tensor.strides = self._strides
        return array

    def _describe_dlpack(self, value: DLPackTensor) -> int:
        name = f"{self._role} {self._info.name!r}"
        try:
            device, _ = value.__dlpack_device__()
            if device == CPU:
                self._held = capsule = value.__dlpack__()
                # The managed tensor begins with the descriptor; the capsule stays its owner.
                return int(_capsule_pointer(capsule, b"dltensor"))
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"{name} cannot be exported as DLPack: {error}") from error
        raise ModelError(
            f"{name} is on DLPack device type {int(device)}, not in CPU memory: move it there "
            "first (in PyTorch: tensor.cpu())"
        )


_capsule_pointer: Final = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_capsule_pointer.restype = ctypes.c_void_p
