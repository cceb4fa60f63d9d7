"""Reads values stored as ONNX's test data is: one `TensorProto`, or its kin, in each file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message
from onnx import OptionalProto, SequenceProto, TensorProto, numpy_helper

from rutc.errors import UserError

MALFORMED = (TypeError, ValueError, KeyError, AttributeError, OverflowError)
"""What the onnx package raises where a message is no value."""


def read_value(path: Path, onnx_type: str) -> object:
    """Returns the value of a `.pb` file, of a type as ONNX Runtime writes it: `seq(tensor(float))`.

    Raises:
        UserError: the file holds no such value, or keeps data of it in another file.
    """
    kind = onnx_type.partition("(")[0]
    if kind == "tensor":
        return read_tensor(path)
    if kind not in ("seq", "optional"):
        raise UserError(f"{path} is a {onnx_type}, which rutc does not read from files")
    try:
        data = path.read_bytes()
        if kind == "seq":
            sequence = SequenceProto.FromString(data)
            _check_tensors(path, sequence)
            return list(numpy_helper.to_list(sequence))
        optional = OptionalProto.FromString(data)
        _check_tensors(path, optional)
        return numpy_helper.to_optional(optional)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (DecodeError, *MALFORMED) as error:
        raise UserError(f"{path} holds no {onnx_type}: {error}") from error


def read_tensor(path: Path) -> npt.NDArray[np.generic]:
    """Returns the tensor of a `.pb` file; narrow types have dtypes of `ml_dtypes`.

    Raises:
        UserError: the file holds no tensor, or keeps its data in another file.
    """
    proto = TensorProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise UserError(f"{path} is no ONNX TensorProto") from error
    if proto.data_type == TensorProto.UNDEFINED:
        raise UserError(f"{path} is no ONNX TensorProto: it has no element type")
    _check_tensors(path, proto)
    try:
        return numpy_helper.to_array(proto)
    except MALFORMED as error:
        raise UserError(f"{path} holds a malformed tensor: {error}") from error


def _check_tensors(path: Path, value: Message) -> None:
    """Checks what the onnx package leaves unchecked of tensors.

    Raises:
        UserError: one is of a type that is none, or keeps its data in another file.
    """
    for tensor in _tensors(value):
        if tensor.data_location == TensorProto.EXTERNAL:
            raise UserError(f"{path} keeps its data in another file, which rutc does not read here")
        if tensor.data_type not in TensorProto.DataType.values():
            raise UserError(f"{path} holds a tensor of the unknown type {tensor.data_type}")


def _tensors(value: Message) -> Iterator[TensorProto]:
    """The tensors of a value, those in sequences and optionals included."""
    if isinstance(value, TensorProto):
        yield value
        return
    for field, found in value.ListFields():
        if field.message_type is not None:
            for inner in [found] if isinstance(found, Message) else found:
                yield from _tensors(inner)
