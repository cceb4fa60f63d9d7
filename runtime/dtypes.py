"""Element types between numpy, DLPack and ONNX's names."""

import importlib
from typing import Final

import numpy as np

from rutc.runtime.errors import ModelError

# ONNX Runtime's names of the element types, as `NodeArg.type` shows them.
_ONNX_NAMES: Final = {
    "float16": "float16",
    "float32": "float",
    "float64": "double",
    "float4_e2m1fn": "float4e2m1",
    "float6_e2m3fn": "float6e2m3",
    "float6_e3m2fn": "float6e3m2",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
}

_DLPACK_FLOAT8: Final = {
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
_DLPACK_KINDS: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}

# Elements narrower than a byte take a byte each; a model's library knows them as 8-bit integers.
_PADDED: Final = {
    "int2": 0,
    "int4": 0,
    "uint2": 1,
    "uint4": 1,
    "float4_e2m1fn": 1,
    "float6_e2m3fn": 1,
    "float6_e3m2fn": 1,
}


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Returns the dtype of a name; those that numpy lacks (`bfloat16`, ...) come from `ml_dtypes`.

    Raises:
        ModelError: the name needs `ml_dtypes` and that is not installed, or lacks it.
    """
    if name in {"string", "tensor"}:
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        extra = importlib.import_module("ml_dtypes")
        dtype: np.dtype[np.generic] = np.dtype(getattr(extra, name))
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"the model has tensors of dtype {name}, which numpy needs the package ml_dtypes for: "
            "pip install -U ml_dtypes"
        ) from error
    return dtype


def onnx_type(name: str) -> str:
    """Returns the type as ONNX Runtime spells it: `"float32"` -> `"tensor(float)"`."""
    return f"tensor({_ONNX_NAMES.get(name, name)})"


def dtype_of_type(onnx: str) -> np.dtype[np.generic]:
    """Returns the dtype of what a type ends in: `"seq(tensor(float))"` -> float32."""
    name = onnx.rpartition("(")[2].rstrip(")")
    named = {short: long for long, short in _ONNX_NAMES.items()}
    return numpy_dtype(named.get(name, name))


def dlpack_type(name: str) -> tuple[int, int]:
    """Returns DLPack's type code and bits of an element.

    Raises:
        ModelError: no model has such elements.
    """
    if name in _PADDED:
        return _PADDED[name], 8
    if name in _DLPACK_FLOAT8:
        return _DLPACK_FLOAT8[name], 8
    if name == "bfloat16":
        return 4, 16
    if name in {"string", "tensor"}:
        return 3, 128 if name == "string" else 64
    try:
        dtype = np.dtype(name)
        return _DLPACK_KINDS[dtype.kind], dtype.itemsize * 8
    except (TypeError, KeyError) as error:
        raise ModelError(f"models have no tensors of {name}") from error
