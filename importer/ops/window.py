"""The geometry that convolutions and pooling share: kernel, strides, dilations, pads."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Axis, Shape
from rutc.importer.free_sizes.open_sizes import not_empty
from rutc.tensor_ir import Index
from rutc.tensor_ir.indices.affine import ZERO, floordiv, maximum, minimum

SPATIAL_ROLES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}
KERNEL_ROLES = {1: ("kx",), 2: ("ky", "kx"), 3: ("kz", "ky", "kx")}


def spatial_roles(rank: int) -> tuple[str, ...]:
    """What the spatial axes are called."""
    return SPATIAL_ROLES.get(rank, ("s",) * rank)


def kernel_roles(rank: int) -> tuple[str, ...]:
    """What the kernel's axes are called."""
    return KERNEL_ROLES.get(rank, ("k",) * rank)


@record
class Window:
    """A window of `kernel` elements sliding over spatial axes; `out` are the output's extents."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[Index, ...]
    end: tuple[Index, ...]
    out: Shape

    def coords(self, out: Sequence[Axis], kernel: Sequence[Axis]) -> tuple[Index, ...]:
        """The input's coordinates: stride * o + dilation * k - pad for every axis."""
        return tuple(
            o.index * s + k.index * d - p
            for o, k, s, d, p in zip(
                out, kernel, self.strides, self.dilations, self.begin, strict=True
            )
        )


def window(
    b: Builder,
    spatial: Shape,
    kernel: Sequence[int],
    *,
    auto_pad: str,
    dilations: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
    ceil_mode: bool = False,
) -> Window:
    """The window over axes of these extents, each of which it must fit.

    Raises:
        OperatorError: Attributes disagree.
        SizeFoundError: It does not fit small values of a size that nobody stated.
    """
    rank = len(spatial)
    strides = tuple(strides) or (1,) * rank
    dilations = tuple(dilations) or (1,) * rank
    pads = tuple(pads) or (0,) * (2 * rank)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise OperatorError(
            f"kernel {tuple(kernel)}, strides {strides}, dilations {dilations} and pads {pads} "
            f"do not fit {rank} spatial axes"
        )
    if min((*strides, *dilations, *kernel), default=1) < 1:
        raise OperatorError("kernel, strides and dilations must be positive")
    begin, end = ([Index.of(p) for p in side] for side in (pads[:rank], pads[rank:]))
    out: list[Index] = []
    for i, (n, k, s, d) in enumerate(zip(spatial, kernel, strides, dilations, strict=True)):
        reach = (k - 1) * d + 1
        if auto_pad.startswith("SAME"):
            size = floordiv(n + (s - 1), Index.of(s), b.ranges)
            total = maximum((size - 1) * s + reach - n, 0, b.ranges)
            less = floordiv(total, Index.of(2), b.ranges)
            more = total - less
            begin[i], end[i] = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
            out.append(size)
            continue
        if auto_pad == "VALID":
            begin[i], end[i] = ZERO, ZERO
        room = n + (begin[i] + end[i] - reach)
        if ceil_mode:
            size = floordiv(room + (s - 1), Index.of(s), b.ranges) + 1
            inside = floordiv(n + (begin[i] - 1), Index.of(s), b.ranges) + 1
            size = minimum(size, inside, b.ranges)
        else:
            size = floordiv(room, Index.of(s), b.ranges) + 1
        if size.is_const and size.const < 0:
            raise OperatorError(f"a window of {reach} elements does not fit {n} padded ones")
        out.append(size)
    for extent in out:
        not_empty(b, extent)
    return Window(tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(out))
