"""Reading ONNX files safely: the protobuf, and tensor data inside it or beside it.

Large elements, external or not, are mapped, never copied. Offset and length of external data are
checked against the file before (see `external`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    SparseTensorProto,
    TensorProto,
    numpy_helper,
)

from rutc.base.files import ELF
from rutc.errors import UserError
from rutc.importer.reading.external import ModelFolder
from rutc.importer.reading.wire import INSIDE, without_elements
from rutc.tensor_ir import DType

_TYPES: dict[int, DType] = {
    TensorProto.FLOAT: DType.F32,
    TensorProto.UINT8: DType.U8,
    TensorProto.INT8: DType.I8,
    TensorProto.UINT16: DType.U16,
    TensorProto.INT16: DType.I16,
    TensorProto.INT32: DType.I32,
    TensorProto.INT64: DType.I64,
    TensorProto.STRING: DType.STRING,
    TensorProto.BOOL: DType.BOOL,
    TensorProto.FLOAT16: DType.F16,
    TensorProto.DOUBLE: DType.F64,
    TensorProto.UINT32: DType.U32,
    TensorProto.UINT64: DType.U64,
    TensorProto.BFLOAT16: DType.BF16,
    TensorProto.FLOAT8E4M3FN: DType.F8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ: DType.F8E4M3FNUZ,
    TensorProto.FLOAT8E5M2: DType.F8E5M2,
    TensorProto.FLOAT8E5M2FNUZ: DType.F8E5M2FNUZ,
    TensorProto.FLOAT8E8M0: DType.F8E8M0,
    TensorProto.FLOAT4E2M1: DType.F4E2M1,
    TensorProto.FLOAT6E2M3: DType.F6E2M3,
    TensorProto.FLOAT6E3M2: DType.F6E3M2,
    TensorProto.UINT4: DType.U4,
    TensorProto.INT4: DType.I4,
    TensorProto.UINT2: DType.U2,
    TensorProto.INT2: DType.I2,
}
_PACKED = frozenset(d for d in DType if 0 < d.bits < 8)
_NUMBERS = {kind: number for number, kind in _TYPES.items()}
ELEMENT_TYPES = tuple(_NUMBERS)
"""The element types that ONNX has, too."""
KEPT = "kept"
"""The key under which a tensor without elements says which ones of its folder it has."""
MOST_DIGITS = 19
"""Of a place in a file."""
MOST_BYTES = (1 << 31) - 1
"""Of a model without its large elements: protobuf reads no more."""
MAX_ELEMENTS = 1 << 40
MAX_RANK = 64
"""No tensor has more axes: numpy, in which constants are kept, has no more."""
MAX_DENSE = 1 << 31
"""A sparse tensor is made dense; its elements may not be more than these."""
WRITTEN = b", compiled by rutc."
"""In the first line of the headers of compiled models."""
MOST_LINE = 1 << 12
"""Bytes of this line that are looked at."""
STANDARD = "ai.onnx"
"""What the standard's domain is called where it has to be called something."""


class ElementTypeError(UserError):
    """There is no such element type, or rutc does not know it."""


def dtype_of(onnx_type: int, what: str = "") -> DType:
    """The element type of an ONNX type number.

    Raises:
        ElementTypeError: It has no counterpart; the message says `what` is of it.
    """
    if onnx_type not in _TYPES:
        which = f"elements of type {type_name(onnx_type)}, which is not supported"
        raise ElementTypeError(f"{what} has {which}" if what else f"it asks for {which}")
    return _TYPES[onnx_type]


def type_name(onnx_type: int) -> str:
    """What ONNX calls an element type: `FLOAT`; the number of one that it does not know."""
    known = {v: k for k, v in TensorProto.DataType.items()}
    return known.get(onnx_type, str(onnx_type))


def onnx_type(kind: DType) -> int:
    """The ONNX type number of an element type."""
    return _NUMBERS[kind]


def load(path: Path, folder: ModelFolder | None = None) -> ModelProto:
    """The model's protobuf, external data and large elements left on disk.

    The latter can be had (see `array_of`) from `folder` only. Of its two names the standard's
    domain has the empty one. Raises UserError if it is no model.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file")
    if path.is_dir():
        raise UserError(f"{path}: is a directory; give the .onnx file in it")
    try:
        data = _content(path)
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror})") from e
    if len(data) == 0:
        raise UserError(f"{path}: is empty")
    if folder is not None:
        folder.model = data
    small = without_elements(data.data)
    if small is None and len(data) > MOST_BYTES:
        # Protobuf reads no more, and would be given a copy.
        raise UserError(f"{path}: is not an ONNX model, or is truncated")
    try:
        model = onnx.load_model_from_string(data.tobytes() if small is None else small)
    except (DecodeError, ValueError) as e:
        if data[: len(ELF)].tobytes() == ELF:
            raise UserError(
                f"{path}: is a library, not an ONNX model; give the model that it was compiled from"
            ) from e
        if WRITTEN in data[:MOST_LINE].tobytes().partition(b"\n")[0]:
            raise UserError(
                f"{path}: is a C header, not an ONNX model; give the model that it was written for"
            ) from e
        raise UserError(f"{path}: is not an ONNX model, or is truncated") from e
    if not model.HasField("graph") or not model.opset_import:
        raise UserError(f"{path}: is not an ONNX model (it has no graph or no opset)")
    _name_standard(model)
    return model


def _name_standard(model: ModelProto) -> None:
    """Gives the standard's domain the empty one of its two names, wherever a model names it."""
    owners: list[ModelProto | FunctionProto] = [model, *model.functions]
    nodes = chain(model.graph.node, *(f.node for f in model.functions))
    named: list[NodeProto | FunctionProto | OperatorSetIdProto] = [*_all_nodes(nodes)]
    named += [*model.functions, *(o for owner in owners for o in owner.opset_import)]
    for x in named:
        if x.domain == STANDARD:
            x.domain = ""
    for owner in owners:
        # What was said under both names is said once.
        said = {o.SerializeToString(): None for o in owner.opset_import}
        if len(said) < len(owner.opset_import):
            owner.ClearField("opset_import")
            owner.opset_import.extend(map(OperatorSetIdProto.FromString, said))


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yields nodes and those of the graphs that they hold."""
    for node in nodes:
        yield node
        for a in node.attribute:
            for graph in graphs_of(a):
                yield from _all_nodes(graph.node)


def _content(path: Path) -> np.ndarray:
    """A file's bytes, mapped where that can be; of an endless one a few more than a model has."""
    if path.is_file() and path.stat().st_size > 0:
        return np.memmap(path, np.uint8, mode="r")
    with path.open("rb") as stream:
        return np.frombuffer(stream.read(MOST_BYTES + 1), np.uint8)


def shape_of(dims: Iterable[int], what: str, most: int) -> tuple[int, ...]:
    """Declared extents. Raises UserError for a negative one, or too many of them or elements."""
    shape = tuple(dims)
    if len(shape) > MAX_RANK:
        raise UserError(f"{what} has {len(shape)} axes; rutc takes at most {MAX_RANK}")
    if any(n < 0 for n in shape) or prod(shape) > most:
        raise UserError(
            f"{what}: the shape {list(shape)} is not acceptable: an extent is negative, "
            f"or there are more than {most} elements"
        )
    return shape


def array_of(t: TensorProto, folder: ModelFolder) -> np.ndarray:
    """A tensor's elements, without a copy where the bytes can be used as they are."""
    name = t.name or "(unnamed tensor)"
    dtype = dtype_of(t.data_type, f"tensor {name!r}")
    shape = shape_of(t.dims, f"tensor {name!r}", MAX_ELEMENTS)
    count = prod(shape)
    raw: bytes | np.ndarray | None = t.raw_data if t.HasField("raw_data") else None
    if t.data_location == TensorProto.EXTERNAL:
        kept = _kept(t, folder)
        if kept is not None and kept.shape == shape:
            return kept
        raw = _inside(t, folder)
        if raw is None:
            return _external(t, name, dtype, shape, folder)
        if dtype in _PACKED or dtype is DType.STRING:
            t = TensorProto(name=name, data_type=t.data_type, dims=shape, raw_data=raw.tobytes())
    if raw is not None and dtype not in _PACKED and dtype is not DType.STRING:
        need = count * dtype.bytes
        if len(raw) != need:
            raise UserError(f"tensor {name!r}: {len(raw)} bytes of data, its shape needs {need}")
        return np.frombuffer(raw, dtype.numpy).reshape(shape)
    try:
        array = numpy_helper.to_array(t)
    except UnicodeDecodeError as e:
        raise UserError(f"tensor {name!r}: an element is no UTF-8 text: {e.object[:40]!r}") from e
    except (ValueError, TypeError) as e:
        raise UserError(f"tensor {name!r}: its data does not fit its shape ({e})") from e
    if dtype is DType.STRING:
        return array.astype(object)
    if dtype is DType.BF16 and array.dtype != ml_dtypes.bfloat16:
        return array.astype(ml_dtypes.bfloat16)
    return np.asarray(array, dtype.numpy)


def leave_elements(t: TensorProto, folder: ModelFolder) -> None:
    """Takes the elements out of a tensor; `array_of` knows them by the same folder."""
    array = array_of(t, folder)
    left = TensorProto(name=t.name, data_type=t.data_type, dims=t.dims)
    left.data_location = TensorProto.EXTERNAL
    left.external_data.add(key="location", value=INSIDE)
    left.external_data.add(key=KEPT, value=str(len(folder.kept)))
    folder.kept.append(array)
    t.CopyFrom(left)


def _kept(t: TensorProto, folder: ModelFolder) -> np.ndarray | None:
    """The elements that `leave_elements` has left; None for others."""
    fields = {e.key: e.value for e in t.external_data}
    place = fields.get(KEPT, "")
    known = fields.get("location") == INSIDE and place.isdecimal() and len(place) <= MOST_DIGITS
    return folder.kept[int(place)] if known and int(place) < len(folder.kept) else None


def _inside(t: TensorProto, folder: ModelFolder) -> np.ndarray | None:
    """The bytes of elements that `load` has left in the model's file; None for others."""
    fields = {e.key: e.value for e in t.external_data}
    place = [fields.get(key, "") for key in ("offset", "length")]
    known = fields.get("location") == INSIDE and all(
        n.isdecimal() and len(n) <= MOST_DIGITS for n in place
    )
    if not known or folder.model is None:
        return None
    offset, length = map(int, place)
    return folder.model[offset : offset + length]


def dense_of(t: SparseTensorProto, folder: ModelFolder) -> np.ndarray:
    """A sparse tensor's elements, those that it leaves out as zeros.

    Raises:
        UserError: Its values and indices do not fit each other or its shape.
    """
    name = t.values.name or "(unnamed sparse tensor)"
    shape = shape_of(t.dims, f"sparse tensor {name!r}", MAX_DENSE)
    count = prod(shape)
    values = array_of(t.values, folder)
    at = array_of(t.indices, folder)
    stored = len(values) if values.ndim == 1 else -1
    if at.dtype != np.int64 or at.shape not in ((stored,), (stored, len(shape))):
        raise UserError(
            f"sparse tensor {name!r}: indices of shape {list(at.shape)} do not fit "
            f"values of shape {list(values.shape)} and the shape {list(shape)}"
        )
    limits = shape if at.ndim == 2 else (count,)
    if at.size and ((at < 0) | (at >= np.array(limits))).any():
        raise UserError(f"sparse tensor {name!r}: an index is out of range")
    zero = "" if dtype_of(t.values.data_type) is DType.STRING else 0
    dense = np.full(count, zero, values.dtype)
    dense[np.ravel_multi_index(tuple(at.T), shape) if at.ndim == 2 else at] = values
    return dense.reshape(shape)


def _number_of(text: str) -> int:
    """A number of bytes. Raises ValueError for what only Python takes for one, as `1_000`."""
    if not re.fullmatch(r"-?[0-9]+", text):
        raise ValueError(f"{text} is no number of bytes")
    return int(text)


def _external(
    t: TensorProto, name: str, dtype: DType, shape: tuple[int, ...], folder: ModelFolder
) -> np.ndarray:
    fields = {e.key: e.value for e in t.external_data}
    path = folder.file(fields.get("location", ""), name)
    try:
        offset = _number_of(fields.get("offset", "0"))
        length = _number_of(fields["length"]) if "length" in fields else None
    except ValueError as e:
        raise UserError(f"tensor {name!r}: offset or length of its external data is bad") from e
    count = prod(shape)
    need = -(-count * dtype.bits // 8) if dtype in _PACKED else count * dtype.bytes
    size = path.stat().st_size
    if length is not None and length != need:
        raise UserError(
            f"tensor {name!r}: {length} bytes of external data, but its shape needs {need}"
        )
    if offset < 0 or offset + need > size:
        raise UserError(
            f"tensor {name!r}: bytes {offset}..{offset + need} lie outside of {path.name} "
            f"({size} bytes); is the file complete?"
        )
    if dtype in _PACKED or dtype is DType.STRING:
        inline = TensorProto(name=name, data_type=t.data_type, dims=shape)
        with path.open("rb") as f:
            f.seek(offset)
            inline.raw_data = f.read(need)
        return array_of(inline, folder)
    if count == 0:
        return np.empty(shape, dtype.numpy)
    bytes_ = np.memmap(path, np.uint8, mode="r", offset=offset, shape=(need,))
    if offset % dtype.bytes:
        return np.frombuffer(bytes_.tobytes(), dtype.numpy).reshape(shape)
    return bytes_.view(dtype.numpy).reshape(shape)


def attribute_value(a: AttributeProto, folder: ModelFolder) -> object:
    """An attribute as a Python value: a number, text, tuple, array, GraphProto or TypeProto."""
    match a.type:
        case AttributeProto.FLOAT:
            return a.f
        case AttributeProto.INT:
            return a.i
        case AttributeProto.STRING:
            return _text(a.s, a.name)
        case AttributeProto.TENSOR:
            return array_of(a.t, folder)
        case AttributeProto.SPARSE_TENSOR:
            return dense_of(a.sparse_tensor, folder)
        case AttributeProto.GRAPH:
            return a.g
        case AttributeProto.TYPE_PROTO:
            return a.tp
        case AttributeProto.FLOATS:
            return tuple(a.floats)
        case AttributeProto.INTS:
            return tuple(a.ints)
        case AttributeProto.STRINGS:
            texts = {s: _text(s, a.name) for s in set(a.strings)}
            return tuple(map(texts.__getitem__, a.strings))
        case _:
            kind = AttributeProto.AttributeType.Name(a.type)
            raise UserError(f"attribute {a.name!r} of kind {kind} is not supported")


def _text(data: bytes, attribute: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UserError(f"the attribute {attribute!r} holds no UTF-8 text: {data[:40]!r}") from e


def graphs_of(a: AttributeProto) -> tuple[GraphProto, ...]:
    """The graphs that an attribute holds."""
    return (*((a.g,) if a.HasField("g") else ()), *a.graphs)


def subgraphs(graph: GraphProto) -> list[GraphProto]:
    """The graph and all graphs nested in its nodes' attributes."""
    found = [graph]
    for node in graph.node:
        for a in node.attribute:
            for inner in graphs_of(a):
                found += subgraphs(inner)
    return found
