"""ONNX files read without the elements of their large tensors, which stay where they are.

    field of a message = key, content        key = number << 3 | kind, as a varint
    content by kind: 0 a varint | 1 8 bytes | 2 a length as a varint, so many bytes | 5 4 bytes

Reading a protobuf copies everything in it. Here each large tensor, an initializer or an attribute
of a node in any graph or function, says instead, as if its elements were external, at which bytes
of the file they begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from onnx import StringStringEntryProto, TensorProto

from rutc.base.record import record

INSIDE = "\0"
"""The location of elements in the model's own file; no other file has such a name."""

PLACED = frozenset(("location", "offset", "length"))
"""What is said of elements in the model's own file."""

LEAST_BYTES = 1 << 16
"""Tensors with fewer bytes are copied."""

MESSAGE = 2
GRAPH, FUNCTION, NODE, ATTRIBUTE, TENSOR = range(5)
"""The messages that have tensors in them, but for the model, and these."""
ONE_TENSOR = 5
"""The number of an attribute's field that is one tensor: written twice, it is what both say."""
Fields = dict[int, int]
_MODEL: Fields = {7: GRAPH, 25: FUNCTION}
_HELD: dict[int, Fields] = {
    GRAPH: {1: NODE, 5: TENSOR},
    FUNCTION: {7: NODE},
    NODE: {5: ATTRIBUTE},
    ATTRIBUTE: {ONE_TENSOR: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH},
}
"""The fields of a message that are such messages, by number."""
RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER << 3 | MESSAGE
PLACE = frozenset((TensorProto.EXTERNAL_DATA_FIELD_NUMBER, TensorProto.DATA_LOCATION_FIELD_NUMBER))


def _run_without(*numbers: int) -> re.Pattern[bytes]:
    """A run of fields that are numbers or below 128 bytes, of which none has one of the numbers.

    A node of an ensemble of trees is some ten such fields, and an ensemble has millions of nodes.
    Only keys of a byte are in such a run. What has matched is not tried again (`++`), so that a run
    may be of any length.
    """

    def keys(kind: int) -> bytes:
        return b"[%s]" % re.escape(bytes(n << 3 | kind for n in range(1, 16) if n not in numbers))

    lengths = (re.escape(bytes([n])) + b".{%d}" % n for n in range(128))
    kinds = {
        0: rb"[\x80-\xff]{0,9}[\x00-\x7f]",
        1: b".{8}",
        2: b"(?:%s)" % b"|".join(lengths),
        5: b".{4}",
    }
    one = b"|".join(keys(kind) + content for kind, content in kinds.items())
    return re.compile(b"(?:%s)++" % one, re.DOTALL)


_KEPT_RUN = _run_without(ONE_TENSOR)
"""Fields that are kept as they are, whatever message has them."""
_TENSOR_RUN = _run_without(TensorProto.RAW_DATA_FIELD_NUMBER, *PLACE)


@record
class Field:
    """A field of a message: its key, and where it, its content and what follows it begin."""

    key: int
    start: int
    content: int
    end: int


def without_elements(data: memoryview) -> bytes | None:
    """The file of a model without large elements; None where it is not as protobuf writes it."""
    try:
        return b"".join(_parts(data, Field(0, 0, 0, len(data)), _MODEL))
    except (IndexError, RecursionError, ValueError):
        return None


def _parts(data: memoryview, message: Field, held: Fields) -> Iterator[bytes | memoryview]:
    """A message of which the fields `held` have tensors in them, without the elements of these."""
    tensors, kept = 0, message.content
    for field in _fields(data, message, _KEPT_RUN):
        number, form = divmod(field.key, 8)
        kind = held.get(number) if form == MESSAGE else None
        tensors += (held is _HELD[ATTRIBUTE]) and number == ONE_TENSOR
        if tensors > 1:
            raise ValueError("what is one tensor is written as two, of which each has a part")
        parts: Iterable[bytes | memoryview] | None = None
        if kind is not None and field.end - field.content >= LEAST_BYTES:
            parts = _tensor(data, field) if kind == TENSOR else _parts(data, field, _HELD[kind])
        if parts is not None:
            yield data[kept : field.start]
            yield from _enclosed(field.key, parts)
            kept = field.end
    yield data[kept : message.end]


def _tensor(data: memoryview, tensor: Field) -> list[bytes | memoryview] | None:
    """A tensor's fields, its elements replaced by their place; None for one that keeps them."""
    fields = list(_fields(data, tensor, _TENSOR_RUN))
    raw = [field for field in fields if field.key == RAW_DATA]
    if len(raw) != 1 or any(field.key >> 3 in PLACE for field in fields):
        return None
    (elements,) = raw
    facts = {
        "location": INSIDE,
        "offset": str(elements.content),
        "length": str(elements.end - elements.content),
    }
    entries = [StringStringEntryProto(key=key, value=value) for key, value in facts.items()]
    place = TensorProto(data_location=TensorProto.EXTERNAL, external_data=entries)
    before, after = data[tensor.content : elements.start], data[elements.end : tensor.end]
    return [before, after, place.SerializeToString()]


def _enclosed(key: int, parts: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """A field that is a message of these parts."""
    content = list(parts)
    return [_varint(key), _varint(sum(map(len, content))), *content]


def _fields(data: memoryview, message: Field, passed: re.Pattern[bytes]) -> Iterator[Field]:
    """The fields of a message that do not lie in `passed` runs.

    Raises ValueError or IndexError where there are none.
    """
    at, end = message.content, message.end
    while at < end:
        if run := passed.match(data, at, end):
            at = run.end()
            continue
        start = at
        key, at = _number(data, at)
        if key < 8:
            raise ValueError("there is no field 0")
        match key & 7:
            case 0:
                content = at
                _, at = _number(data, at)
            case 1:
                content, at = at, at + 8
            case 2:
                length, content = _number(data, at)
                at = content + length
            case 5:
                content, at = at, at + 4
            case kind:
                raise ValueError(f"there is no kind {kind} of fields")
        if at > end:
            raise ValueError("a field ends after its message")
        yield Field(key, start, content, at)


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """A varint, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has too many bytes")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
