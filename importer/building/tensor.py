"""Tensors while axes are still positional, as the operator functions see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rutc.base.record import record
from rutc.tensor_ir import DType, Index
from rutc.tensor_ir.indices.affine import ZERO, product

SMALL = 1 << 16
"""Constants up to this many elements are computed on during import."""

Shape = tuple[Index, ...]


@record
class Axis:
    """One axis: its dim, or None where the extent is 1 and the value needs no dim for it."""

    dim: str | None
    extent: Index

    @property
    def index(self) -> Index:
        """The coordinate that runs along the axis: its dim, or 0 without one."""
        return ZERO if self.dim is None else Index.of(self.dim)


@record(eq=False)
class Tensor:
    """A value with ordered axes; `known` holds its elements where they are known at import.

    `known` is an ordinary array, or for integers an object array of `Index` where some element
    depends on a symbolic size. A known tensor becomes a constant only when something reads it.
    `units` are dims of extent 1 that the value has although no axis stands for them.
    """

    name: str
    dtype: DType
    axes: tuple[Axis, ...]
    known: np.ndarray | None = None
    units: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.axes)

    @property
    def shape(self) -> Shape:
        """The extents of the axes."""
        return tuple(a.extent for a in self.axes)

    @property
    def size(self) -> Index:
        """The number of elements."""
        return product(self.shape)

    @property
    def array(self) -> np.ndarray | None:
        """The elements where all are known and none is symbolic."""
        if self.known is None or is_symbolic(self.known, self.dtype):
            return None
        return self.known

    def __str__(self) -> str:
        return f"{self.dtype}{shape_text(self.shape)}"


@record(eq=False)
class TensorList:
    """A sequence of known structure, which exists while importing only."""

    items: tuple[Tensor, ...]

    def __str__(self) -> str:
        return f"sequence({', '.join(map(str, self.items))})"


@record(eq=False)
class Absent:
    """An optional without an element, which exists while importing only."""

    def __str__(self) -> str:
        return "an empty optional"


@record
class TensorType:
    """Tensors of a type. An extent is None where they differ, the shape where their ranks do."""

    dtype: DType
    shape: tuple[Index | None, ...] | None

    @property
    def fixed(self) -> Shape | None:
        """The shape, if all tensors have one."""
        known = tuple(e for e in self.shape or () if e is not None)
        return known if self.shape is not None and len(known) == len(self.shape) else None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype} of any rank"
        return f"{self.dtype}[{', '.join('?' if e is None else str(e) for e in self.shape)}]"


@record
class TupleType:
    """Sequences of one length, each place with its type."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"sequence({', '.join(map(str, self.items))})"


@record
class ListType:
    """Sequences of any length; the elements' type is None where there is no element."""

    element: Type | None

    def __str__(self) -> str:
        return f"sequence of {self.element or 'nothing'}"


@record
class OptionalType:
    """Optionals; the element's type is None where there is none."""

    element: Type | None

    def __str__(self) -> str:
        return f"optional {self.element or 'nothing'}"


Type = TensorType | TupleType | ListType | OptionalType
"""What is known of an item before the model runs."""


@record(eq=False)
class Boxed:
    """What the run decides the structure of, by its boxes.

    Of a sequence, or of an optional, `boxes` {n} are those of the elements; of a tensor whose rank
    is unknown `boxes` is its own.
    """

    type: TensorType | ListType | OptionalType
    boxes: Tensor

    def __str__(self) -> str:
        return str(self.type)


@record(eq=False)
class TensorMap:
    """A map, or for values {n, keys} a sequence of maps; without `keys` the values are in order."""

    keys: tuple[int | str, ...] | None
    values: Tensor

    def __str__(self) -> str:
        return f"map({self.values})"


Item = Tensor | TensorList | Absent | TensorMap | Boxed
"""What an ONNX name may stand for."""


def is_symbolic(known: np.ndarray, dtype: DType) -> bool:
    """Whether the elements are index expressions."""
    return known.dtype == object and not dtype.is_opaque


def is_const(extent: Index, value: int) -> bool:
    """Whether an extent is exactly this number."""
    return extent.is_const and extent.const == value


def ints_of(known: np.ndarray) -> tuple[Index, ...]:
    """The elements of a known integer tensor as index expressions, in row-major order."""
    return tuple(
        x if isinstance(x, Index) else Index.of(int(x)) for x in known.reshape(-1).tolist()
    )


def known_ints(elements: Iterable[Index | int], shape: Sequence[int], dtype: DType) -> np.ndarray:
    """An array of integers: an ordinary one if all are constants, else one of expressions."""
    items = [Index.of(e) for e in elements]
    if all(e.is_const for e in items):
        return np.array([e.const for e in items], dtype.numpy).reshape(shape)
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out.reshape(shape)


LONGEST = 64
"""Characters of an extent in a message."""


def shape_text(shape: Sequence[Index | int]) -> str:
    """A shape for messages: `[1, 3, batch]`; of long expressions the begin is enough."""
    texts = map(str, shape)
    return f"[{', '.join(t if len(t) <= LONGEST else t[: LONGEST - 2] + '..' for t in texts)}]"
