"""Runs with plain arrays: what is the same in every run is described once."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from rutc.runtime.binding import Arguments
from rutc.runtime.c_interface import CPU, DLTensor
from rutc.runtime.dtypes import dlpack_type
from rutc.runtime.objects import Objects
from rutc.runtime.tensors import Array, TensorInfo

Addresses = ctypes.Array[ctypes.c_void_p]
Held = list[object]
"""Arrays whose addresses are in descriptors: a mapping may give others when it is asked again."""
Shapes = tuple[tuple[int, ...], ...]
_Port = tuple[str, DLTensor, tuple[int, ...], "np.dtype[np.generic]"]
_Text = tuple[str, int, tuple[int, ...], int]
"""A tensor of strings: name, the address of room for their descriptions, shape and size."""

SHAPES_KEPT: Final = 64
"""A session keeps the descriptors for runs of up to so many combinations of shapes."""
_TEXT_KINDS: Final = "OUT"
"""numpy's kinds of arrays whose elements are `str`."""


class PlainTensors:
    """The descriptors of a model's tensors, all of which have fixed shapes.

    They hold numbers, or strings, which `objects` reads and makes. A run fills in addresses alone.
    Small models take no longer than the interpreter needs for the rest, so nothing is checked here
    that could be checked elsewhere.
    """

    def __init__(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        objects: Objects | None = None,
    ) -> None:
        self._objects = objects
        self._rooms: list[Array] = []
        ports = [_plain_port(info) for info in inputs]
        self._outputs = [_plain_port(info) for info in outputs]
        self.input_addresses = _places(ports)
        self.output_addresses = _places(self._outputs)
        self.arguments: Arguments = (
            *(ctypes.addressof(self.input_addresses), len(ports)),
            *(ctypes.addressof(self.output_addresses), len(self._outputs)),
        )
        self._inputs = [p for p in ports if p[3].kind != "O"]
        self._texts = [self._text(p) for p in ports if p[3].kind == "O"]
        made = enumerate(self._outputs)
        self._written = [(i, self._text(p)) for i, p in made if p[3].kind == "O"]
        # Descriptors live as long as the addresses that the library is given.
        self._ports = ports
        self._count = len(ports)

    def _text(self, port: _Port) -> _Text:
        """Gives a tensor of strings room for their descriptions."""
        name, tensor, shape, _ = port
        room: Array = np.zeros((*shape, 2), np.int64)
        self._rooms.append(room)
        tensor.data = room.ctypes.data
        return name, room.ctypes.data, shape, room.size // 2

    def describe(self, inputs: Mapping[str, object]) -> tuple[list[Array], Held] | None:
        """Describes the inputs and new arrays for all outputs; returns these, and the inputs.

        The caller holds both until the model has run and `finish` has completed the outputs. None
        is returned where an input needs a closer look: it is missing, unknown, no array, of another
        shape or dtype, or not dense.
        """
        held = _point(self._inputs, inputs, self._count)
        if held is None or (self._texts and not self._read(inputs, held)):
            return None
        first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
        address_of = ctypes.addressof
        results: list[Array] = []
        for _, tensor, shape, dtype in self._outputs:
            result = np.empty(shape, dtype)
            if dtype.kind != "O":
                tensor.data = address_of(first_byte(result))
            results.append(result)
        return results, held

    def finish(self, results: Sequence[Array]) -> None:
        """Puts strings into the outputs that have them."""
        if self._objects is None:
            return
        first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
        for place, (_, room, _, count) in self._written:
            self._objects.write(room, count, ctypes.addressof(first_byte(results[place])))

    def describe_into(
        self, inputs: Mapping[str, object], outputs: Mapping[str, object]
    ) -> tuple[Held, Held] | None:
        """Describes the inputs and the caller's arrays for all outputs, and returns them.

        The caller holds them until the model has run. None where one of them needs a closer look,
        or outputs are strings.
        """
        if self._written:
            return None
        read = _point(self._inputs, inputs, self._count)
        written = _point(self._outputs, outputs, len(self._outputs))
        if read is None or written is None or not self._read(inputs, read):
            return None
        return read, written

    def _read(self, inputs: Mapping[str, object], held: Held) -> bool:
        """Describes the inputs that are strings, and holds these; whether that is what they are."""
        if self._objects is None:
            return True
        first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
        for name, room, shape, count in self._texts:
            value = inputs.get(name)
            if (
                type(value) is not np.ndarray
                or value.shape != shape
                or value.dtype.kind not in _TEXT_KINDS
            ):
                return False
            # Objects of its own, which nobody else may take away during the run.
            kept = value.dtype.kind == "O"
            texts: Array = value.copy() if kept else value.astype(object, order="C")
            try:
                self._objects.read(ctypes.addressof(first_byte(texts)), count, room)
            except (TypeError, UnicodeError):
                return False
            held.append(texts)
        return True


def plain_tensors(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], objects: Objects | None
) -> PlainTensors | None:
    """Returns the descriptors of these inputs and outputs; None where they are not all plain.

    That is, of fixed shapes, not empty, and of numpy's own numbers, or strings.
    """
    plain = all(
        info.known_shape is not None and 0 not in info.known_shape and _is_plain(info, objects)
        for info in (*inputs, *outputs)
    )
    return PlainTensors(inputs, outputs, objects) if plain else None


class RepeatedShapes:
    """Finds out when a model whose shapes are known in the run only is run with the same again."""

    def __init__(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        objects: Objects | None,
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._objects = objects
        self._seen: dict[Shapes, PlainTensors | None] = {}

    def known(self, inputs: Mapping[str, object]) -> PlainTensors | None:
        """Returns descriptors for inputs of these shapes, if such were run before."""
        shapes = shapes_of(self._inputs, inputs)
        return None if shapes is None else self._seen.get(shapes)

    def after(
        self, inputs: Mapping[str, object], outputs: Mapping[str, object]
    ) -> PlainTensors | None:
        """Returns descriptors for more runs like this one; None if it was the first such.

        The shapes of the inputs are taken to tell those of all outputs.
        """
        given, made = shapes_of(self._inputs, inputs), shapes_of(self._outputs, outputs)
        if given is None or made is None or any(0 in s for s in (*given, *made)):
            return None
        if given not in self._seen:
            if len(self._seen) == SHAPES_KEPT:
                self._seen = {}
            self._seen[given] = None
            return None
        self._seen[given] = plain_tensors(
            [replace(x, shape=s) for x, s in zip(self._inputs, given, strict=True)],
            [replace(x, shape=s) for x, s in zip(self._outputs, made, strict=True)],
            self._objects,
        )
        return self._seen[given]


def repeated_shapes(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], objects: Objects | None
) -> RepeatedShapes | None:
    """Returns what watches these inputs and outputs; None where they never become plain."""
    plain = all(_is_plain(info, objects) for info in (*inputs, *outputs))
    return RepeatedShapes(inputs, outputs, objects) if plain else None


def shapes_of(infos: Sequence[TensorInfo], values: Mapping[str, object]) -> Shapes | None:
    """The shapes of tensors by name; None where one is missing or no array."""
    found = tuple(
        value.shape
        for value in (values.get(info.name) for info in infos)
        if type(value) is np.ndarray
    )
    return found if len(found) == len(infos) else None


def _is_plain(info: TensorInfo, objects: Objects | None) -> bool:
    """Whether it is a tensor of numpy's own numbers, or of strings that `objects` reads and makes.

    The inputs' shapes must tell its shape.
    """
    if info.computed:
        return False
    if info.dtype_name == "string":
        return objects is not None
    return info.dtype.kind in "biufc" and info.dtype.isbuiltin == 1


def _point(ports: Sequence[_Port], values: Mapping[str, object], count: int) -> Held | None:
    """Points the descriptors to arrays and returns these; None where one is not of its port's kind.

    That is, dense, and of its shape and dtype; and there are `count` values in all.
    """
    if len(values) != count:
        return None
    held: Held = []
    first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
    for name, tensor, shape, dtype in ports:
        value = values.get(name)
        if (
            type(value) is not np.ndarray
            or value.shape != shape
            or value.dtype != dtype
            or not value.flags.carray
        ):
            return None
        tensor.data = ctypes.addressof(first_byte(value))
        held.append(value)
    return held


def _plain_port(info: TensorInfo) -> _Port:
    shape = info.known_shape
    assert shape is not None
    code, bits = dlpack_type(info.dtype_name)
    extents = (ctypes.c_int64 * len(shape))(*shape)
    tensor = DLTensor(None, CPU, 0, len(shape), code, bits, 1, extents, None, 0)
    return info.name, tensor, shape, info.dtype


def _places(ports: Sequence[_Port]) -> Addresses:
    return (ctypes.c_void_p * len(ports))(*(ctypes.addressof(port[1]) for port in ports))
