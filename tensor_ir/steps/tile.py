"""The register tile: a block of the iteration space held in registers across a reduction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import assert_never

from rutc.base.record import record
from rutc.tensor_ir.expr import Expr, IndexValue, Read, plain_names, point, transform, walk
from rutc.tensor_ir.indices.affine import ZERO, Index, Range, maximum, minimum
from rutc.tensor_ir.kernel import Access, Branch, Kernel, Kind, Loop, Space, Stmt
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.statements import accesses, exprs, reads_in, rewrite, walk_stmts
from rutc.tensor_ir.steps.loops import MOST_UNROLLED
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    check_independent,
    check_no_registers,
    check_vector,
    directly_nested,
    find_loops,
    outer_ranges,
    replace_loop,
    with_index,
)

MOST_EXACT = 9
"""Tiles of up to so many rows have code for each number of rows in their upper half."""


@record
class Tile(Step):
    """Move directly nested loops inward past the reductions they hold.

    Every local scalar becomes an array over the moved loops, one element per iteration.

    for i { acc.init; for k { acc.update(a[i,k]) }; o[i] = acc }
      ->  for i { acc[i].init }; for k { for i { acc[i].update(a[i,k]) } }; for i { o[i] = acc[i] }

    `kinds` says how the moved loops are carried out: unrolled or vectorised. An unrolled loop of
    n iterations, n symbolic and at most f, does one of the `numbers_of_rows`, of those that n may
    need: iterations from n on do the last one again. Where n may be 0, a branch asks for it.
    """

    loops: tuple[str, ...]
    kinds: tuple[Kind, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The tiled kernel. Raises NotApplicable where inner bounds depend on a moved loop."""
        if not self.loops or len(self.loops) != len(self.kinds):
            raise NotApplicable("it takes as many kinds as loops, and one at least")
        if self.kinds.count(Kind.VECTOR) > 1:
            raise NotApplicable("one loop at most can be the vector")
        chains = [directly_nested(x, self.loops) for x in find_loops(kernel, self.loops[0])]
        for chain in chains:
            for x, kind in zip(chain, self.kinds, strict=True):
                _check_moved(kernel, x, kind)
                if kind is Kind.UNROLL and (inner := x.hi.names() & set(self.loops)):
                    raise NotApplicable(f"the bounds of {x.var} depend on {min(inner)}")
        expanded = _expanded(kernel, chains)
        stack = {b.name for b in kernel.locals if b.space is Space.STACK}
        for chain in chains:
            _check_apart(chain, stack, set(expanded))

        ranges = outer_ranges(kernel)

        def tile(loop: Loop) -> tuple[Stmt, ...]:
            chain = directly_nested(loop, self.loops)
            ends: dict[str, tuple[Index, Range]] = {}
            moved: list[Loop] = []
            for x, k in zip(chain, self.kinds, strict=True):
                bounds = x.hi.bounds(ranges)
                if k is Kind.UNROLL and not x.hi.is_const and bounds is not None:
                    if x.hi.names() & set(self.loops):
                        raise NotApplicable(f"the end of {x.var} moves with another moved loop")
                    ends[x.var] = (x.hi, bounds)
                moved.append(replace(x, kind=k, body=()))
            return self._chosen(moved, chain[-1].body, ends, expanded, ranges)

        locals_ = tuple(
            replace(b, layout=_with_axes(b.layout, expanded[b.name])) if b.name in expanded else b
            for b in kernel.locals
        )
        body = replace_loop(kernel.body, self.loops[0], tile)
        return replace(kernel, body=body, locals=locals_)

    def _chosen(
        self,
        moved: list[Loop],
        body: tuple[Stmt, ...],
        ends: Mapping[str, tuple[Index, Range]],
        expanded: Collection[str],
        ranges: Mapping[str, Range],
    ) -> tuple[Stmt, ...]:
        """Tiles of fixed extents in place of the loops in `ends`, whose extents are not."""
        if not ends:
            return _distribute(moved, _expand(body, set(expanded), self.loops))
        (var, (end, (fewest, most))), *others = ends.items()

        def fixed(least: int, extent: int) -> tuple[Stmt, ...]:
            """The tile for at least `least` and at most `extent` iterations."""
            loops = [replace(x, hi=Index.of(extent)) if x.var == var else x for x in moved]
            last = maximum(end - 1, Index.of(least - 1), ranges)
            at = minimum(Index.of(var), last, ranges) if least < extent else Index.of(var)
            inner = with_index(body, {var: at})
            return self._chosen(loops, inner, dict(others), expanded, ranges)

        surely, fewest = fewest > 0, max(fewest, 1)
        numbers = [n for n in numbers_of_rows(most) if n >= fewest]
        result = fixed(numbers[1] + 1 if len(numbers) > 1 else fewest, most)
        for extent, fewer in pairwise((*numbers[1:], fewest - 1)):
            then = fixed(fewer + 1, extent)
            result = (Branch(end, Index.of(extent + 1), then, result),)
        return result if surely else (Branch(ZERO, end, result, ()),)


def rows_apart(most: int) -> int:
    """By how much the numbers of rows differ that tiles of `most` rows have code for."""
    return -(-most // MOST_EXACT)


def numbers_of_rows(most: int) -> tuple[int, ...]:
    """The numbers of rows that tiles of at most `most` rows have code for, largest first.

    numbers_of_rows(13) == (13, 11, 9, 7, 4, 2, 1)
    """
    found = list(range(most, (most - 1) // 2, -rows_apart(most)))
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return tuple(found)


def _check_moved(kernel: Kernel, loop: Loop, kind: Kind) -> None:
    if loop.lo != ZERO:
        raise NotApplicable(f"{loop.var} does not start at 0")
    check_independent(kernel, loop)
    check_no_registers(kernel, loop.var)
    match kind:
        case Kind.UNROLL:
            bounds = loop.hi.bounds(outer_ranges(kernel))
            if bounds is None or (not loop.hi.is_const and bounds[1] > MOST_UNROLLED):
                raise NotApplicable(f"the extent of {loop.var} is not constant")
        case Kind.VECTOR:
            check_vector(kernel, loop)
        case Kind.SERIAL | Kind.PARALLEL | Kind.DOT | Kind.MATRIX:
            raise NotApplicable(f"{loop.var} cannot be {kind.value}: registers are no arrays")
        case _:
            assert_never(kind)


def _expanded(kernel: Kernel, chains: list[list[Loop]]) -> dict[str, tuple[tuple[str, int], ...]]:
    """The locals that every iteration has for itself, with the extents that they gain.

    Memory on the stack has an element for each of them already, or they store the same there.
    """
    ranges = outer_ranges(kernel)
    extents: dict[str, int] = {}
    for chain in chains:
        for x in chain:
            bounds = x.hi.bounds(ranges)
            if bounds is None:
                raise NotApplicable(f"the extent of {x.var} has no bound")
            extents[x.var] = max(extents.get(x.var, 0), bounds[1])
    inside: Counter[str] = Counter()
    written: set[str] = set()
    for chain in chains:
        inside += _uses(chain[-1].body)
        written |= {a.buffer for s in walk_stmts(chain[-1].body) for a in accesses(s)}
    written -= {b.name for b in kernel.locals if b.space is Space.STACK}
    everywhere = _uses(kernel.body)
    for b in kernel.locals:
        if b.name in written and inside[b.name] != everywhere[b.name]:
            raise NotApplicable(f"%{b.name} is used outside of {chains[0][0].var}, too")
    return {b.name: tuple(extents.items()) for b in kernel.locals if b.name in written}


def _check_apart(chain: list[Loop], stack: set[str], expanded: set[str]) -> None:
    """Raises NotApplicable where iterations would store different values in one place of `stack`.

    Done one after the other, each reads its own before the next one stores.
    """
    moved = {x.var for x in chain if x.hi != Index.of(1)}
    for s in walk_stmts(chain[-1].body):
        places = [a for a in accesses(s) if a.buffer in stack]
        if not places:
            continue
        found = [r for e in exprs(s) for r in walk(e) if isinstance(r, Read | IndexValue)]
        apart = any(isinstance(r, Read) and r.value in expanded for r in found)
        depends = {n for r in found for n in _names(r)} & moved
        for a in places:
            lacking = (moved if apart else depends) - _names(a)
            if lacking:
                raise NotApplicable(f"iterations of {min(lacking)} share places of %{a.buffer}")


def _names(x: Access | Read | IndexValue) -> set[str]:
    """The loops that a place or a number depends on."""
    if isinstance(x, IndexValue):
        return set(x.index.names())
    return set(plain_names(x.coords))


def _uses(body: tuple[Stmt, ...]) -> Counter[str]:
    count: Counter[str] = Counter()
    for s in walk_stmts(body):
        count.update(a.buffer for a in accesses(s))
    count.update(r.value for r in reads_in(body))
    return count


def _expand(body: tuple[Stmt, ...], names: set[str], loops: tuple[str, ...]) -> tuple[Stmt, ...]:
    extra = point(loops)

    def widen_read(e: Expr) -> Expr:
        return transform(
            e,
            lambda x: (
                replace(x, coords=(*x.coords, *extra))
                if isinstance(x, Read) and x.value in names
                else x
            ),
        )

    def widen(a: Access) -> Access:
        return replace(a, coords=(*a.coords, *extra)) if a.buffer in names else a

    return rewrite(body, expr=widen_read, access=widen)


def _with_axes(layout: Layout, extents: tuple[tuple[str, int], ...]) -> Layout:
    axes: list[Axis] = []
    stride = layout.size
    for v, e in reversed(extents):
        axes.append(Axis(v, e, stride))
        stride *= e
    return replace(layout, axes=(*reversed(axes), *layout.axes))


def _distribute(moved: list[Loop], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    names = {x.var for x in moved}
    result: list[Stmt] = []
    run: list[Stmt] = []

    def flush() -> None:
        if run:
            inner: tuple[Stmt, ...] = tuple(run)
            for x in reversed(moved):
                inner = (replace(x, body=inner),)
            result.extend(inner)
            run.clear()

    for s in body:
        if isinstance(s, Loop) and s.kind in (Kind.SERIAL, Kind.PARALLEL):
            if (s.lo.names() | s.hi.names()) & names:
                raise NotApplicable(f"the bounds of {s.var} depend on {sorted(names)}")
            flush()
            result.append(replace(s, body=_distribute(moved, s.body)))
        elif isinstance(s, Branch):
            if (s.left.names() | s.right.names()) & names:
                raise NotApplicable(f"a branch depends on {sorted(names)}")
            flush()
            then = _distribute(moved, s.then)
            result.append(replace(s, then=then, orelse=_distribute(moved, s.orelse)))
        else:
            run.append(s)
    flush()
    return tuple(result)
