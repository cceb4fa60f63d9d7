"""How the elements of a model's inputs and outputs are described to its callers (DLPack)."""

from rutc.base.record import record
from rutc.errors import InternalError


@record
class Element:
    """A DLPack element type: type code, bits, and the alignment its memory needs, in bytes."""

    code: int
    bits: int
    alignment: int

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return self.bits // 8


_INT, _UINT, _FLOAT, _HANDLE, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 3, 4, 5, 6

# Elements narrower than a byte take a byte each, as in numpy, and are described as 8-bit integers
# because DLPack's own narrow types are packed.
_ELEMENTS = {
    "bool": Element(_BOOL, 8, 1),
    "int2": Element(_INT, 8, 1),
    "int4": Element(_INT, 8, 1),
    "int8": Element(_INT, 8, 1),
    "int16": Element(_INT, 16, 2),
    "int32": Element(_INT, 32, 4),
    "int64": Element(_INT, 64, 8),
    "uint2": Element(_UINT, 8, 1),
    "uint4": Element(_UINT, 8, 1),
    "uint8": Element(_UINT, 8, 1),
    "uint16": Element(_UINT, 16, 2),
    "uint32": Element(_UINT, 32, 4),
    "uint64": Element(_UINT, 64, 8),
    "float4_e2m1fn": Element(_UINT, 8, 1),
    "float6_e2m3fn": Element(_UINT, 8, 1),
    "float6_e3m2fn": Element(_UINT, 8, 1),
    "float8_e4m3fn": Element(10, 8, 1),
    "float8_e4m3fnuz": Element(11, 8, 1),
    "float8_e5m2": Element(12, 8, 1),
    "float8_e5m2fnuz": Element(13, 8, 1),
    "float8_e8m0fnu": Element(14, 8, 1),
    "float16": Element(_FLOAT, 16, 2),
    "bfloat16": Element(_BFLOAT, 16, 2),
    "float32": Element(_FLOAT, 32, 4),
    "float64": Element(_FLOAT, 64, 8),
    "string": Element(_HANDLE, 128, 8),
    "tensor": Element(_HANDLE, 64, 8),
    "complex64": Element(_COMPLEX, 64, 4),
    "complex128": Element(_COMPLEX, 128, 8),
}


def element_of(dtype: str) -> Element:
    """Returns the element type of a numpy or ml_dtypes dtype's name.

    Raises:
        InternalError: the name is none of an interface dtype.
    """
    if dtype not in _ELEMENTS:
        raise InternalError(f"no interface dtype {dtype!r}; known: {', '.join(_ELEMENTS)}")
    return _ELEMENTS[dtype]
