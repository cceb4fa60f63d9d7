"""What a library takes and gives, and what it keeps from one run for the next."""

from __future__ import annotations

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import Size


@record
class Fixed:
    """The bytes that alone an input may hold, last dimension fastest, and how to show them."""

    data: bytes
    text: str


@record
class Port:
    """One input or output of the model: its ONNX name, dtype (as `'float32'`) and shape.

    An input with `fixed` has to hold that. An output whose shape the program computes is a `block`.
    Users see the shape `said`, if there is one, in sizes of their own.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    fixed: Fixed | None = None
    block: int | None = None
    said: tuple[Size, ...] = ()

    @property
    def shown(self) -> tuple[int | str, ...]:
        """The shape for users: numbers and formulas."""
        return tuple(x if isinstance(x, int) else str(x) for x in self.said or self.shape)

    def __str__(self) -> str:
        fixed = f" fixed {self.fixed.text}" if self.fixed is not None else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{fixed}"


@record
class State:
    """An input that has in the next run what an output has in this one; a session keeps it.

    It has memory of `bytes` bytes. Of one that `grows` along an axis that is enough for so many
    elements along it. Where both are `together` in one memory, the strides are those of an array
    with that many; otherwise each has its own, dense, and they change places after a run.
    """

    bytes: int
    grows: tuple[int, int] | None
    together: bool

    def __str__(self) -> str:
        grows = "" if self.grows is None else f" up to {self.grows[1]} along axis {self.grows[0]}"
        return f"state of {self.bytes} bytes{grows}{' in place' if self.together else ''}"
