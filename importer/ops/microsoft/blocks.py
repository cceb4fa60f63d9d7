"""Rows gathered from a table that is quantised in blocks."""

from __future__ import annotations

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import mul
from rutc.importer.ops.microsoft import DOMAIN
from rutc.importer.ops.microsoft.packed import UNSIGNED, unpacked
from rutc.importer.ops.operands import axis_of
from rutc.importer.registry import operator
from rutc.tensor_ir import Coord, DType, Expr, Index, IndexValue, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO, floordiv


def _numbers(b: Builder, t: Tensor, bits: int, count: int | None) -> Tensor:
    """The elements of a table; bytes hold several along the last axis (`count`: how many count)."""
    if t.dtype is not DType.U8 or bits == 8:
        return t
    if t.array is None:
        raise OperatorError(f"{t} holds packed numbers; it must be a constant")
    whole = t.array.shape[-1] * 8 // bits if count is None else count
    return b.constant(unpacked(t.array, bits, whole), UNSIGNED[bits], f"{b.base}_table")


@operator("GatherBlockQuantized", DOMAIN)
def gather_block_quantized(
    b: Builder,
    data: Tensor,
    at: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """(data - zero point) * scale at the positions `at` of an axis; 0 at positions out of range.

    Scales and zero points hold for blocks of `block_size` elements along `quantize_axis`.
    """
    if bits not in UNSIGNED:
        raise OperatorError(f"{bits} bits are not supported; 2, 4 and 8 are")
    packed = data.dtype is DType.U8
    x = _numbers(b, data, bits, None)
    where, along = axis_of(gather_axis, x.rank), axis_of(quantize_axis, x.rank)
    if where == along:
        raise OperatorError("the axis to gather on may not be the one of the blocks")
    shape = (*x.shape[:where], *at.shape, *x.shape[where + 1 :])
    axes = b.axes(shape)
    inner = [a.index for a in axes[where : where + at.rank]]
    given = cast(b.read(at, inner), DType.I64)
    extent = IndexValue(x.shape[where])
    negative = apply("lt", given, lit(0, DType.I64))
    position = apply("select", negative, apply("add", given, extent), given)
    before, after = axes[:where], axes[where + at.rank :]
    coords: list[Coord] = [a.index for a in before]
    coords += [position, *(a.index for a in after)]
    number = cast(b.read(x, coords, lit(0, x.dtype)), DType.F32)
    block = list(coords)
    element = block[along]
    assert isinstance(element, Index)
    block[along] = floordiv(element, Index.of(block_size or x.shape[along]), b.ranges)
    block = [ZERO if e == ONE else c for e, c in zip(scales.shape, block, strict=True)]
    scale = cast(b.read(scales, block, lit(0, scales.dtype)), DType.F32)
    middle: Expr | None = lit(1 << (bits - 1), DType.F32) if packed else None
    if zeros is not None:
        count = scales.shape[-1].const if scales.shape[-1].is_const else None
        points = _numbers(b, zeros, bits, count)
        middle = cast(b.read(points, block, lit(0, points.dtype)), DType.F32)
    if middle is not None:
        number = apply("sub", number, middle)
    low = apply("ge", position, lit(0, DType.I64))
    valid = apply("and", low, apply("lt", position, extent))
    made = cast(mul(number, scale), scales.dtype)
    return b.nest(axes, apply("select", valid, made, lit(0, made.dtype)))
