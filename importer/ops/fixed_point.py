"""Products by 8-bit weights in fixed point: rows are rounded to 8 bits, each by its own step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import lit
from rutc.importer.building.tensor import Axis, Tensor
from rutc.importer.ops.reductions import reduced
from rutc.tensor_ir import DType, Expr, Index, apply, cast
from rutc.tensor_ir.indices.affine import ONE, ZERO

LARGEST_SUM = (1 << 31) - 1
UNITS = (1 << 7) - 1
"""The largest number of a row."""


@record
class Stored:
    """Whole numbers {direction, k, row} that times a scale are weights.

    Sums of their products with rows fit 32 bits.
    """

    numbers: Tensor
    scale: Tensor

    def sums(
        self, b: Builder, x: Tensor, direction: int, out: Sequence[Axis], row: Index
    ) -> Tensor:
        """s{.., out} = sum{k} x{.., k} * weights[direction, row, k], each row of x rounded.

        step{..}  = max{k} |x| / 127
        q{.., k}  = i8(round(x / step))
        s{.., out} = f32(sum{k} q * numbers[direction, k, row]) * (step * scale)
        """
        units = lit(UNITS, x.dtype)
        most = reduced(b, x, (x.rank - 1,), "max", keepdims=True, lift=lambda e: apply("abs", e))

        def unit(e: Expr) -> Expr:
            none = apply("eq", e, lit(0, e.dtype))
            return apply("select", none, lit(1, e.dtype), apply("div", e, units))

        def rounded(e: Expr, by: Expr) -> Expr:
            return cast(cast(apply("round", apply("div", e, by)), DType.I32), DType.I8)

        step = b.map(unit, most)
        q = b.map(rounded, x, step)
        *around, k = b.axes(x.shape)
        at = [a.index for a in around]
        factors = b.read(q, [*at, k.index]), b.read(self.numbers, [direction, k.index, row])
        wide = [cast(f, DType.I32) for f in factors]
        total = b.nest((*around, *out), apply("mul", *wide), (k,))
        axes = b.axes(total.shape)
        own = axes[: len(around)]
        place = row.subs(
            {o.dim: a.index for o, a in zip(out, axes[len(around) :], strict=True) if o.dim}
        )
        by = apply(
            "mul",
            b.read(step, [*(a.index for a in own), ZERO]),
            self._scale(b, direction, place),
        )
        return b.nest(axes, apply("mul", cast(b.spread(total, axes), x.dtype), by))

    def _scale(self, b: Builder, direction: int, row: Index) -> Expr:
        if self.scale.rank == 1:
            return b.read(self.scale, [direction])
        return b.read(self.scale, [direction, ZERO if self.scale.shape[1] == ONE else row])


def stored(b: Builder, numbers: Tensor, scale: Tensor, zero: Tensor) -> Stored | None:
    """Weights of 8 bits less their zero points; None where they are not known.

    None, too, where so many are summed that 32 bits might not hold it.
    """
    array, offset = numbers.array, zero.array
    if array is None or offset is None or scale.dtype is not DType.F32:
        return None
    whole = array.astype(np.int16) - offset.astype(np.int16).reshape(array.shape[0], 1, -1)
    most = int(np.abs(whole.astype(np.int64)).sum(axis=1).max(initial=1))
    if most * UNITS > LARGEST_SUM:
        return None
    kept = numbers if not offset.any() else b.constant(whole)
    return Stored(kept, scale)
