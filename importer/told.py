"""Elements that can be told of values which are computed: of known sizes joined with others.

An operand that says sizes may be computed for some of them only, as `[17, rows, columns]` is. The
known ones are in the nests that make it, and those that choose and move integers are followed.
"""

from __future__ import annotations

from collections.abc import Mapping

from rutc.importer.building.nest_builder import NestBuilder
from rutc.tensor_ir import Apply, Cast, DType, Expr, Index, IndexValue, Lit, Nest, Read
from rutc.tensor_ir.expr import substitute
from rutc.tensor_ir.interpreter.evaluate import convert, literal, operate

Told = Lit | IndexValue


def told(b: NestBuilder, e: Expr) -> Expr:
    """The number or the expression of sizes that an element is, if nests tell it; else `e`.

    %s{i} = select(index(i - 1) < 0, 17, %rows[])   ->   17 for %s[i=0]

    The number of a loop's trip is no size: it is another one in every trip.
    """
    found = _told(b, e)
    if isinstance(found, IndexValue) and not b.extents.keys().isdisjoint(found.index.names()):
        return e
    return found or e


def _told(b: NestBuilder, e: Expr) -> Told | None:
    match e:
        case IndexValue(index):
            return Lit(index.const, DType.I64) if index.is_const else e
        case Lit(_, dtype):
            return e if dtype.is_int or dtype is DType.BOOL else None
        case Cast(arg, dtype):
            of = _told(b, arg)
            if isinstance(of, Lit) and dtype.is_int:
                return Lit(convert(literal(of), dtype).item(), dtype)
            return None
        case Apply("select", (condition, x, y)):
            chosen = _told(b, condition)
            return _told(b, x if chosen.value else y) if isinstance(chosen, Lit) else None
        case Apply(op, args):
            found: list[Lit] = []
            for x in args:
                if not isinstance(known := _told(b, x), Lit):
                    return None
                found.append(known)
            return Lit(operate(op, [literal(x) for x in found]).item(), e.dtype)
        case Read(value, coords):
            at: dict[str, Index] = {}
            for d, c in coords:
                place = IndexValue(c) if isinstance(c, Index) else _told(b, c)
                if place is None:
                    return None
                at[d] = place.index if isinstance(place, IndexValue) else Index.of(int(place.value))
            return _element(b, value, at, e.dtype)
        case _:
            return None


def _element(b: NestBuilder, value: str, at: Mapping[str, Index], dtype: DType) -> Told | None:
    """What an element of a value is, of one that no reduction gives."""
    if not all(b.inside(c, b.extents[d]) for d, c in at.items()):
        return None
    for n in reversed(b.nodes):
        if isinstance(n, Nest) and any(v.name == value for v in n.outs):
            return None if n.reducer else _told(b, substitute(n.body[0], at))
    for c in b.consts:
        if c.out.name == value and dtype.is_int and all(i.is_const for i in at.values()):
            return Lit(c.data.array[tuple([at[d].const for d in c.axes])].item(), dtype)
    return None
