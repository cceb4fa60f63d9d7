"""Operators that move elements and compute none: views, gathers, and tensors of given elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import SMALL, Tensor, known_ints, shape_text
from rutc.importer.free_sizes.open_sizes import must_equal
from rutc.importer.free_sizes.overflow import differ
from rutc.importer.ops.control import unless
from rutc.importer.ops.fit import of_shape
from rutc.importer.ops.operands import axis_of, indices, static
from rutc.importer.ops.positions import (
    checked_lengths,
    column,
    element_at,
    gathered,
    position_in,
)
from rutc.importer.ops.reshape import reshape, resolve
from rutc.importer.ops.size_operands import (
    expand_dynamic,
    number,
    range_dynamic,
    reshape_dynamic,
)
from rutc.importer.ops.size_operands import sizes as sizes_of
from rutc.importer.reading.proto import dtype_of
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Index, IndexValue, Lit, apply, cast
from rutc.tensor_ir.indices.affine import ZERO, floordiv, maximum, mod, product


@operator("Reshape")
def reshape_to(b: Builder, x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    """`x` with another shape."""
    if shape.known is None:
        return reshape_dynamic(b, x, shape, allowzero=bool(allowzero))
    # What is left of extents that a model adds up in several ways may be a multiple.
    short = [e.simplify(b.ranges) for e in x.shape]
    if short != list(x.shape):
        x = b.view(x, short, lambda *at: at)
    asked = [e.simplify(b.ranges) for e in indices(shape, "the shape")]
    wanted = resolve(b, x, asked, allowzero=bool(allowzero))
    return reshape(b, _holding(b, x, wanted), wanted)


def _holding(b: Builder, x: Tensor, shape: Sequence[Index]) -> Tensor:
    """`x`, or the end of the run where a shape of symbolic sizes has not as many elements."""
    missing = x.size - product(shape)
    bounds = missing.bounds(b.ranges)
    if missing.is_const or bounds is None or not bounds[0] <= 0 <= bounds[1]:
        return x
    must_equal(b, x.size, product(shape))
    different = b.nest((), differ(x.size, product(shape), b.ranges))
    message = f"{', '.join(b.origin)}: {x} cannot be reshaped to {shape_text(shape)}"
    return unless(b, different, x, message)


@operator("Flatten")
def flatten(b: Builder, x: Tensor, *, axis: int = 1) -> Tensor:
    """`x` as a matrix, its axes before `axis` merged and the others too."""
    at = axis_of(axis, x.rank) if axis != x.rank else axis
    return reshape(b, x, (product(x.shape[:at]), product(x.shape[at:])))


@operator("Transpose")
def transpose(b: Builder, x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    """`x` with its axes in another order."""
    order = list(perm) if perm is not None else list(range(x.rank))[::-1]
    if sorted(order) != list(range(x.rank)):
        raise OperatorError(f"perm {tuple(order)} is no permutation of the axes of {x}")
    return b.permuted(x, order)


@operator("Expand")
def expand(b: Builder, x: Tensor, shape: Tensor) -> Tensor:
    """`x` broadcast to a shape (and the shape to x)."""
    if shape.known is None:
        return expand_dynamic(b, x, shape)
    out = b.broadcast([x.shape, indices(shape, "the shape")])
    if out == x.shape:
        return x
    axes = b.axes(out)
    return b.nest(axes, b.spread(x, axes))


@operator("Tile")
def tile(b: Builder, x: Tensor, repeats: Tensor) -> Tensor:
    """`x` repeated along its axes."""
    times = sizes_of(b, repeats, "repeats", length=x.rank)
    if len(times) != x.rank:
        raise OperatorError(f"{len(times)} repeats for {x}")
    shape = [e * k for e, k in zip(x.shape, times, strict=True)]
    return b.view(
        x, shape, lambda *out: [mod(o, e, b.ranges) for o, e in zip(out, x.shape, strict=True)]
    )


@operator("DepthToSpace")
def depth_to_space(b: Builder, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of channels moved to blocks of space."""
    if x.rank != 4:
        raise OperatorError(f"{x} is not of rank 4")
    n, c, h, w = x.shape
    s = blocksize
    if c.is_const and c.const % (s * s):
        raise OperatorError(f"the {c} channels are no whole number of blocks of {s}")
    depth = floordiv(c, Index.of(s * s), b.ranges)

    def coords(i: Index, k: Index, y: Index, z: Index) -> Sequence[Index]:
        by, bx = mod(y, Index.of(s), b.ranges), mod(z, Index.of(s), b.ranges)
        block = by * s + bx
        channel = k * (s * s) + block if mode == "CRD" else block * depth + k
        return i, channel, floordiv(y, Index.of(s), b.ranges), floordiv(z, Index.of(s), b.ranges)

    shape = (n, depth, h * s, w * s)
    return b.view(x, shape, coords, ("n", "c", "y", "x"), fill=lit(0, x.dtype))


@operator("SpaceToDepth")
def space_to_depth(b: Builder, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of space moved to blocks of channels."""
    if x.rank != 4:
        raise OperatorError(f"{x} is not of rank 4")
    n, c, h, w = x.shape
    s = blocksize
    if any(e.is_const and e.const % s for e in (h, w)):
        raise OperatorError(f"the extents {h} and {w} are no whole number of blocks of {s}")
    tall, wide = floordiv(h, Index.of(s), b.ranges), floordiv(w, Index.of(s), b.ranges)
    channels = maximum(c, 1, b.ranges)

    def coords(i: Index, k: Index, y: Index, z: Index) -> Sequence[Index]:
        if mode == "CRD":
            block, channel = (
                mod(k, Index.of(s * s), b.ranges),
                floordiv(k, Index.of(s * s), b.ranges),
            )
        else:
            block, channel = floordiv(k, channels, b.ranges), mod(k, channels, b.ranges)
        by, bx = floordiv(block, Index.of(s), b.ranges), mod(block, Index.of(s), b.ranges)
        return i, channel, y * s + by, z * s + bx

    shape = (n, c * (s * s), tall, wide)
    return b.view(x, shape, coords, ("n", "c", "y", "x"), fill=lit(0, x.dtype))


@operator("Shape")
def shape_of(b: Builder, x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """The extents of x."""
    part = x.shape[start:end]
    return b.constant(known_ints(part, (len(part),), DType.I64), DType.I64)


@operator("Size")
def size_of(b: Builder, x: Tensor) -> Tensor:
    """The number of elements of x."""
    return b.constant(known_ints([x.size], (), DType.I64), DType.I64)


@operator("Constant")
def constant(
    b: Builder,
    *,
    value: object = None,
    sparse_value: object = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Tensor:
    """The attribute's value."""
    for data in (value, sparse_value):
        if isinstance(data, np.ndarray):
            return b.constant(data)
    for given, kind in (
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
        (value_string, object),
        (value_strings, object),
    ):
        if given is not None:
            return b.constant(np.array(given, kind))
    raise OperatorError("the constant has no value")


@operator("ConstantOfShape")
def constant_of_shape(b: Builder, shape: Tensor, *, value: object = None) -> Tensor:
    """One value everywhere."""
    element = np.zeros(1, np.float32) if value is None else np.asarray(value)
    extents = sizes_of(b, shape, "the shape")
    if any(e.is_const and e.const < 0 for e in extents):
        raise OperatorError(f"the shape {shape_text(extents)} has a negative extent")
    if all(e.is_const for e in extents) and product(extents).const <= SMALL:
        return b.constant(np.full([e.const for e in extents], element.reshape(-1)[0]))
    one = b.constant(element.reshape(()))
    axes = b.axes(extents)
    return b.nest(axes, b.read(one, []))


@operator("Range")
def range_of(
    b: Builder, start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1
) -> Tensor:
    """start, start + delta, ... before limit."""
    if any(t.known is None or not t.dtype.is_int for t in (start, limit, delta)):
        return range_dynamic(b, start, limit, delta)
    first, last, step = (
        indices(t, "the bounds") if t.dtype.is_int else () for t in (start, limit, delta)
    )
    if not (first and last and step) or not step[0].is_const:
        raise OperatorError("the bounds must be integers known when compiling")
    s = step[0].const
    span = last[0] - first[0] if s > 0 else first[0] - last[0]
    count = maximum(floordiv(span + (abs(s) - 1), Index.of(abs(s)), b.ranges), 0, b.ranges)
    (axis,) = b.axes((count,))
    return b.nest((axis,), cast(IndexValue(first[0] + axis.index * s), start.dtype))


@operator("Gather")
def gather(b: Builder, x: Tensor, at: Tensor, *, axis: int = 0) -> Tensor:
    """x[.., at[..], ..] along an axis; negative positions count from the end."""
    return gathered(b, x, at, axis)


@operator("GatherElements")
def gather_elements(b: Builder, x: Tensor, at: Tensor, *, axis: int = 0) -> Tensor:
    """out[i, j, ..] = x[i, at[i, j, ..], ..] along an axis."""
    a = axis_of(axis, x.rank)
    axes = b.axes(at.shape)
    if any(e == ZERO for e in at.shape):
        return b.empty(axes, x.dtype)
    here = [i.index for i in axes]
    coords: list[Coord] = list(here)
    coords[a] = position_in(b, at, here, x.shape[a])
    return b.nest(axes, element_at(b, x, coords))


@operator("GatherND")
def gather_nd(b: Builder, x: Tensor, at: Tensor, *, batch_dims: int = 0) -> Tensor:
    """out[.., j] = x[at[.., :], j]: the last axis of `at` holds coordinates."""
    depth = static(at.shape[-1], "the last extent of the indices")
    outer = at.shape[:-1]
    if batch_dims > len(outer) or batch_dims + depth > x.rank:
        raise OperatorError(f"the indices {at} have more coordinates than {x} has axes")
    alike = (*x.shape[:batch_dims], *at.shape[batch_dims:])
    at = of_shape(b, at, alike, f"holds coordinates in {batch_dims} batches of {x}")
    shape = (*outer, *x.shape[batch_dims + depth :])
    axes = b.axes(shape)
    if any(e == ZERO for e in shape):
        return b.empty(axes, x.dtype)
    here = [i.index for i in axes[: len(outer)]]
    coords: list[Coord] = list(here[:batch_dims])
    coords += [
        position_in(b, column(b, at, k), here, x.shape[batch_dims + k]) for k in range(depth)
    ]
    coords += [i.index for i in axes[len(outer) :]]
    return b.nest(axes, element_at(b, x, coords))


@operator("EyeLike")
def eye_like(b: Builder, x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """1 on the diagonal that `k` shifts, else 0."""
    kind = x.dtype if dtype is None else dtype_of(dtype)
    rows, columns = b.axes(x.shape)
    on = apply("eq", IndexValue(columns.index - rows.index), Lit(k, DType.I64))
    return b.nest((rows, columns), apply("select", on, lit(1, kind), lit(0, kind)))


@operator("OneHot")
def one_hot(b: Builder, at: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """The on value where a new axis meets the index, else the off value."""
    (count,) = sizes_of(b, depth, "the depth", length=1)
    where = axis_of(axis, at.rank + 1)
    axes = b.axes((*at.shape[:where], count, *at.shape[where:]))
    rest = [a.index for i, a in enumerate(axes) if i != where]
    element = cast(b.read(at, rest), DType.I64)
    low = apply("lt", element, lit(0, DType.I64))
    element = apply("select", low, apply("add", element, number(count)), element)
    hit = apply("eq", element, IndexValue(axes[where].index))
    return b.nest(axes, apply("select", hit, b.read(values, [1]), b.read(values, [0])))


@operator("ReverseSequence")
def reverse_sequence(
    b: Builder, x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """`x` with the first `lengths[batch]` elements along the time axis reversed."""
    lengths = checked_lengths(b, lengths, x.shape[time_axis])
    return reversed_within(b, x, lengths, batch_axis, time_axis)


def reversed_within(
    b: Builder, x: Tensor, lengths: Tensor, batch_axis: int, time_axis: int
) -> Tensor:
    """`reverse_sequence` for lengths that are in range."""
    axes = b.axes(x.shape)
    time = IndexValue(axes[time_axis].index)
    length = cast(b.read(lengths, [axes[batch_axis].index]), DType.I64)
    mirrored = apply("sub", apply("sub", length, lit(1, DType.I64)), time)
    coords: list[Coord] = [a.index for a in axes]
    if axes[time_axis].dim is not None:
        inside = apply("lt", time, length)
        coords[time_axis] = apply("select", inside, mirrored, time)
    return b.nest(axes, b.read(x, coords))
