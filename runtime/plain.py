"""Runs with plain arrays: what is the same in every run is described once."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rutc.runtime.dtypes import dlpack_type
from rutc.runtime.interface import CPU, DLTensor
from rutc.runtime.tensors import Array, TensorInfo

Addresses = ctypes.Array[ctypes.c_void_p]
Held = list[object]
"""Arrays whose addresses are in descriptors: a mapping may give others when it is asked again."""
_Port = tuple[str, DLTensor, tuple[int, ...], "np.dtype[np.generic]"]


class PlainTensors:
    """The descriptors of a model's tensors, all of which have fixed shapes and hold numbers.

    A run fills in addresses alone. Small models take no longer than the interpreter needs for the
    rest, so nothing is checked here that could be checked elsewhere.
    """

    def __init__(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> None:
        self._inputs = [_plain_port(info) for info in inputs]
        self._outputs = [_plain_port(info) for info in outputs]
        self.input_addresses = _places(self._inputs)
        self.output_addresses = _places(self._outputs)

    def describe(self, inputs: Mapping[str, object]) -> tuple[list[Array], Held] | None:
        """Describes the inputs and new arrays for all outputs; returns these, and the inputs.

        The caller holds both until the model has run. None is returned where an input needs a
        closer look: it is missing, unknown, no array, of another shape or dtype, or not dense.
        """
        held = _point(self._inputs, inputs)
        if held is None:
            return None
        first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
        address_of = ctypes.addressof
        results: list[Array] = []
        for _, tensor, shape, dtype in self._outputs:
            result = np.empty(shape, dtype)
            tensor.data = address_of(first_byte(result))
            results.append(result)
        return results, held

    def describe_into(
        self, inputs: Mapping[str, object], outputs: Mapping[str, object]
    ) -> tuple[Held, Held] | None:
        """Describes the inputs and the caller's arrays for all outputs, and returns them.

        The caller holds them until the model has run. None where one of them needs a closer look.
        """
        read, written = _point(self._inputs, inputs), _point(self._outputs, outputs)
        return None if read is None or written is None else (read, written)


def plain_tensors(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> PlainTensors | None:
    """Returns the descriptors of these inputs and outputs; None where they are not all plain.

    That is, of fixed shapes, not empty, and of numpy's own numbers.
    """
    plain = all(
        info.known_shape is not None and 0 not in info.known_shape and _holds_numbers(info)
        for info in (*inputs, *outputs)
    )
    return PlainTensors(inputs, outputs) if plain else None


class RepeatedShapes:
    """Finds out when a model whose shapes are known in the run only is run with the same again."""

    def __init__(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._last: list[tuple[int, ...]] = []

    def after(
        self, inputs: Mapping[str, object], outputs: Mapping[str, object]
    ) -> PlainTensors | None:
        """Returns descriptors for more runs like this one; None if the one before was another.

        The shapes of the inputs are taken to tell those of all outputs.
        """
        values = [inputs.get(x.name) for x in self._inputs]
        values += [outputs.get(x.name) for x in self._outputs]
        shapes = [value.shape for value in values if type(value) is np.ndarray]
        if shapes != self._last or len(shapes) < len(values):
            self._last = shapes
            return None
        count = len(self._inputs)
        return plain_tensors(
            [replace(x, shape=s) for x, s in zip(self._inputs, shapes[:count], strict=True)],
            [replace(x, shape=s) for x, s in zip(self._outputs, shapes[count:], strict=True)],
        )


def repeated_shapes(
    inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> RepeatedShapes | None:
    """Returns what watches these inputs and outputs; None where they never become plain."""
    numbers = all(map(_holds_numbers, (*inputs, *outputs)))
    return RepeatedShapes(inputs, outputs) if numbers else None


def _holds_numbers(info: TensorInfo) -> bool:
    """Whether it is a tensor of numpy's own numbers, of a shape that the inputs' shapes tell."""
    return not info.computed and info.dtype.kind in "biufc" and info.dtype.isbuiltin == 1


def _point(ports: Sequence[_Port], values: Mapping[str, object]) -> Held | None:
    """Points the descriptors to arrays and returns these; None where one is not of its port's kind.

    That is, dense, and of its shape and dtype.
    """
    if len(values) != len(ports):
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
