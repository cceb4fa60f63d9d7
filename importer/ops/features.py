"""Operators of ai.onnx.ml that prepare features: scaling, choosing, filling in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Tensor
from rutc.importer.ops.activations import mul, squared
from rutc.importer.ops.cuts import concat
from rutc.importer.ops.movement import gather
from rutc.importer.ops.operands import static
from rutc.importer.ops.reductions import reduced
from rutc.importer.ops.reshape import reshape
from rutc.importer.ops.scores import ML, floats
from rutc.importer.registry import operator
from rutc.tensor_ir import DType, Expr, Index, Lit, apply, cast


def _per_feature(b: Builder, x: Tensor, values: Sequence[float], kind: DType, what: str) -> Tensor:
    """A constant of one value, or of one for each feature (the last axis of x)."""
    n = x.shape[-1] if x.rank else Index.of(1)
    if len(values) != 1 and n.is_const and n.const != len(values):
        raise OperatorError(f"{what} has {len(values)} values for {n} features")
    return b.constant(np.array(values, kind.numpy), kind, what)


@operator("Scaler", ML)
def scaler(
    b: Builder, x: Tensor, *, offset: Sequence[float] = (), scale: Sequence[float] = ()
) -> Tensor:
    """(x - offset) * scale, per feature, as f32."""
    y = floats(b, x)
    if offset:
        by = _per_feature(b, x, offset, DType.F32, "offset")
        y = b.map(lambda e, o: apply("sub", e, o), y, by)
    if scale:
        by = _per_feature(b, x, scale, DType.F32, "scale")
        y = b.map(mul, y, by)
    return y


@operator("Normalizer", ML)
def normalizer(b: Builder, x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Each row divided by its largest element, its L1 or its L2 norm; unchanged where that is 0."""
    y = floats(b, x)
    last = (x.rank - 1,)
    if norm == "MAX":
        size = reduced(b, y, last, "max", keepdims=True)
    elif norm == "L1":
        size = reduced(b, y, last, "sum", keepdims=True, lift=lambda e: apply("abs", e))
    elif norm == "L2":
        square = reduced(b, y, last, "sum", keepdims=True, lift=squared)
        size = b.map(lambda e: apply("sqrt", e), square)
    else:
        raise OperatorError(f"the norm {norm!r} is unknown")

    def divided(e: Expr, s: Expr) -> Expr:
        zero = apply("eq", s, lit(0, s.dtype))
        return apply("div", e, apply("select", zero, lit(1, s.dtype), s))

    return b.map(divided, y, size)


@operator("Binarizer", ML)
def binarizer(b: Builder, x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """1 where x is above the threshold, else 0."""

    def fn(e: Expr) -> Expr:
        work = e.dtype if e.dtype.is_float else DType.F32
        above = apply("gt", cast(e, work), Lit(threshold, work))
        return apply("select", above, lit(1, e.dtype), lit(0, e.dtype))

    return b.map(fn, x)


@operator("Imputer", ML)
def imputer(
    b: Builder,
    x: Tensor,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    """x with the elements that equal the replaced value (NaN too) filled in, per feature."""
    values = imputed_value_floats if x.dtype.is_float else imputed_value_int64s
    if not values:
        kind = "floats" if x.dtype.is_float else "int64s"
        raise OperatorError(f"imputed_value_{kind} must be given for elements of {x.dtype}")
    wanted = replaced_value_float if x.dtype.is_float else replaced_value_int64
    filling = _per_feature(b, x, values, x.dtype, "the imputed values")

    def fn(e: Expr, f: Expr) -> Expr:
        missing = apply("eq", e, lit(wanted, e.dtype))
        if wanted != wanted:
            missing = apply("isnan", e)
        return apply("select", missing, f, e)

    return b.map(fn, x, filling)


@operator("ArrayFeatureExtractor", ML)
def array_feature_extractor(b: Builder, x: Tensor, at: Tensor) -> Tensor:
    """The features (on the last axis) at the given positions; a vector becomes one row."""
    count = at.size
    if count.is_const and count.const == 0:
        raise OperatorError("no positions are given")
    y = gather(b, x, reshape(b, at, (count,)), axis=-1)
    return b.reshaped(y, (b.axis(1), *y.axes)) if x.rank == 1 else y


@operator("FeatureVectorizer", ML)
def feature_vectorizer(b: Builder, *parts: Tensor, inputdimensions: Sequence[int] = ()) -> Tensor:
    """The operands' features side by side as f32, each cut or filled with zeros to its length."""
    if not parts:
        raise OperatorError("there are no operands")
    lengths = tuple(inputdimensions) or tuple(
        static(t.shape[-1], "the number of features") for t in parts
    )
    if len(lengths) != len(parts):
        raise OperatorError(f"{len(lengths)} lengths for {len(parts)} operands")
    made: list[Tensor] = []
    for t, n in zip(parts, lengths, strict=True):
        rows = t if t.rank == 2 else b.reshaped(t, (*t.axes, b.axis(1)))
        if rows.rank != 2:
            raise OperatorError(f"a matrix of features is expected, not {t}")
        wide = floats(b, rows)
        fill = lit(0, DType.F32)
        made.append(b.view(wide, (rows.shape[0], n), lambda i, j: (i, j), fill=fill))
    return concat(b, *made, axis=1)
