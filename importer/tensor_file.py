"""Reads one tensor stored as an ONNX `TensorProto` file, as ONNX's test data is."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from rutc.errors import UserError


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
