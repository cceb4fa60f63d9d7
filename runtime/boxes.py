"""Sequences whose length a run tells: lists of arrays as descriptors of descriptors."""

import ctypes
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rutc.runtime.c_interface import CPU, DLTensor
from rutc.runtime.dtypes import dlpack_type, numpy_dtype
from rutc.runtime.errors import ModelError
from rutc.runtime.objects import Objects
from rutc.runtime.received import Keep
from rutc.runtime.tensors import Array, Slot, TensorInfo
from rutc.runtime.texts import TextSlot, records_of, texts_at

MOST_DEPTH: Final = 32
"""Lists may be in lists so deep."""
_HANDLE: Final = 3
_TEXT_BITS: Final = 128
_NAMES: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_FLOAT8: Final = {
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}


class BoxSlot(Slot):
    """An input or output whose elements are addresses of descriptors of tensors."""

    def __init__(self, role: str, info: TensorInfo) -> None:
        super().__init__(role, info)
        self._array: Array | None = None
        self._addresses = (ctypes.c_void_p * 1)()

    def describe(self, value: object) -> int:
        """Returns the address of a descriptor of the elements, valid until `release`.

        Takes a sequence of arrays, or of sequences of them.

        Raises:
            ModelError: an element is neither, or there are more or fewer than the model takes.
        """
        items = None
        if isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim > 0):
            items = list(value)
        if items is None or not self._info.fits((len(items),)):
            raise ModelError(
                f"{self._role} {self._info.name!r} must be a list of {self._info.shape[0]} tensors"
            )
        self._shape[0] = len(items)
        self._tensor.shape = self._shape
        if self._role == "output":
            if (
                not isinstance(value, np.ndarray)
                or value.dtype != object
                or value.ndim != 1
                or not value.flags.writeable
            ):
                raise ModelError(f"output {self._info.name!r} must be a writeable row of objects")
            self._array = value
            self._addresses = (ctypes.c_void_p * max(len(items), 1))()
        else:
            held: list[object] = []
            self._addresses = _addresses(self._info.name, items, held)
            self._held = held
        self._tensor.data = ctypes.addressof(self._addresses)
        return self._address

    def finish(self) -> None:
        """Puts the elements of an output into the caller's array."""
        if self._array is not None:
            self._array[:] = _objects(self._addresses[: self._array.size])

    def read(self, keep: Keep) -> Array:
        """Returns copies of the elements that the library has described, as objects."""
        count = self._tensor.shape[0]
        return _objects(_pointers(self._tensor, count))

    def release(self) -> None:
        """Lets go of the caller's arrays."""
        super().release()
        self._array = None


def slot_of(role: str, info: TensorInfo, objects: Objects | None) -> Slot:
    """The slot of an input or output."""
    if info.dtype_name == "tensor":
        return BoxSlot(role, info)
    return TextSlot(role, info, objects) if info.dtype_name == "string" else Slot(role, info)


def check_depth(name: str, depth: int) -> None:
    """Raises ModelError for lists of an input that are too deep in others."""
    if depth > MOST_DEPTH:
        raise ModelError(
            f"input {name!r} has lists in lists more than {MOST_DEPTH} deep, or one in itself"
        )


def _addresses(
    name: str, items: Sequence[object], held: list[object], depth: int = 1
) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses of descriptors; `held` keeps what they point to."""
    check_depth(name, depth)
    addresses = (ctypes.c_void_p * max(len(items), 1))()
    for place, item in enumerate(items):
        tensor = _described(name, item, held, depth)
        held.append(tensor)
        addresses[place] = ctypes.addressof(tensor)
    held.append(addresses)
    return addresses


def _described(name: str, item: object, held: list[object], depth: int) -> DLTensor:
    if isinstance(item, list | tuple):
        shape = (ctypes.c_int64 * 1)(len(item))
        inner = ctypes.addressof(_addresses(name, item, held, depth + 1))
        return DLTensor(inner, CPU, 0, 1, _HANDLE, 64, 1, shape, None, 0)
    if not isinstance(item, np.ndarray | np.generic):
        raise ModelError(
            f"input {name!r} must be a list of numpy arrays, not of {type(item).__name__}"
        )
    array = np.asarray(item)
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    if array.dtype.kind in "OUST":
        records, memory = records_of(array, f"input {name!r}")
        held += [records, memory]
        code, bits, address = _HANDLE, _TEXT_BITS, records.ctypes.data
    else:
        if not array.dtype.isnative:
            raise ModelError(
                f"input {name!r} has elements of {array.dtype}, which is another byte order"
            )
        try:
            code, bits = dlpack_type(array.dtype.name)
        except ModelError as error:
            raise ModelError(f"input {name!r} has elements of {array.dtype}: {error}") from error
        array = np.ascontiguousarray(array)
        held.append(array)
        address = array.ctypes.data
    return DLTensor(address, CPU, 0, array.ndim, code, bits, 1, shape, None, 0)


def _pointers(tensor: DLTensor, count: int) -> list[int | None]:
    """The elements of a tensor of addresses."""
    return list((ctypes.c_void_p * count).from_address(tensor.data)) if count else []


def _objects(addresses: Sequence[int | None]) -> Array:
    """Copies of the described tensors, lists for sequences."""
    found: npt.NDArray[np.object_] = np.empty(len(addresses), object)
    for place, address in enumerate(addresses):
        found[place] = _read(DLTensor.from_address(address or 0))
    return found


def _read(tensor: DLTensor) -> object:
    shape = tensor.extents
    count = math.prod(shape)
    if tensor.code == _HANDLE:
        if tensor.bits == _TEXT_BITS:
            return texts_at(tensor.data or 0, shape)
        return list(_objects(_pointers(tensor, count)))
    name = _FLOAT8.get(tensor.code) or f"{_NAMES.get(tensor.code, '?')}{tensor.bits}"
    array: Array = np.empty(shape, np.bool_ if name == "bool8" else numpy_dtype(name))
    if count:
        ctypes.memmove(array.ctypes.data, tensor.data, array.nbytes)
    return array
