"""Operators of ai.onnx.ml on maps, of which only the values exist at run time."""

from __future__ import annotations

from collections.abc import Sequence

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import Tensor, TensorMap
from rutc.importer.ops.elementwise import converted
from rutc.importer.ops.scores import ML, matrix
from rutc.importer.registry import operator
from rutc.tensor_ir import DType

_CASTS = {"TO_FLOAT": DType.F32, "TO_INT64": DType.I64, "TO_STRING": DType.STRING}


@operator("ZipMap", ML)
def zip_map(
    b: Builder,
    x: Tensor,
    *,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
) -> TensorMap:
    """A map from the labels to the values for each row of x {n, labels}."""
    keys: tuple[int | str, ...] = (*classlabels_int64s, *classlabels_strings)
    rows = matrix(b, x)
    columns = rows.shape[1]
    if columns.is_const and columns.const != len(keys):
        raise OperatorError(f"{len(keys)} labels for {columns} columns")
    return TensorMap(keys, rows)


@operator("DictVectorizer", ML)
def dict_vectorizer(
    b: Builder,
    x: TensorMap,
    *,
    int64_vocabulary: Sequence[int] = (),
    string_vocabulary: Sequence[str] = (),
) -> Tensor:
    """{1, vocabulary}: the map's values in the vocabulary's order, 0 for keys that it lacks."""
    if x.keys != (*string_vocabulary, *int64_vocabulary):
        raise OperatorError("the map is read with another vocabulary too")
    return b.reshaped(x.values, (b.axis(1), *x.values.axes))


@operator("CastMap", ML)
def cast_map(
    b: Builder,
    x: TensorMap,
    *,
    cast_to: str = "TO_FLOAT",
    map_form: str = "DENSE",
    max_map: int = 1,
) -> Tensor:
    """{1, entries}: the values in the order of the keys; sparse, at the keys' positions."""
    if cast_to not in _CASTS or map_form not in ("DENSE", "SPARSE"):
        raise OperatorError(f"{cast_to!r} or {map_form!r} is unknown")
    if (map_form == "SPARSE") is (x.keys is None):
        raise OperatorError("the map is read in another form too")
    values = converted(b, x.values, _CASTS[cast_to])
    return b.reshaped(values, (b.axis(1), *values.axes))
