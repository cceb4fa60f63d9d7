"""Sequences of tensors and optionals, resolved while importing: none remains at run time."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto

from rutc.importer.builder import Builder, OperatorError, lit
from rutc.importer.ops.control import tensors, unless
from rutc.importer.ops.movement import concat, split, squeeze, unsqueeze
from rutc.importer.ops.operands import axis_of, ints, static
from rutc.importer.registry import operator
from rutc.importer.tensor import Absent, Item, Tensor, TensorList
from rutc.tensor_ir import DType, Expr, apply, cast


def _position(position: Tensor | None, count: int, *, last: int) -> int:
    """A position in a sequence of `count` elements, up to `last`."""
    if position is None:
        return last
    (i,) = ints(position, "the position")
    found = i + count if i < 0 else i
    if not 0 <= found <= last:
        raise OperatorError(f"position {i} is out of range for {count} elements")
    return found


@operator("SequenceConstruct")
def sequence_construct(b: Builder, *items: Tensor) -> TensorList:
    """The sequence of the operands."""
    return TensorList(items)


@operator("SequenceEmpty")
def sequence_empty(b: Builder, *, dtype: int = 1) -> TensorList:
    """The sequence without elements."""
    return TensorList(())


def _open_position(b: Builder, position: Tensor | None, count: int, *, last: int) -> Tensor | None:
    """A position that is known at run time only, counted from the front; None for any other.

    The run ends where it is out of range.
    """
    if position is None or position.known is not None:
        return None

    def number(value: int) -> Expr:
        return lit(value, DType.I64)

    given = cast(b.read(position, [0] * position.rank), DType.I64)
    ahead = apply("add", given, number(count))
    at = b.nest((), apply("select", apply("lt", given, number(0)), ahead, given))
    found = b.read(at, [])
    bad = apply("or", apply("lt", found, number(0)), apply("gt", found, number(last)))
    message = f"a position is out of range for a sequence of {count} elements"
    return unless(b, b.nest((), bad), at, f"{b.origin[0] if b.origin else 'a node'}: {message}")


def _either(b: Builder, test: str, at: Tensor, place: int, this: Tensor, that: Tensor) -> Tensor:
    """`this` where `at <test> place` holds, else `that`, which must look like it."""
    if this.shape != that.shape or this.dtype is not that.dtype:
        raise OperatorError(
            f"the elements differ ({this} and {that}), so the position must be known when compiling"
        )
    axes = b.axes(this.shape)
    here = apply(test, b.read(at, []), lit(place, DType.I64))
    return b.nest(axes, apply("select", here, b.spread(this, axes), b.spread(that, axes)))


@operator("SequenceInsert")
def sequence_insert(
    b: Builder, items: TensorList, item: Tensor, position: Tensor | None = None
) -> TensorList:
    """The sequence with an element put in before a position (at the end by default)."""
    old = items.items
    count = len(old)
    at = _open_position(b, position, count, last=count)
    if at is None:
        place = _position(position, count, last=count)
        return TensorList((*old[:place], item, *old[place:]))
    made: list[Tensor] = []
    for i in range(count + 1):
        after = item if i == 0 else _either(b, "eq", at, i, item, old[i - 1])
        made.append(after if i == count else _either(b, "gt", at, i, old[i], after))
    return TensorList(tuple(made))


@operator("SequenceErase")
def sequence_erase(b: Builder, items: TensorList, position: Tensor | None = None) -> TensorList:
    """The sequence without the element at a position (the last by default)."""
    old = items.items
    count = len(old)
    at = _open_position(b, position, count, last=count - 1)
    if at is None:
        place = _position(position, count, last=count - 1)
        return TensorList((*old[:place], *old[place + 1 :]))
    kept = (_either(b, "gt", at, i, old[i], old[i + 1]) for i in range(count - 1))
    return TensorList(tuple(kept))


@operator("SequenceAt")
def sequence_at(b: Builder, items: TensorList, position: Tensor) -> Tensor:
    """The element at a position."""
    old = items.items
    count = len(old)
    at = _open_position(b, position, count, last=count - 1)
    if at is None or count == 0:
        return old[_position(position, count, last=count - 1)]
    found = old[-1]
    for i in range(count - 1, -1, -1):
        found = _either(b, "eq", at, i, old[i], found)
    return found


@operator("SequenceLength")
def sequence_length(b: Builder, items: TensorList) -> Tensor:
    """The number of elements."""
    return b.constant(np.array(len(items.items)))


@operator("SplitToSequence")
def split_to_sequence(
    b: Builder, x: Tensor, sizes: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> TensorList:
    """x cut along an axis: into parts of one size or of given sizes, by default of 1."""
    at = axis_of(axis, x.rank)
    given = ints(sizes, "split") if sizes is not None else (1,)
    if sizes is None or sizes.rank == 0:
        n = static(x.shape[at], "the extent")
        (part,) = given
        if part < 1:
            raise OperatorError(f"parts of {part} elements")
        given = (*[part] * (n // part), *([n % part] if n % part else []))
    parts = split(b, x, b.constant(np.array(given, np.int64)), axis=at)
    if sizes is None and not keepdims:
        parts = tuple(squeeze(b, p, b.constant(np.array([at]))) for p in parts)
    return TensorList(parts)


@operator("ConcatFromSequence")
def concat_from_sequence(b: Builder, items: TensorList, *, axis: int, new_axis: int = 0) -> Tensor:
    """The elements joined along an axis, or stacked along a new one."""
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
    return x


@operator("OptionalHasElement")
def optional_has_element(b: Builder, x: Item | None = None) -> Tensor:
    """Whether there is an operand."""
    return b.constant(np.array(not (x is None or isinstance(x, Absent))))


@operator("SequenceMap")
def sequence_map(
    b: Builder, first: TensorList, *others: Tensor | TensorList, body: GraphProto
) -> tuple[TensorList, ...]:
    """The body's results for each element of the sequences; a tensor is the same for all."""
    if any(isinstance(o, TensorList) and len(o.items) != len(first.items) for o in others):
        raise OperatorError("the sequences differ in length")
    columns: list[list[Tensor]] = [[] for _ in body.output]
    for i, item in enumerate(first.items):
        given = [item, *(o.items[i] if isinstance(o, TensorList) else o for o in others)]
        for column, made in zip(columns, tensors(b.subgraph(body, given)), strict=True):
            column.append(made)
    return tuple(TensorList(tuple(c)) for c in columns)
