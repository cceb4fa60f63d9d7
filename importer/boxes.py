"""Items as tensors of fixed shapes, which is what loops carry and branches give.

    %n = call box_shape(%box)[0];  bind s = %n;  %x{d} = call unbox(%box)        extent(d) = s

A tensor whose shape does not vary is that itself; all else is a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import (
    Absent,
    Boxed,
    Item,
    ListType,
    OptionalType,
    Tensor,
    TensorList,
    TensorMap,
    TensorType,
    TupleType,
    Type,
)
from rutc.tensor_ir import DType, Expr, Index, IndexValue, Lit, apply
from rutc.tensor_ir.indices.affine import ONE

Leaf = TensorType | ListType | OptionalType
"""A type that one tensor can stand for: itself, or its box."""


# -- types --------------------------------------------------------------------------------------
def type_of(item: Item, known: AbstractSet[str] | None = None) -> Type:
    """The type of an item; sizes that are not among the `known` ones vary."""
    match item:
        case Tensor():
            return within(TensorType(item.dtype, item.shape), known)
        case TensorList():
            return TupleType(tuple(type_of(t, known) for t in item.items))
        case Absent():
            return OptionalType(None)
        case Boxed():
            return within(item.type, known)
        case TensorMap():
            raise OperatorError("a map cannot be passed on here")


def within(t: Type, known: AbstractSet[str] | None) -> Type:
    """The type for those who know these sizes only."""
    if known is None:
        return t
    match t:
        case TensorType(dtype, shape):
            seen = (None if e is None or not e.names() <= known else e for e in shape or ())
            return TensorType(dtype, None if shape is None else tuple(seen))
        case TupleType(items):
            return TupleType(tuple(within(i, known) for i in items))
        case ListType(element):
            return ListType(None if element is None else within(element, known))
        case OptionalType(element):
            return OptionalType(None if element is None else within(element, known))


def join(a: Type | None, b: Type | None) -> Type | None:
    """The narrowest type of the items of both. Raises OperatorError where there is none."""
    if a == b or b is None:
        return a
    match a, b:
        case None, _:
            return b
        case TensorType(kind, one), TensorType(other, two) if kind is other:
            if one is None or two is None or len(one) != len(two):
                return TensorType(kind, None)
            pairs = zip(one, two, strict=True)
            return TensorType(kind, tuple(x if x == y else None for x, y in pairs))
        case TupleType(one), TupleType(two) if len(one) == len(two):
            items = tuple(_join(x, y) for x, y in zip(one, two, strict=True))
            fits = all(isinstance(i, TensorType) and i.shape is not None for i in items)
            return TupleType(items) if fits else ListType(joined(items))
        case ((TupleType() | ListType()), (TupleType() | ListType())):
            return ListType(join(element_of(a), element_of(b)))
        case (OptionalType(), _) | (_, OptionalType()):
            held = [t.element if isinstance(t, OptionalType) else t for t in (a, b)]
            return OptionalType(join(held[0], held[1]))
    raise OperatorError(f"{a} and {b} have no common type")


def _join(a: Type, b: Type) -> Type:
    found = join(a, b)
    assert found is not None
    return found


def joined(types: Iterable[Type]) -> Type | None:
    """`join` of any number of types; None for none."""
    found: Type | None = None
    for t in types:
        found = join(found, t)
    return found


def element_of(t: Type) -> Type | None:
    """The type of a sequence's elements."""
    return joined(t.items) if isinstance(t, TupleType) else getattr(t, "element", None)


def leaves(t: Type) -> list[Leaf]:
    """The types of what one tensor each stands for: the places of sequences of known structure."""
    if isinstance(t, TupleType):
        return [leaf for i in t.items for leaf in leaves(i)]
    return [t]


# -- items --------------------------------------------------------------------------------------
def spread(item: Item, t: Type) -> list[Item]:
    """The items of the leaves of a type, which the item has."""
    if isinstance(t, TupleType):
        assert isinstance(item, TensorList)
        return [x for i, u in zip(item.items, t.items, strict=True) for x in spread(i, u)]
    return [item]


def gathered(items: Iterable[Item], t: Type) -> Item:
    """The item of the type `t` with these items as its leaves, which it takes from the front."""
    left = iter(items)

    def take(u: Type) -> Item:
        if not isinstance(u, TupleType):
            return next(left)
        made = [take(i) for i in u.items]
        return TensorList(tuple(m for m in made if isinstance(m, Tensor)))

    return take(t)


def is_plain(t: Type) -> bool:
    """Whether tensors of this type are passed on as they are."""
    return isinstance(t, TensorType) and t.fixed is not None


def packed(b: Builder, item: Item, t: Leaf) -> Tensor:
    """The tensor that stands for an item of a leaf's type: itself, or a box."""
    if isinstance(item, Tensor) and is_plain(t):
        return item
    return boxed(b, item, t)


def unpacked(b: Builder, tensor: Tensor, t: Leaf) -> Item:
    """The item that a tensor stands for."""
    return tensor if is_plain(t) else opened(b, tensor, t)


def boxed(b: Builder, item: Item, t: Type) -> Tensor:
    """The box of an item of type `t`."""
    if isinstance(t, TensorType):
        if isinstance(item, Boxed):
            return item.boxes
        assert isinstance(item, Tensor)
        return b.call("box", (b.whole(item),), [(DType.TENSOR, ())])[0]
    boxes = optional_boxes(b, item, t) if isinstance(t, OptionalType) else listed(b, item).boxes
    return b.call("box", (b.whole(boxes),), [(DType.TENSOR, ())])[0]


def opened(b: Builder, box: Tensor, t: Type | None) -> Item:
    """The item of type `t` that is in a box."""
    match t:
        case None:
            raise OperatorError("nothing says what the sequence's elements are")
        case TensorType(dtype, shape):
            if shape is None:
                return Boxed(t, box)
            return _read(b, box, dtype, shape)
        case TupleType():
            return opened(b, box, ListType(element_of(t)))
        case ListType() | OptionalType():
            return Boxed(t, _read(b, box, DType.TENSOR, (None,)))


def _read(b: Builder, box: Tensor, dtype: DType, shape: Sequence[Index | None]) -> Tensor:
    extents = _extents(b, shape, "box_shape", box)
    return b.call("unbox", (box,), [(dtype, b.full_axes(extents))])[0]


def _extents(
    b: Builder, shape: Sequence[Index | None], routine: str, of: Tensor, **how: int
) -> Sequence[Index]:
    """A shape, of which a routine tells the extents that are not known."""
    known = [e for e in shape if e is not None]
    if len(known) == len(shape):
        return known
    (row,) = b.full_axes((len(shape),))
    (found,) = b.call(routine, (of,), [(DType.I64, (row,))], **how)
    return [
        b.size(b.nest((), b.read(found, [k])), "extent") if e is None else e
        for k, e in enumerate(shape)
    ]


# -- sequences and optionals --------------------------------------------------------------------
def listed(b: Builder, item: Item) -> Boxed:
    """A sequence as one of run-time length."""
    if isinstance(item, Boxed) and isinstance(item.type, ListType):
        return item
    if not isinstance(item, TensorList):
        raise OperatorError(f"a sequence is needed, not {item}")
    found = joined(type_of(t) for t in item.items)
    each = [boxed(b, t, type_of(t)) for t in item.items]
    return Boxed(ListType(found), _row(b, each))


def _row(b: Builder, each: Sequence[Tensor]) -> Tensor:
    if not each:
        return b.constant(np.empty(0, object), DType.TENSOR)
    (axis,) = b.full_axes((len(each),))
    return b.call("boxes", each, [(DType.TENSOR, (axis,))])[0]


def optional_boxes(b: Builder, item: Item, t: OptionalType) -> Tensor:
    """The boxes {0} or {1} of an optional."""
    if isinstance(item, Boxed) and isinstance(item.type, OptionalType):
        return item.boxes
    if isinstance(item, Absent) or t.element is None:
        return _row(b, [])
    return _row(b, [boxed(b, item, t.element)])


def length_of(items: Boxed) -> Index:
    """The number of elements."""
    return items.boxes.shape[0]


def element_at(b: Builder, items: Boxed, position: Expr | Index) -> Item:
    """The element at a position, which must be inside."""
    box = b.nest((), b.read(items.boxes, [position]))
    return opened(b, box, element_of(items.type))


def inserted(b: Builder, items: Boxed, item: Item, position: Expr) -> Boxed:
    """The sequence with an element put in before a position."""
    kind = type_of(item)
    one = boxed(b, item, kind)
    (axis,) = b.axes((length_of(items) + 1,))
    here, nothing = IndexValue(axis.index), Lit(0, DType.TENSOR)
    before = b.read(items.boxes, [axis.index], nothing)
    after = b.read(items.boxes, [axis.index - 1], nothing)
    there = apply("select", apply("eq", here, position), b.read(one, []), after)
    row = b.nest((axis,), apply("select", apply("lt", here, position), before, there))
    return Boxed(ListType(join(element_of(items.type), kind)), row)


def fronted(b: Builder, items: Boxed, count: Index) -> Boxed:
    """The first `count` elements."""
    (axis,) = b.axes((count,))
    row = b.nest((axis,), b.read(items.boxes, [axis.index], Lit(0, DType.TENSOR)))
    return Boxed(items.type, row)


def erased(b: Builder, items: Boxed, position: Expr, count: Index) -> Boxed:
    """The sequence of `count` elements that remain without that at a position."""
    (axis,) = b.axes((count,))
    here, nothing = IndexValue(axis.index), Lit(0, DType.TENSOR)
    before = b.read(items.boxes, [axis.index], nothing)
    after = b.read(items.boxes, [axis.index + 1], nothing)
    row = b.nest((axis,), apply("select", apply("lt", here, position), before, after))
    return Boxed(items.type, row)


def concatenated(b: Builder, items: Boxed, axis: int, *, new_axis: bool) -> Tensor:
    """The elements along an axis one after the other, or along a new one."""
    element = element_of(items.type)
    if not isinstance(element, TensorType):
        raise OperatorError("nothing says what the sequence's elements are")
    if element.shape is None:
        raise OperatorError("the elements' rank is known at run time only, so the result's is")
    rank = len(element.shape) + new_axis
    if not -rank <= axis < rank:
        raise OperatorError(f"axis {axis} is out of range for rank {rank}")
    axis %= rank
    how = {"axis": axis, "new_axis": int(new_axis)}
    boxes = b.whole(items.boxes)
    shape = list(element.shape)
    if new_axis:
        shape.insert(axis, length_of(items))
    else:
        shape[axis] = None
    extents = _extents(b, shape, "joined_shape", boxes, **how)
    return b.call("joined", (boxes,), [(element.dtype, b.full_axes(extents))], **how)[0]


def flattened(b: Builder, item: Boxed) -> tuple[Tensor, Tensor]:
    """(the elements {n} in row-major order, the shape {rank}) of a tensor of unknown rank."""
    assert isinstance(item.type, TensorType)
    (count,) = b.call("box_rank", (item.boxes,), [(DType.I64, ())])
    rank = b.size(count, "rank", 64)
    (row,) = b.full_axes((rank,))
    (shape,) = b.call("box_shape", (item.boxes,), [(DType.I64, (row,))])
    total = b.nest((), b.read(shape, [row.index]), (row,), "prod")
    (axis,) = b.full_axes((b.size(total, "elements", MOST),))
    (flat,) = b.call("unbox", (item.boxes,), [(item.type.dtype, (axis,))], flat=1)
    return flat, shape


def only_element(b: Builder, item: Item) -> Item:
    """A tensor of unknown rank as the scalar that it holds, all else as it is.

    A run in which it has more or fewer elements ends.
    """
    if not isinstance(item, Boxed) or not isinstance(item.type, TensorType):
        return item
    flat, _ = flattened(b, item)
    # It lies where the size that is checked says, so that it is there.
    return b.nest((), b.read(flat, [b.same(flat.shape[0], ONE) - ONE]))


def reshaped_box(b: Builder, flat: Tensor, shape: Tensor) -> Boxed:
    """The tensor of unknown rank with these elements and this shape."""
    operands = b.whole(flat), b.whole(shape)
    (box,) = b.call("box", operands, [(DType.TENSOR, ())])
    return Boxed(TensorType(flat.dtype, None), box)
