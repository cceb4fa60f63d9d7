"""Runs with plain arrays: what describes them stays, and a run fills in addresses alone."""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rutc.runtime.binding import Addresses, Arguments, arguments_of
from rutc.runtime.c_interface import CPU, DLTensor, first_byte
from rutc.runtime.dtypes import dlpack_type
from rutc.runtime.objects import Objects, address_of
from rutc.runtime.received import Keep, received
from rutc.runtime.tensors import Array, TensorInfo, check_shape

Held = list[object]
"""Arrays whose addresses are in descriptors: a mapping may give others when it is asked again."""

_TEXT_KINDS: Final = "OUT"
"""numpy's kinds of arrays whose elements are `str`."""


class Described:
    """An input, or an output that a run writes where its descriptor says; it has this `shape`."""

    __slots__ = ("_extents", "_fixed", "dtype", "name", "room", "shape", "tensor")

    def __init__(self, info: TensorInfo) -> None:
        self.name: Final = info.name
        self.dtype: Final = info.dtype
        known = enumerate(info.shape)
        self._fixed: Final = [(axis, n) for axis, n in known if isinstance(n, int)]
        self._extents: Final = (ctypes.c_int64 * len(info.shape))()
        self.tensor: Final = _descriptor(info, self._extents)
        self.room: Array = np.zeros((1, 2), np.int64)
        """Of strings: for the address and the length of each."""
        self.shape: tuple[int, ...] | None = None
        if info.known_shape is not None:
            self.take(info.known_shape)

    def take(self, shape: tuple[int, ...]) -> bool:
        """Takes another shape; returns whether the model does, as far as is known."""
        if len(shape) != self.tensor.ndim:
            return False
        for axis, extent in self._fixed:
            if shape[axis] != extent:
                return False
        # An error or an interrupt on the way leaves no shape that only a part of this belongs to.
        self.shape = None
        if self.dtype.kind == "O":
            self.room = np.zeros((math.prod(shape) + 1, 2), np.int64)
            self.tensor.data = address_of(self.room)
        self._extents[:] = list(shape)
        self.shape = shape
        return True

    def learn(self) -> None:
        """Takes the shape that the library has filled in.

        Raises:
            ModelError: an extent is negative.
        """
        shape = tuple(self._extents[:])
        check_shape(self.name, shape)
        self.shape = shape


class Provided:
    """An output that the session has the memory for: strings, or of a shape that the run computes.

    The array is made after the run.
    """

    __slots__ = ("_dtype", "_extents", "_ndim", "tensor")

    def __init__(self, info: TensorInfo) -> None:
        self._dtype: Final = info.dtype
        self._ndim: Final = len(info.shape)
        self.tensor: Final = _descriptor(info, None)
        self._extents: ctypes.Array[ctypes.c_int64] | None = None

    def read(self, objects: Objects | None, keep: Keep) -> Array:
        """Returns what the session has described: its memory, if that can be kept, or a copy."""
        extents = self._extents
        if extents is None:
            # The session's own numbers, which stay in their place.
            numbers = ctypes.addressof(self.tensor.shape.contents)
            extents = self._extents = (ctypes.c_int64 * self._ndim).from_address(numbers)
        shape = tuple(extents[:])
        texts = objects is not None and self._dtype.kind == "O"
        whole = None if texts else received(self.tensor, shape, self._dtype, keep)
        if whole is not None:
            return whole
        result: Array = np.empty(shape, self._dtype)
        if not result.size:
            return result
        place = ctypes.addressof(first_byte(result))
        if objects is not None and texts:
            objects.write(self.tensor.data, result.size, place)
        else:
            ctypes.memmove(place, self.tensor.data, result.nbytes)
        return result


class PlainTensors:
    """The descriptors of a model's tensors, which hold numbers or strings.

        held = plain.describe(inputs)
        if not plain.told:
            (the library fills in the outputs' shapes)
            plain.learn()
        results = plain.make()
        (the library runs)
        plain.finish(results)

    Small models take no longer than the interpreter needs for the rest, so nothing is checked here
    that could be checked elsewhere. `objects` reads and makes strings.
    """

    def __init__(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        objects: Objects | None = None,
        *,
        lasting: bool = True,
    ) -> None:
        """Describes what is known; `lasting`: the inputs' shapes alone tell those of outputs."""
        self._objects = objects
        self._inputs = [Described(info) for info in inputs]
        self._numbers = [x for x in self._inputs if x.dtype.kind != "O"]
        self._texts = [x for x in self._inputs if x.dtype.kind == "O"]
        self._outputs = [
            Provided(y) if y.computed or y.dtype.kind == "O" else Described(y) for y in outputs
        ]
        self._written = [y for y in self._outputs if isinstance(y, Described)]
        self._provided = [
            (place, y) for place, y in enumerate(self._outputs) if isinstance(y, Provided)
        ]
        self.told = all(y.shape is not None for y in self._written)
        """Whether the outputs have the shapes that belong to those of the inputs."""
        self._known: Final = self.told
        self._lasting: Final = lasting
        self.input_addresses = _places(self._inputs)
        self.output_addresses = _places(self._outputs)
        self.arguments: Arguments = arguments_of(self.input_addresses, self.output_addresses)

    def describe(self, inputs: Mapping[str, object]) -> Held | None:
        """Describes the inputs and returns them; the caller holds them until the model has run.

        None is returned where an input needs a closer look: it is missing, unknown, no array, of
        another dtype or rank, or not dense.
        """
        if len(inputs) != len(self._inputs):
            return None
        held = self._point(self._numbers, inputs)
        if held is None or (self._texts and not self._read(inputs, held)):
            return None
        return held

    def learn(self) -> None:
        """Takes the outputs' shapes from their descriptors, where the library has told them.

        Raises:
            ModelError: one is no shape.
        """
        for output in self._written:
            output.learn()
        self.told = self._lasting

    def make(self) -> list[Any]:
        """Returns new arrays, which the outputs' descriptors point to then.

        What the session provides is None, until `finish`.
        """
        results: list[Any] = []
        for output in self._outputs:
            result = address = None
            if isinstance(output, Described):
                result = np.empty(output.shape or (), output.dtype)
                if result.size:
                    address = ctypes.addressof(first_byte(result))
            output.tensor.data = address
            results.append(result)
        return results

    def finish(self, results: list[Any], keep: Keep) -> None:
        """Completes the results of a run; `keep` makes memory of the session their own."""
        for place, output in self._provided:
            results[place] = output.read(self._objects, keep)

    def describe_into(
        self, inputs: Mapping[str, object], outputs: Mapping[str, object]
    ) -> tuple[Held, Held] | None:
        """Describes the inputs and the caller's arrays for all outputs, and returns them.

        The caller holds them until the model has run. None where one of them needs a closer look,
        or the session provides an output.
        """
        if self._provided or len(outputs) != len(self._written):
            return None
        read = self.describe(inputs)
        written = None if read is None else self._point(self._written, outputs, written=True)
        return None if read is None or written is None else (read, written)

    def _point(
        self, tensors: Sequence[Described], values: Mapping[str, object], *, written: bool = False
    ) -> Held | None:
        """Points descriptors to arrays and returns these; None where one is not of their kind.

        That is, dense, of its dtype and rank, and one that may be `written` to.
        """
        held: Held = []
        for tensor in tensors:
            value = values.get(tensor.name)
            if type(value) is not np.ndarray or value.dtype != tensor.dtype:
                return None
            flags = value.flags
            if value.size and flags.carray:
                address = ctypes.addressof(first_byte(value))
            elif flags.c_contiguous and flags.aligned and (flags.writeable or not written):
                address = value.__array_interface__["data"][0]
            else:
                return None
            if value.shape != tensor.shape and not self._take(tensor, value.shape):
                return None
            tensor.tensor.data = address
            held.append(value)
        return held

    def _take(self, tensor: Described, shape: tuple[int, ...]) -> bool:
        """Gives a tensor another shape; whether the model takes it, as far as is known."""
        told, self.told = self.told, self._known
        if tensor.take(shape):
            return True
        self.told = told
        return False

    def _read(self, inputs: Mapping[str, object], held: Held) -> bool:
        """Describes the inputs that are strings, and holds these; whether that is what they are."""
        for tensor in self._texts:
            value = inputs.get(tensor.name)
            if type(value) is not np.ndarray or value.dtype.kind not in _TEXT_KINDS:
                return False
            if value.shape != tensor.shape and not self._take(tensor, value.shape):
                return False
            # Objects of its own, which nobody else may take away during the run.
            kept = value.dtype.kind == "O"
            texts: Array = value.copy() if kept else value.astype(object, order="C")
            try:
                assert self._objects is not None
                self._objects.read(address_of(texts), texts.size, address_of(tensor.room))
            except (TypeError, UnicodeError):
                return False
            held.append(texts)
        return True


def plain_tensors(
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    objects: Objects | None,
    *,
    lasting: bool = True,
) -> PlainTensors | None:
    """Returns the descriptors of these inputs and outputs; None where they are not all plain.

    That is, of numpy's own numbers, or of strings that `objects` reads and makes.
    """
    if not all(_is_plain(info, objects) for info in (*inputs, *outputs)):
        return None
    return PlainTensors(inputs, outputs, objects, lasting=lasting)


def _is_plain(info: TensorInfo, objects: Objects | None) -> bool:
    if info.dtype_name == "string":
        return objects is not None
    return info.dtype.kind in "biufc" and info.dtype.isbuiltin == 1


def _descriptor(info: TensorInfo, extents: ctypes.Array[ctypes.c_int64] | None) -> DLTensor:
    code, bits = dlpack_type(info.dtype_name)
    return DLTensor(None, CPU, 0, len(info.shape), code, bits, 1, extents, None, 0)


def _places(tensors: Sequence[Described | Provided]) -> Addresses:
    return (ctypes.c_void_p * len(tensors))(*(ctypes.addressof(t.tensor) for t in tensors))
