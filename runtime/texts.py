"""Tensors of strings: numpy's object arrays as descriptors of addresses and lengths."""

import ctypes
import math

import numpy as np

from rutc.runtime.errors import ModelError
from rutc.runtime.objects import Objects, address_of
from rutc.runtime.received import Keep
from rutc.runtime.tensors import Array, Slot, TensorInfo


class TextSlot(Slot):
    """An input or output of strings; its elements are pairs (address of UTF-8 bytes, length)."""

    def __init__(self, role: str, info: TensorInfo, objects: Objects | None = None) -> None:
        super().__init__(role, info)
        self._objects = objects
        self._records: Array = np.zeros(0, np.int64)
        self._array: Array | None = None

    def describe(self, value: object) -> int:
        """Returns the address of a descriptor of the strings, valid until `release`.

        Takes arrays of `str` or `bytes`, in numpy's own string types or as objects.

        Raises:
            ModelError: they are no strings or have another shape.
        """
        info = self._info
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ModelError(f"{self._role} {info.name!r} must be an array: {error}") from error
        if array.dtype.kind not in "OUST":
            raise ModelError(f"{self._role} {info.name!r} must be strings, not {array.dtype}")
        self._check_fits(array.shape)
        for axis, extent in enumerate(array.shape):
            self._shape[axis] = extent
        self._tensor.shape = self._shape
        if self._role == "output":
            self._records = np.zeros((max(array.size, 1), 2), np.int64)
            self._tensor.data = self._records.ctypes.data
            # That of another class is looked at through one of numpy's own, in the same memory.
            own = isinstance(value, np.ndarray)
            if not own or array.dtype != object or not array.flags.writeable:
                raise ModelError(f"output {info.name!r} must be a writeable array of objects")
            self._array = array
        else:
            self._records, self._held = self._described(array)
            self._tensor.data = self._records.ctypes.data
        return self._address

    def _described(self, array: Array) -> tuple[Array, object]:
        """The pairs (address, length) of an input's strings, and what owns their text."""
        if self._objects is not None and array.dtype.kind in "OUT":
            # Objects of its own, which nobody else may take away during the run.
            texts: Array = array.astype(object, order="C")
            records = np.zeros((max(texts.size, 1), 2), np.int64)
            try:
                self._objects.read(address_of(texts), texts.size, records.ctypes.data)
            except (TypeError, UnicodeError):
                pass  # What is wrong with them is said below.
            else:
                return records, texts
        return records_of(array, f"input {self._info.name!r}")

    def finish(self) -> None:
        """Puts the strings of an output into the caller's array."""
        if self._array is not None:
            self._array[...] = self._made(self._records.ctypes.data, self._array.shape)

    def _made(self, address: int, shape: tuple[int, ...]) -> Array:
        """The strings of pairs (address, length) at an address."""
        if self._objects is None:
            return texts_at(address, shape)
        texts: Array = np.empty(shape, object)
        self._objects.write(address, texts.size, address_of(texts))
        return texts

    def read(self, keep: Keep) -> Array:
        """Returns a copy of the strings that the library has described."""
        return self._made(self._tensor.data or 0, self._tensor.extents)

    def release(self) -> None:
        """Lets go of the caller's arrays."""
        super().release()
        self._array = None


def records_of(array: Array, what: str) -> tuple[Array, Array]:
    """The pairs (address, length) of strings, at least one, and the memory that they point to.

    Raises:
        ModelError: an element is neither `str` nor `bytes`, or has characters that UTF-8 has not.
    """
    texts: list[bytes] = []
    for item in array.reshape(-1).tolist():
        if isinstance(item, str):
            texts.append(_encoded(item, what))
        elif isinstance(item, bytes):
            texts.append(item)
        else:
            raise ModelError(f"{what} must be strings, not {type(item).__name__}")
    memory = np.frombuffer(b"".join(texts), np.uint8)
    lengths = np.array([len(t) for t in texts], np.int64)
    records = np.zeros((max(len(texts), 1), 2), np.int64)
    records[: len(texts), 0] = memory.ctypes.data + np.cumsum(lengths) - lengths
    records[: len(texts), 1] = lengths
    return records, memory


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ModelError(
            f"{what} must be text: {text[error.start]!r}, character {error.start} of one of its "
            "strings, is a surrogate without its other half"
        ) from error


def texts_at(address: int, shape: tuple[int, ...]) -> Array:
    """The strings of pairs (address, length) at an address."""
    records = np.zeros((math.prod(shape), 2), np.int64)
    if records.size:
        ctypes.memmove(records.ctypes.data, address, records.nbytes)
    texts: Array = np.empty(len(records), object)
    texts[:] = [
        ctypes.string_at(place, size).decode("utf-8", "replace") for place, size in records.tolist()
    ]
    return texts.reshape(shape)
