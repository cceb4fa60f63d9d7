"""Element types: their names, widths and numpy counterparts."""

from __future__ import annotations

import re
from enum import Enum, unique

import ml_dtypes
import numpy as np


def _bits(name: str) -> int:
    """What one stored element takes: for most types the first number in their names."""
    known = {"string": 128, "tensor": 64, "bool": 8}
    return known[name] if name in known else int(re.findall("[0-9]+", name)[0])


@unique
class DType(Enum):
    """An element type; the value is its name in the text form.

    Narrow kinds (`f16`, `bf16`, `f8*`, `f6*`, `f4*`, 2- and 4-bit integers) are storage types:
    they are widened to `f32` (or `i32`) when read and rounded when stored. An element of type
    `tensor` is a whole tensor of any type and shape, a *box*.
    """

    BOOL = "bool"
    I2 = "i2"
    U2 = "u2"
    I4 = "i4"
    U4 = "u4"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"
    U16 = "u16"
    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"
    F4E2M1 = "f4e2m1"
    F6E2M3 = "f6e2m3"
    F6E3M2 = "f6e3m2"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0 = "f8e8m0"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    STRING = "string"
    TENSOR = "tensor"

    is_opaque: bool
    """Whether elements are no numbers: they are moved, and only routines look into them."""
    is_float: bool
    """Whether the type is a floating-point kind, narrow ones included."""
    is_int: bool
    """Whether the type is a signed or unsigned integer (bool is neither)."""
    is_signed: bool
    """Whether the type has negative values."""
    bits: int
    """Bits of one stored element; a string is an address and a length, a box an address."""
    bytes: int
    """Bytes of one stored element in a buffer (sub-byte kinds take a whole byte)."""

    def __init__(self, name: str) -> None:
        """Note what the name tells: all this is asked of every expression, again and again."""
        self.is_opaque = name in ("string", "tensor")
        self.is_float = name.startswith(("f", "bf"))
        self.is_int = name[0] in "iu"
        self.is_signed = name[0] in "ifb" and name != "bool"
        self.bits = _bits(name)
        self.bytes = max(1, self.bits // 8)

    def __str__(self) -> str:
        return str(self._value_)

    def __repr__(self) -> str:
        # That of enumerations takes as long as the rest of what a kernel is found by in the cache.
        return self._name_

    # Members are objects of their own, and keys of many tables.
    __hash__ = object.__hash__

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype that holds one element (packed kinds take a whole byte in numpy)."""
        return _NUMPY[self]

    @property
    def quotient(self) -> DType | None:
        """The floats as which vectors of integers are divided; None where each lane is by itself.

        They tell quotients of all such numbers exactly.
        """
        if not self.is_int or self.bits > DType.I32.bits:
            return None
        return DType.F64 if self.bits > DType.I16.bits else DType.F32

    @property
    def computing(self) -> DType:
        """The type in which operators on it compute."""
        if self.is_float and self.bits < 32:
            return DType.F32
        return DType.I32 if self.is_int and self.bits < 8 else self

    @property
    def stored_name(self) -> str:
        """The type as artifacts name it: as numpy does, where it has elements of the type."""
        return str(self) if self.is_opaque else self.numpy.name

    @staticmethod
    def of(dtype: np.dtype | type) -> DType:
        """The element type of a numpy dtype. Raises KeyError for one that rutc has no type for."""
        resolved = np.dtype(dtype)
        if resolved.kind in "OUST":
            return DType.STRING
        return _OF_NUMPY[resolved]


_NUMPY: dict[DType, np.dtype] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.I2: np.dtype(ml_dtypes.int2),
    DType.U2: np.dtype(ml_dtypes.uint2),
    DType.I4: np.dtype(ml_dtypes.int4),
    DType.U4: np.dtype(ml_dtypes.uint4),
    DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8),
    DType.I16: np.dtype(np.int16),
    DType.U16: np.dtype(np.uint16),
    DType.I32: np.dtype(np.int32),
    DType.U32: np.dtype(np.uint32),
    DType.I64: np.dtype(np.int64),
    DType.U64: np.dtype(np.uint64),
    DType.F4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    DType.F6E2M3: np.dtype(ml_dtypes.float6_e2m3fn),
    DType.F6E3M2: np.dtype(ml_dtypes.float6_e3m2fn),
    DType.F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.F8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DType.F8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.STRING: np.dtype(object),
    DType.TENSOR: np.dtype(object),
}
_OF_NUMPY: dict[np.dtype, DType] = {n: d for d, n in _NUMPY.items() if not d.is_opaque}


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return low, low + (1 << dtype.bits) - 1
