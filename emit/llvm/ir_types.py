"""Types and constants of LLVM's language, as text.

    type ::= iN | half | bfloat | float | double | ptr | void
           | <N x type> | [N x type] | {type, ...}

Equal types are one object: they are compared and hashed by identity.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any, ClassVar


class _Once(type):
    """Makes one object of each class and parts."""

    known: ClassVar[dict[tuple[object, ...], object]] = {}

    def __call__(cls, *parts: Any) -> Any:
        """The type of these parts."""
        key = (cls, *parts)
        found = _Once.known.get(key)
        if found is None:
            found = _Once.known[key] = super().__call__(*parts)
        return found


class Type(metaclass=_Once):
    """A type of LLVM's language.

    `text` is how it is written, `suffix` how numbers stand in the names of intrinsics: `v16f32`.
    """

    __slots__ = ("suffix", "text")

    def __init__(self, text: str, suffix: str | None = None) -> None:
        """A type that is written so."""
        self.text = text
        self.suffix = suffix or text

    def __str__(self) -> str:
        """How LLVM writes it."""
        return self.text

    def __repr__(self) -> str:
        """The same."""
        return self.text


class HalfType(Type):
    """Floats of 16 bits."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("half", "f16")


class BFloatType(Type):
    """Floats of 16 bits with the exponents of those of 32."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("bfloat", "bf16")


class FloatType(Type):
    """Floats of 32 bits."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("float", "f32")


class DoubleType(Type):
    """Floats of 64 bits."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("double", "f64")


class PointerType(Type):
    """Addresses, of whatever is there."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("ptr")


class VoidType(Type):
    """What functions give that give nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("void")


class IntType(Type):
    """Integers of so many bits, signed or not as each operation says."""

    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        super().__init__(f"i{width}")
        self.width = width


class _Row(Type):
    """So many elements of a type."""

    __slots__ = ("count", "element")
    brackets = "[]"

    def __init__(self, element: Type, count: int) -> None:
        text = f"{self.brackets[0]}{count} x {element.text}{self.brackets[1]}"
        super().__init__(text, f"v{count}{element.suffix}")
        self.element = element
        self.count = count


class VectorType(_Row):
    """Lanes that are computed with at once."""

    __slots__ = ()
    brackets = "<>"


class ArrayType(_Row):
    """Elements in memory, one after the other."""

    __slots__ = ()


class LiteralStructType(Type):
    """Values of several types together."""

    __slots__ = ("elements",)

    def __init__(self, *elements: Type) -> None:
        super().__init__(f"{{{', '.join(e.text for e in elements)}}}")
        self.elements = elements


class Value:
    """What an instruction takes: its type, and `ref`, its name or, of a constant, its text."""

    __slots__ = ("ref", "type")

    def __init__(self, type_: Type, ref: str) -> None:
        """A value of that name."""
        self.type = type_
        self.ref = ref

    @property
    def lanes(self) -> int:
        """The number of a vector's lanes."""
        assert isinstance(self.type, VectorType)
        return self.type.count

    def __str__(self) -> str:
        """The value with its type, as most operands are written."""
        return f"{self.type.text} {self.ref}"


class _Undefined:
    """The value of which nothing is known."""


Undefined = _Undefined()

Given = int | float | Sequence[int] | Sequence[float] | bytes | _Undefined | None
"""A constant's value: of all lanes or elements, or one by one; None for zeros."""


class Constant(Value):
    """A value that is known, and as what it is known."""

    __slots__ = ("constant",)

    def __init__(self, type_: Type, constant: Given) -> None:
        """That constant of that type."""
        super().__init__(type_, _constant_text(type_, constant))
        self.constant = constant

    @staticmethod
    def splat(type_: VectorType, scalar: Constant) -> Constant:
        """The scalar in every lane, in the short form."""
        found = Constant(type_, None)
        found.ref, found.constant = f"splat ({scalar})", scalar.constant
        return found


def _constant_text(type_: Type, constant: Given) -> str:
    if constant is None:
        match type_:
            case _Row() | LiteralStructType():
                return "zeroinitializer"
            case PointerType():
                return "null"
            case _:
                return "0" if isinstance(type_, IntType) else "0.0"
    if isinstance(constant, _Undefined):
        return "undef"
    if isinstance(constant, bytes):
        return 'c"' + "".join(f"\\{byte:02x}" for byte in constant) + '"'
    if isinstance(constant, Sequence):
        assert isinstance(type_, _Row)
        one = type_.element
        if isinstance(type_, VectorType) and all(map(is_, constant, repeat(constant[0]))):
            return f"splat ({one.text} {_scalar_text(one, constant[0])})"
        elements = ", ".join([f"{one.text} {_scalar_text(one, x)}" for x in constant])
        return f"{type_.brackets[0]}{elements}{type_.brackets[1]}"
    return _scalar_text(type_, constant)


def _scalar_text(type_: Type, value: float) -> str:
    if isinstance(type_, IntType):
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)
    if isinstance(type_, FloatType):
        # Both widths are written as 64 bits.
        value = struct.unpack("f", struct.pack("f", value))[0]
    return f"0x{struct.pack('>d', value).hex()}"
