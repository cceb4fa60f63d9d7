"""Reads values stored as ONNX's test data is: one `TensorProto`, or its kin, in each file."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from onnx import OptionalProto, SequenceProto, TensorProto, numpy_helper

from rutc.errors import UserError


def read_value(path: Path, onnx_type: str) -> object:
    """Returns the value of a `.pb` file, of a type as ONNX Runtime writes it: `seq(tensor(float))`.

    Raises:
        UserError: the file holds no such value.
    """
    kind = onnx_type.partition("(")[0]
    if kind == "tensor":
        return read_tensor(path)
    if kind not in ("seq", "optional"):
        raise UserError(f"{path} is a {onnx_type}, which rutc does not read from files")
    try:
        data = path.read_bytes()
        if kind == "seq":
            return list(numpy_helper.to_list(SequenceProto.FromString(data)))
        return numpy_helper.to_optional(OptionalProto.FromString(data))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (DecodeError, TypeError, ValueError) as error:
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
    if proto.data_location == TensorProto.EXTERNAL:
        raise UserError(f"{path} keeps its data in another file, which rutc does not read here")
    try:
        return numpy_helper.to_array(proto)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} holds a malformed tensor: {error}") from error
