"""Mutants of a model: its protobuf changed field by field, or its bytes.

What is random comes from a `Random`, so that its seed gives the same mutant again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, nan
from random import Random

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, defs

Pool = Mapping[str, Sequence[Message]]
"""Messages by the name of their type."""

INTS = (
    *(0, 1, -1, 2, 3, 7, -2, 63, 64, 255, 1000, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32),
    *(1 << 40, -(1 << 40), 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 31)),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, nan, inf, -inf, 1e-45, 3.4e38, -3.4e38, 1e30, 0.5, 1e-7, 1e10)
TEXTS = (
    *("", " ", "a/b", "../x", "\0", "%s %d {0}", "\n", "x" * 5000, "\U0001f600", "-1", "é", "'"),
    *("0", "NOTSET", "SAME_UPPER", "linear", "i,j->ij", "constant", "sum"),
)
NO_UTF8 = "\x02\x03\x04\x05"
"""A name that becomes as many bytes that are no UTF-8."""
BAD_BYTES = b"\xff\xc3\x28\xfe"
RANK = 200
DEPTHS = (30, 90, 120, 3000)
MOST_COPIED = 1 << 12
"""Bytes that are changed one by one are no more than these."""

OPERATORS = sorted({s.name for s in defs.get_all_schemas() if s.domain in ("", "ai.onnx.ml")})


def pool_of(models: Sequence[bytes]) -> Pool:
    """All messages of some models, small ones only."""
    found: dict[str, list[Message]] = {}
    for data in models:
        for message in walk(ModelProto.FromString(data)):
            if message.ByteSize() < MOST_COPIED:
                found.setdefault(message.DESCRIPTOR.name, []).append(message)
    return found


def walk(message: Message) -> Iterator[Message]:
    """A message and all in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in value if _repeated(field) else (value,):
            yield from walk(inner)


def mutant(model: bytes, random: Random, pool: Pool) -> bytes:
    """The model after one to about six changes."""
    data = model
    count = 1
    while count < 6 and random.random() < 0.45:
        count += 1
    if random.random() < 0.93:
        proto = ModelProto.FromString(model)
        for _ in range(count):
            change = random.choices(list(CHANGES), list(CHANGES.values()))[0]
            change(proto, random, pool)
        data = proto.SerializeToString().replace(NO_UTF8.encode(), BAD_BYTES)
        if random.random() < 0.95:
            return data
    return random.choice(WIRE)(data, random)


# -- the message
def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _some(proto: ModelProto, random: Random, kind: str | None = None) -> Message | None:
    """A message of a type (any: each type as often as the other)."""
    found: dict[str, list[Message]] = {}
    for message in walk(proto):
        found.setdefault(message.DESCRIPTOR.name, []).append(message)
    if kind is None:
        kind = random.choice(sorted(found))
    return random.choice(found[kind]) if kind in found else None


def _names(proto: ModelProto) -> list[str]:
    """The names of values, in nested graphs too, and one that nothing has."""
    found: dict[str, None] = {}
    for message in walk(proto):
        if isinstance(message, NodeProto):
            found.update(dict.fromkeys((*message.input, *message.output)))
        elif isinstance(message, GraphProto):
            found.update(dict.fromkeys(v.name for v in (*message.input, *message.output)))
            found.update(dict.fromkeys(t.name for t in message.initializer))
    return [*found, "nothing", ""]


def _value(field: FieldDescriptor, proto: ModelProto, random: Random) -> object:
    """Something that a scalar field can hold."""
    if field.enum_type is not None:
        return random.choice(sorted(field.enum_type.values_by_number))
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice(FLOATS)
        case FieldDescriptor.CPPTYPE_INT32:
            number = random.choice(INTS)
            return number if -(1 << 31) <= number < 1 << 31 else random.randrange(40)
        case FieldDescriptor.CPPTYPE_UINT64:
            return abs(random.choice(INTS))
        case FieldDescriptor.CPPTYPE_INT64:
            return random.choice(INTS)
        case _ if field.type == FieldDescriptor.TYPE_BYTES:
            return random.choice((b"", b"\0", BAD_BYTES, random.randbytes(random.randrange(40))))
        case _:
            if random.random() < 0.15:
                return NO_UTF8
            return random.choice((*TEXTS, *_names(proto)))


def _set(message: Message, field: FieldDescriptor, value: object, random: Random) -> None:
    if not _repeated(field):
        setattr(message, field.name, value)
        return
    items = getattr(message, field.name)
    if items and random.random() < 0.7:
        items[random.randrange(len(items))] = value
    else:
        items.append(value)


def scalar_changed(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A scalar that is there becomes another one."""
    message = _some(proto, random)
    fields = [f for f, _ in message.ListFields() if f.message_type is None] if message else []
    if message is not None and fields:
        field = random.choice(fields)
        _set(message, field, _value(field, proto, random), random)


def scalar_added(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A scalar that need not be there is set."""
    message = _some(proto, random)
    fields = [f for f in message.DESCRIPTOR.fields if f.message_type is None] if message else []
    if message is not None and fields:
        field = random.choice(fields)
        _set(message, field, _value(field, proto, random), random)


def dropped(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A field is cleared, or loses one element."""
    message = _some(proto, random)
    fields = [f for f, _ in message.ListFields()] if message else []
    if message is None or not fields:
        return
    field = random.choice(fields)
    if _repeated(field) and random.random() < 0.7:
        items = getattr(message, field.name)
        del items[random.randrange(len(items))]
    else:
        message.ClearField(field.name)


def doubled(proto: ModelProto, random: Random, pool: Pool) -> None:
    """An element of a repeated field is there twice."""
    message = _some(proto, random)
    fields = [f for f, _ in message.ListFields() if _repeated(f)] if message else []
    if message is None or not fields:
        return
    items = getattr(message, random.choice(fields).name)
    items.append(random.choice(items))


def shuffled(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A repeated field has its elements in another order."""
    message = _some(proto, random)
    fields = [f for f, _ in message.ListFields() if _repeated(f)] if message else []
    if message is None or not fields:
        return
    field = random.choice(fields)
    items = list(getattr(message, field.name))
    random.shuffle(items)
    message.ClearField(field.name)
    getattr(message, field.name).extend(items)


def replaced(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A message becomes a copy of another of its type, of this model or of any."""
    message = _some(proto, random)
    if message is None or isinstance(message, ModelProto):
        return
    kind = message.DESCRIPTOR.name
    others = pool.get(kind, ())
    near = random.random() < 0.5 or not others
    other = _some(proto, random, kind) if near else random.choice(others)
    if other is not None and other.ByteSize() < MOST_COPIED:
        copy = type(other).FromString(other.SerializeToString())
        message.CopyFrom(copy)


def grafted(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A message gets one more in a field of it, copied from anywhere."""
    message = _some(proto, random)
    if message is None:
        return
    fields = [f for f in message.DESCRIPTOR.fields if f.message_type is not None]
    fields = [f for f in fields if pool.get(f.message_type.name)]
    if not fields:
        return
    field = random.choice(fields)
    other = random.choice(pool[field.message_type.name])
    if _repeated(field):
        getattr(message, field.name).append(other)
    else:
        getattr(message, field.name).CopyFrom(other)


def rewired(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A node reads or computes another value."""
    node = _some(proto, random, "NodeProto")
    if isinstance(node, NodeProto):
        places = random.choice((node.input, node.input, node.output))
        if places:
            places[random.randrange(len(places))] = random.choice(_names(proto))
        else:
            places.append(random.choice(_names(proto)))


def other_operator(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A node is of another operator."""
    node = _some(proto, random, "NodeProto")
    if isinstance(node, NodeProto):
        node.op_type = random.choice(OPERATORS)


def other_opset(proto: ModelProto, random: Random, pool: Pool) -> None:
    """The model says another version of an operator set."""
    if proto.opset_import:
        random.choice(proto.opset_import).version = random.choice((*range(1, 31), *INTS))


def other_attribute_type(proto: ModelProto, random: Random, pool: Pool) -> None:
    """An attribute is of another type, with a value of it or without."""
    attribute = _some(proto, random, "AttributeProto")
    if not isinstance(attribute, AttributeProto):
        return
    name = attribute.name
    if random.random() < 0.7:
        other = random.choice(pool["AttributeProto"])
        attribute.CopyFrom(other)
        attribute.name = name
    else:
        attribute.type = random.choice(list(AttributeProto.AttributeType.values()))


def other_sizes(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A tensor or a declared type has other extents, perhaps very many or very large."""
    tensor = _some(proto, random, random.choice(("TensorProto", "Dimension", "SparseTensorProto")))
    if tensor is None:
        return
    dims = getattr(tensor, "dims", None)
    if dims is None:
        tensor.dim_value = random.choice(INTS)  # type: ignore[attr-defined]
    elif random.random() < 0.15:
        dims.extend([random.choice((1, 1, 2))] * RANK)
    elif dims and random.random() < 0.7:
        dims[random.randrange(len(dims))] = random.choice(INTS)
    else:
        dims.append(random.choice(INTS))


def other_elements(proto: ModelProto, random: Random, pool: Pool) -> None:
    """A tensor has data of another length, type or place."""
    tensor = _some(proto, random, "TensorProto")
    if not isinstance(tensor, TensorProto):
        return
    match random.randrange(6):
        case 0:
            tensor.raw_data = tensor.raw_data[: random.randrange(len(tensor.raw_data) + 1)]
        case 1:
            tensor.raw_data = tensor.raw_data + random.randbytes(random.randrange(1, 9))
        case 2 if len(tensor.raw_data) < MOST_COPIED:
            tensor.raw_data = random.randbytes(len(tensor.raw_data))
        case 3:
            tensor.data_type = random.choice(TensorProto.DataType.values())
        case 4:
            tensor.data_location = TensorProto.EXTERNAL
            for key in random.sample(("location", "offset", "length", "checksum"), 2):
                value = random.choice((*TEXTS, "model.onnx", "12", str(random.choice(INTS))))
                tensor.external_data.add(key=key, value=value)
        case _:
            tensor.ClearField("raw_data")
            tensor.int64_data.extend(random.choices(INTS, k=random.randrange(5)))


def large_integers(proto: ModelProto, random: Random, pool: Pool) -> None:
    """An integer attribute or an integer tensor has a wild element."""
    kind = random.choice(("AttributeProto", "TensorProto"))
    message = _some(proto, random, kind)
    if isinstance(message, AttributeProto):
        if message.ints:
            message.ints[random.randrange(len(message.ints))] = random.choice(INTS)
        else:
            message.i = random.choice(INTS)
    elif isinstance(message, TensorProto) and message.data_type == TensorProto.INT64:
        raw = bytearray(message.raw_data)
        if len(raw) >= 8:
            place = random.randrange(len(raw) // 8) * 8
            raw[place : place + 8] = random.choice(INTS).to_bytes(8, "little", signed=True)
            message.raw_data = bytes(raw)
        elif message.int64_data:
            place = random.randrange(len(message.int64_data))
            message.int64_data[place] = random.choice(INTS)


Change = Callable[[ModelProto, Random, Pool], None]
CHANGES: Mapping[Change, int] = {
    scalar_changed: 4,
    scalar_added: 3,
    dropped: 4,
    doubled: 2,
    shuffled: 2,
    replaced: 3,
    grafted: 3,
    rewired: 4,
    other_operator: 2,
    other_opset: 1,
    other_attribute_type: 3,
    other_sizes: 3,
    other_elements: 3,
    large_integers: 4,
}
"""The changes to a message, and how often each is drawn."""


# -- the bytes
def cut_off(data: bytes, random: Random) -> bytes:
    """The end is missing."""
    return data[: random.randrange(len(data) + 1)]


def flipped(data: bytes, random: Random) -> bytes:
    """Some bits are others."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        if out:
            out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def put_in(data: bytes, random: Random) -> bytes:
    """Other bytes are in between: any, an overlong number, or bytes of the file again."""
    place = random.randrange(len(data) + 1)
    start = random.randrange(len(data) + 1)
    more = random.choice(
        (
            random.randbytes(random.randrange(1, 20)),
            b"\xff" * random.choice((9, 10, 11, 40)),
            b"\x80" * 9 + b"\x01",
            data[start : start + random.randrange(200)],
        )
    )
    return data[:place] + more + data[place:]


def taken_out(data: bytes, random: Random) -> bytes:
    """Some bytes in between are missing."""
    start = random.randrange(len(data) + 1)
    return data[:start] + data[start + random.choice((1, 1, 2, 8, 100)) :]


def nested(data: bytes, random: Random) -> bytes:
    """The graph has a node more, in which graphs are nested very deep."""
    return data + nested_graphs(random.choice(DEPTHS))


def nested_graphs(depth: int) -> bytes:
    """A model's graph of one node, whose attribute is a graph of one node, and so on."""
    content = b""
    for _ in range(depth):
        attribute = b"\x0a\x01g" + b"\xa0\x01\x05" + _field(6, content)
        node = _field(2, b"y") + _field(4, b"If") + _field(5, attribute)
        content = _field(1, node)
    return _field(7, content)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


WIRE = (cut_off, flipped, flipped, put_in, taken_out, nested)
