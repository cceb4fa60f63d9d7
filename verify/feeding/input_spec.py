"""What a model says of an input: its name, type and shape."""

from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rutc.base.record import record
from rutc.errors import UserError
from rutc.verify.judging.compare import Array

ONNX_DTYPES: Mapping[str, npt.DTypeLike] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "bool": np.bool_,
    "string": np.object_,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@record
class InputSpec:
    """One input of a model: its name, dtype, and shape with symbols for what is not fixed.

    `value` is what alone it may hold. One that `divides` integers holds no 0, converted to one or
    as it is. `texts` are some that the model knows. What says only where something is in tables is
    below each of their `rows`. A sequence or optional of `depth` levels has
    its length in front of the shape of the tensors in it.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str, ...]
    value: Array | None = None
    depth: int = 0
    divides: bool = False
    texts: tuple[str, ...] = ()
    rows: tuple[int | str, ...] = ()


def spec(
    name: str,
    onnx_type: str,
    shape: Iterable[int | str | None],
    value: Array | None = None,
    *,
    divides: bool = False,
    texts: tuple[str, ...] = (),
    rows: tuple[int | str, ...] = (),
) -> InputSpec:
    """Returns the spec of an input whose type is written as ONNX Runtime does: `tensor(float)`.

    Raises:
        UserError: the input is a map, or of a type that is unknown.
    """
    *levels, kind, element = onnx_type.rstrip(")").split("(")
    if kind != "tensor" or element not in ONNX_DTYPES or "map" in levels:
        raise UserError(
            f"input {name!r} is a {onnx_type}: only tensors can be generated or read from files"
        )
    extents = tuple(
        f"{name}.{axis}" if extent is None else extent for axis, extent in enumerate(shape)
    )
    dtype = np.dtype(ONNX_DTYPES[element])
    return InputSpec(name, dtype, extents, value, len(levels), divides, texts, rows)
