"""Sequences of tensors and optionals.

Those of known structure are resolved while importing; of others the program has the boxes {n}.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto

from rutc.importer.any_rank import is_any_rank
from rutc.importer.boxes import (
    concatenated,
    element_at,
    erased,
    fronted,
    inserted,
    length_of,
    listed,
)
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.tensor import (
    Absent,
    Boxed,
    Item,
    ListType,
    OptionalType,
    Tensor,
    TensorList,
    TensorType,
    known_ints,
)
from rutc.importer.ops.control import tensors
from rutc.importer.ops.cuts import concat, split
from rutc.importer.ops.operands import axis_of, ints, static
from rutc.importer.ops.scans import collected
from rutc.importer.ops.size_operands import bound, checked, number
from rutc.importer.ops.unit_axes import squeezed, unsqueeze
from rutc.importer.ops.value_range import definition
from rutc.importer.registry import operator
from rutc.tensor_ir import Cast, DType, Expr, Index, Lit, apply, cast


def _position(position: Tensor | None, count: int, *, last: int) -> int:
    """A position in a sequence of `count` elements, up to `last`."""
    if position is None:
        return last
    (i,) = ints(position, "the position")
    found = i + count if i < 0 else i
    if not 0 <= found <= last:
        raise OperatorError(f"position {i} is out of range for {count} elements")
    return found


def _open_position(
    b: Builder, position: Tensor | None, count: Index, *, last: Index, default: Index
) -> Expr:
    """A position counted from the front, in a sequence of `count` elements.

    The run ends where it is not in 0..last.
    """
    if position is None:
        at: Expr = number(default)
    else:
        given = cast(b.read(position, [0] * position.rank), DType.I64)
        ahead = apply("add", given, number(count))
        at = apply("select", apply("lt", given, number(0)), ahead, given)
    at = b.read(b.nest((), at), [])
    ok = apply("and", apply("ge", at, number(0)), apply("le", at, number(last)))
    length = f" of {count} elements" if count.is_const else ""
    return checked(b, at, ok, f"a position is out of range for a sequence{length}")


def _is_open(items: TensorList | Boxed, position: Tensor | None) -> bool:
    """Whether the sequence or the position is known at run time only."""
    return isinstance(items, Boxed) or (position is not None and position.array is None)


@operator("SequenceConstruct")
def sequence_construct(b: Builder, *items: Item) -> Item:
    """The sequence of the operands."""
    tensors = tuple(t for t in items if isinstance(t, Tensor))
    if len(tensors) == len(items):
        return TensorList(tensors)
    made: Item = TensorList(())
    for item in items:
        made = sequence_insert(b, listed(b, made), item)
    return made


@operator("SequenceEmpty")
def sequence_empty(b: Builder, *, dtype: int = 1) -> TensorList:
    """The sequence without elements."""
    return TensorList(())


@operator("SequenceInsert")
def sequence_insert(
    b: Builder, items: TensorList | Boxed, item: Item, position: Tensor | None = None
) -> Item:
    """The sequence with an element put in before a position (at the end by default)."""
    if isinstance(items, TensorList) and isinstance(item, Tensor) and not _is_open(items, position):
        old = items.items
        place = _position(position, len(old), last=len(old))
        return TensorList((*old[:place], item, *old[place:]))
    row = listed(b, items)
    count = length_of(row)
    if position is None:
        return inserted(b, row, item, number(count))
    return inserted(b, row, item, _open_position(b, position, count, last=count, default=count))


@operator("SequenceErase")
def sequence_erase(b: Builder, items: TensorList | Boxed, position: Tensor | None = None) -> Item:
    """The sequence without the element at a position (the last by default)."""
    if isinstance(items, TensorList) and not _is_open(items, position):
        old = items.items
        place = _position(position, len(old), last=len(old) - 1)
        return TensorList((*old[:place], *old[place + 1 :]))
    row = listed(b, items)
    count = length_of(row)
    at = _open_position(b, position, count, last=count - 1, default=count - 1)
    return erased(b, row, at, bound(b, apply("sub", number(count), number(1)), "left"))


@operator("SequenceAt")
def sequence_at(b: Builder, items: TensorList | Boxed, position: Tensor) -> Item:
    """The element at a position."""
    count = len(items.items) if isinstance(items, TensorList) else None
    if count == 0 or (isinstance(items, TensorList) and not _is_open(items, position)):
        assert isinstance(items, TensorList)
        return items.items[_position(position, len(items.items), last=len(items.items) - 1)]
    length = Index.of(count) if count is not None else length_of(listed(b, items))
    at = _open_position(b, position, length, last=length - 1, default=length - 1)
    if isinstance(items, TensorList) and len({(t.shape, t.dtype) for t in items.items}) == 1:
        return _chosen(b, items.items, at)
    return element_at(b, listed(b, items), at)


def _chosen(b: Builder, items: Sequence[Tensor], at: Expr) -> Tensor:
    """The item at a position, of items that look alike."""
    found = items[-1]
    for place in range(len(items) - 2, -1, -1):
        axes = b.axes(found.shape)
        here = apply("eq", at, number(place))
        found = b.nest(
            axes, apply("select", here, b.spread(items[place], axes), b.spread(found, axes))
        )
    return found


@operator("SequenceLength")
def sequence_length(b: Builder, items: TensorList | Boxed) -> Tensor:
    """The number of elements."""
    if isinstance(items, TensorList):
        return b.constant(np.array(len(items.items)))
    count = length_of(listed(b, items))
    return b.constant(known_ints([count], (), DType.I64), DType.I64)


@operator("SplitToSequence")
def split_to_sequence(
    b: Builder, x: Tensor, sizes: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> Item:
    """x cut along an axis: into parts of one size or of given sizes, by default of 1."""
    at = axis_of(axis, x.rank)
    whole = x.shape[at]
    if (sizes is not None and sizes.array is None) or (
        not whole.is_const and (sizes is None or sizes.rank == 0)
    ):
        return _cut(b, x, sizes, at, keepdims=sizes is not None or bool(keepdims))
    given = ints(sizes, "split") if sizes is not None else (1,)
    if sizes is None or sizes.rank == 0:
        n = static(whole, "the extent")
        (part,) = given
        if part < 1:
            raise OperatorError(f"parts of {part} elements")
        given = (*[part] * (n // part), *([n % part] if n % part else []))
    parts = split(b, x, b.constant(np.array(given, np.int64)), axis=at)
    if sizes is None and not keepdims:
        parts = tuple(squeezed(b, p, b.constant(np.array([at]))) for p in parts)
    return TensorList(parts)


def _cut(b: Builder, x: Tensor, sizes: Tensor | None, axis: int, *, keepdims: bool) -> Boxed:
    """The parts of x where the run says how many or how large they are."""
    whole = x.shape[axis]
    if sizes is not None and sizes.rank > 0:
        (row,) = b.full_axes((sizes.shape[0],))
        extents = b.nest((row,), cast(b.read(sizes, [row.index]), DType.I64))
    else:
        each = number(1) if sizes is None else cast(b.read(sizes, []), DType.I64)
        positive = apply("gt", each, number(0))
        each = checked(b, each, positive, "parts of less than 1 element")
        room = apply("sub", apply("add", number(whole), each), number(1))
        (row,) = b.full_axes((bound(b, apply("div", room, each), "parts"),))
        left = apply("sub", number(whole), apply("mul", number(row.index), each))
        extents = b.nest((row,), apply("min", each, left))
    (k,) = b.full_axes((row.extent,))
    how = {"axis": axis, "keepdims": int(keepdims)}
    operands = b.whole(x), b.whole(extents)
    (boxes,) = b.call("cut", operands, [(DType.TENSOR, (k,))], **how)
    shape: list[Index | None] = list(x.shape)
    shape[axis] = Index.of(1) if sizes is None else _size_of_each(b, sizes)
    if not keepdims:
        del shape[axis]
    return Boxed(ListType(TensorType(x.dtype, tuple(shape))), boxes)


def _size_of_each(b: Builder, sizes: Tensor) -> Index | None:
    """What all of the sizes are that the run counts, if they are one known number."""
    found = definition(b, sizes.name) if sizes.rank else None
    e = found[0] if found is not None and len(found) == 1 else None
    while isinstance(e, Cast):
        e = e.arg
    return Index.of(int(e.value)) if isinstance(e, Lit) else None


@operator("ConcatFromSequence")
def concat_from_sequence(
    b: Builder, items: TensorList | Boxed, *, axis: int, new_axis: int = 0
) -> Tensor:
    """The elements joined along an axis, or stacked along a new one."""
    if isinstance(items, Boxed):
        row = listed(b, items)
        some = apply("gt", number(length_of(row)), number(0))
        count = bound(b, checked(b, number(length_of(row)), some, "the sequence is empty"), "count")
        return concatenated(b, fronted(b, row, count), axis, new_axis=bool(new_axis))
    if not items.items:
        raise OperatorError("the sequence is empty")
    if not new_axis:
        return concat(b, *items.items, axis=axis)
    at = axis_of(axis, items.items[0].rank + 1)
    where = b.constant(np.array([at]))
    return concat(b, *(unsqueeze(b, t, where) for t in items.items), axis=at)


@operator("Optional")
def optional(b: Builder, x: Item | None = None, *, type: object = None) -> Item:
    """The operand: an optional that has an element is that element."""
    return Absent() if x is None else x


@operator("OptionalGetElement")
def optional_get_element(b: Builder, x: Item) -> Item:
    """The operand."""
    if isinstance(x, Absent):
        raise OperatorError("the optional has no element")
    if isinstance(x, Boxed) and isinstance(x.type, OptionalType):
        there = apply("gt", number(length_of(x)), number(0))
        return element_at(b, x, checked(b, number(0), there, "the optional has no element"))
    return x


@operator("OptionalHasElement")
def optional_has_element(b: Builder, x: Item | None = None) -> Tensor:
    """Whether there is an operand."""
    if isinstance(x, Boxed) and isinstance(x.type, OptionalType):
        return b.nest((), apply("gt", number(length_of(x)), number(0)))
    return b.constant(np.array(not (x is None or isinstance(x, Absent))))


@operator("SequenceMap")
def sequence_map(
    b: Builder,
    first: TensorList | Boxed,
    *others: Tensor | TensorList | Boxed,
    body: GraphProto,
) -> tuple[Item, ...]:
    """The body's results for each element of the sequences; a tensor is the same for all."""
    operands: list[Item] = [first, *others]
    if any(isinstance(o, Boxed) and isinstance(o.type, ListType) for o in operands):
        return _mapped(b, operands, body)
    assert isinstance(first, TensorList)
    if any(isinstance(o, TensorList) and len(o.items) != len(first.items) for o in others):
        raise OperatorError("the sequences differ in length")
    columns: list[list[Tensor]] = [[] for _ in body.output]
    for i, item in enumerate(first.items):
        given = [item, *(o.items[i] if isinstance(o, TensorList) else o for o in others)]
        for column, made in zip(columns, tensors(b.subgraph(body, given)), strict=True):
            column.append(made)
    return tuple(TensorList(tuple(c)) for c in columns)


def _mapped(b: Builder, operands: Sequence[Item], body: GraphProto) -> tuple[Item, ...]:
    """`sequence_map` as a scan over the elements, which collects boxes."""
    rows = [
        listed(b, o) if isinstance(o, TensorList | Boxed) and not is_any_rank(o) else o
        for o in operands
    ]
    lengths = [length_of(r) for r in rows if isinstance(r, Boxed) and not is_any_rank(r)]
    count = lengths[0]
    for other in lengths[1:]:
        count = b.same(count, other)

    def step(t: Index | Tensor, states: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
        at = t if isinstance(t, Index) else b.read(t, [])
        given = [
            element_at(b, r, at) if isinstance(r, Boxed) and not is_any_rank(r) else r for r in rows
        ]
        return (), b.subgraph(body, given)

    return tuple(collected(b, count, step))
