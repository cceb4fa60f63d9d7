"""Operands that name axes and are inputs of the model: the sizes of the results are computed.

A reduction over axes that the run tells is one nest over two dims for each axis, of which one has
the axis's extent and the other the extent 1:

    %y{i, j} = sum{k, l} %x[d=i + k, e=j + l]        i: 1, k: n where d is reduced; else i: n, k: 1
"""

from __future__ import annotations

from collections.abc import Sequence

from rutc.base.record import record
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, check_rank
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import Shape, Tensor
from rutc.importer.ops.size_operands import bound, cut_by, elements, most_of, number
from rutc.tensor_ir import DType, Expr, Index, Lit, apply, cast
from rutc.tensor_ir.indices.affine import ONE

FALSE = Lit(False, DType.BOOL)


@record
class Named:
    """The axes of a shape of which an operand names `count`; `hits` tells for each whether."""

    b: Builder
    hits: tuple[Expr, ...]
    count: int

    def chosen(self, extents: Sequence[Index], *, named: bool) -> Shape:
        """For every axis its extent if it is named (or is not), else 1."""
        return tuple(
            e if e == ONE else self._size(apply("select", h, *_order(number(e), named)), e)
            for h, e in zip(self.hits, extents, strict=True)
        )

    def without(self, extents: Sequence[Index]) -> Shape:
        """The extents of the axes that are not named."""
        rest = len(extents) - self.count
        places = self._places()
        found: list[Index] = []
        for k in range(rest):
            total: Expr = number(0)
            for h, place, e in zip(self.hits, places, extents, strict=True):
                here = apply("and", apply("not", h), apply("eq", place, number(k)))
                total = apply("add", total, apply("select", here, number(e), number(0)))
            found.append(self._size(total, None))
        return tuple(found)

    def put_in(self, extents: Sequence[Index]) -> Shape:
        """The extents in order, with 1 where an axis is named."""
        found: list[Index] = []
        for h, place in zip(self.hits, self._places(), strict=True):
            total: Expr = number(0)
            for k, e in enumerate(extents):
                total = apply("select", apply("eq", place, number(k)), number(e), total)
            found.append(self._size(apply("select", h, number(1), total), None))
        return tuple(found)

    def _places(self) -> list[Expr]:
        """How many axes before each one are not named."""
        places: list[Expr] = [number(0)]
        for h in self.hits[:-1]:
            free = cast(apply("not", h), DType.I64)
            places.append(self.b.read(self.b.nest((), apply("add", places[-1], free)), []))
        return places

    def _size(self, e: Expr, extent: Index | None) -> Index:
        most = MOST if extent is None else max(most_of(self.b, extent), 1)
        return self.b.size(self.b.nest((), e), "part", most, 0)


def _order(e: Expr, named: bool) -> tuple[Expr, Expr]:
    return (e, number(1)) if named else (number(1), e)


def named_axes(b: Builder, axes: Tensor, rank: int, only: Sequence[Index] = ()) -> Named:
    """The axes that an operand names, each once; of extents `only` just those of 1.

    The run ends where that is not so.
    """
    check_rank(rank)
    given = elements(b, axes, "axes")
    _check_count(len(given), rank)
    positions = [_wrapped(p, rank) for p in given]
    mask: Expr = number(0)
    count: Expr = number(0)
    fits: Expr = Lit(True, DType.BOOL)
    for i in range(rank):
        hit: Expr = FALSE
        for p in positions:
            hit = apply("or", hit, apply("eq", p, number(i)))
        bit = cast(hit, DType.I64)
        count = apply("add", count, bit)
        mask = apply("add", mask, apply("mul", bit, _bit(i)))
        if only:
            unit = apply("eq", number(only[i]), number(1))
            fits = apply("and", fits, apply("or", apply("not", hit), unit))
    fits = apply("and", fits, apply("eq", count, number(len(positions))))
    units = " of extent 1" if only else ""
    why = f"the axes are not {len(positions)} different ones{units} of {rank}"
    found = b.read(b.unless_failed(mask, fits, why), [])
    hits = [apply("ne", apply("bitand", found, _bit(i)), number(0)) for i in range(rank)]
    return Named(b, tuple(b.read(b.nest((), h), []) for h in hits), len(positions))


def _check_count(count: int, rank: int) -> None:
    """Raises OperatorError where more axes are named than there are."""
    if count > rank:
        raise OperatorError(f"{count} axes are named of {rank}")


def _bit(i: int) -> Expr:
    """Bit `i` of 64; the last one is the sign."""
    return number(1 << i if i < 63 else -1 << 63)


def _wrapped(p: Expr, rank: int) -> Expr:
    return apply("select", apply("lt", p, number(0)), apply("add", p, number(rank)), p)


@record
class OneAxis:
    """The axis of a shape that an operand names: `parts` are (before, its extent, after)."""

    b: Builder
    at: Expr
    parts: Shape

    def replaced(self, shape: Shape, extent: Index) -> Shape:
        """The shape with another extent of the axis."""
        return tuple(
            bound(
                self.b,
                apply("select", apply("eq", self.at, number(i)), number(extent), number(e)),
                "part",
            )
            for i, e in enumerate(shape)
        )


def one_axis(b: Builder, axis: Tensor, shape: Shape, rank: int) -> OneAxis:
    """The one of the first axes that an operand names; `rank` is the number of all.

    The run ends where it is none of them.
    """
    (given,) = elements(b, axis, "the axis", 1)
    at = _wrapped(given, rank)
    inside = apply("and", apply("ge", at, number(0)), apply("lt", at, number(len(shape))))
    at = b.read(b.unless_failed(at, inside, f"the axis is none of {rank}"), [])
    parts: list[Expr] = [number(1), number(1), number(1)]
    for i, e in enumerate(shape):
        for k, op in enumerate(("gt", "eq", "lt")):
            factor = apply("select", apply(op, at, number(i)), number(e), number(1))
            parts[k] = apply("mul", parts[k], factor)
    return OneAxis(b, at, tuple(bound(b, part, "part") for part in parts))


def for_every_axis(
    b: Builder,
    axes: Sequence[Expr],
    values: Sequence[Sequence[Expr]],
    blank: Sequence[int],
    rank: int,
) -> list[list[Expr]]:
    """For every axis the values that stand beside it, or `blank` ones; the axes are checked."""
    _check_count(len(axes), rank)
    positions = [_wrapped(p, rank) for p in axes]
    fits: Expr = Lit(True, DType.BOOL)
    for i, p in enumerate(positions):
        inside = apply("and", apply("ge", p, number(0)), apply("lt", p, number(rank)))
        fits = apply("and", fits, inside)
        for q in positions[:i]:
            fits = apply("and", fits, apply("ne", p, q))
    why = f"the axes are not {len(positions)} different ones of {rank}"
    positions = [b.read(b.unless_failed(p, fits, why), []) for p in positions]
    found: list[list[Expr]] = []
    for i in range(rank):
        beside: list[Expr] = [number(n) for n in blank]
        for k, p in enumerate(positions):
            here = apply("eq", p, number(i))
            beside = [apply("select", here, v[k], e) for v, e in zip(values, beside, strict=True)]
        found.append(beside)
    return found


def sliced(
    b: Builder,
    x: Tensor,
    begin: Sequence[Expr],
    end: Sequence[Expr],
    axes: Sequence[Expr],
    steps: Sequence[Expr],
) -> tuple[Shape, list[Index], list[Index]]:
    """(shape, first elements, steps) along all axes of x[begin:end:step] along some."""
    shape: list[Index] = []
    first: list[Index] = []
    by: list[Index] = []
    ways = for_every_axis(b, axes, (begin, end, steps), (0, MOST, 1), x.rank)
    for n, (lo, hi, s) in zip(x.shape, ways, strict=True):
        start, count, step = cut_by(b, n, lo, hi, s)
        shape.append(count)
        first.append(start)
        by.append(step)
    return tuple(shape), first, by
