"""Inputs that hold the same elements in every run: what the caller gives, in the declared types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ValueInfoProto

from rutc.errors import UserError
from rutc.importer.reading.proto import dtype_of
from rutc.tensor_ir import DType


def fixed_elements(
    inputs: Sequence[ValueInfoProto], values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The fixed elements of inputs, in their declared types.

    A single element fits any shape of one element, and numbers any type that holds them all.
    """
    infos = {i.name: i for i in inputs}
    fixed: dict[str, np.ndarray] = {}
    for name, given in values.items():
        if name not in infos:
            raise UserError(
                f"a value is given for {name!r}, which is no input; "
                f"the inputs are {', '.join(infos) or 'none'}"
            )
        tensor = infos[name].type.tensor_type
        dims = tensor.shape.dim
        array = given
        if array.size == 1 and tensor.HasField("shape"):
            array = array.reshape([1] * len(dims))
        fits = len(dims) == array.ndim and all(
            not d.HasField("dim_value") or d.dim_value == n
            for d, n in zip(dims, array.shape, strict=True)
        )
        kind = dtype_of(tensor.elem_type, f"input {name!r}")
        if kind is not kind_of(array) and array.dtype.kind in "iuf" and kind is not DType.BOOL:
            array = array.astype(kind.numpy)
            fits &= bool(np.array_equal(array.astype(given.dtype), given.reshape(array.shape)))
        if (tensor.HasField("shape") and not fits) or kind is not kind_of(array):
            declared = ", ".join(d.dim_param or str(d.dim_value) for d in dims)
            raise UserError(
                f"input {name!r}: the given value, {given.dtype}{list(given.shape)}, "
                f"does not fit its declared type, {kind}[{declared}]"
            )
        fixed[name] = array
    return fixed


def kind_of(array: np.ndarray) -> DType:
    """The element type of an array."""
    return DType.STRING if array.dtype == object else DType.of(array.dtype)
