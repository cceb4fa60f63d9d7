"""Reduce over the parts of windows that lie inside of what they are read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, reduce

from rutc.base.record import record
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.facts.outside import outside_adds_nothing
from rutc.tensor_ir.indices.affine import (
    FloorDiv,
    Index,
    Max,
    Min,
    Range,
    Var,
    floordiv,
    maximum,
    minimum,
)
from rutc.tensor_ir.indices.division import close_bounds, extreme_operands
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Prefetch, Stmt, Update
from rutc.tensor_ir.statements import Around, exprs, rewrite, walk_stmts
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    find_loops,
    outer_ranges,
    ranges_of,
    replace_loop,
)


@record
class Inside(Step):
    """Leave out iterations of loops that read outside of a buffer whenever they read it.

    for k in [0, 3) { for i in [0, 4) { acc[i].update(x[4*y + i + 6*k - 6 else 0.0] * 2.0) } }
      ->  for k in [max(0, (8 - 4*y) // 6), min(3, (17 - 4*y) // 6 + 1)) { ... }

    Here x has 12 elements. All that the iterations left out do is to update states with the
    reducer's identity. Reads that are never outside after that have no fill any more.
    """

    loops: tuple[str, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with other bounds. Raises NotApplicable where iterations do more than that."""
        body = kernel.body
        ranges = outer_ranges(kernel)
        for var in self.loops:
            find_loops(kernel, var)
            body = replace_loop(body, var, lambda loop: (self._narrow(kernel, loop, ranges),))
        return without_fills(replace(kernel, body=body))

    def _narrow(self, kernel: Kernel, loop: Loop, ranges: Mapping[str, Range]) -> Loop:
        if loop.kind is not Kind.SERIAL:
            raise NotApplicable(f"the iterations of {loop.var} are not one after another")
        found = [
            _bounds(kernel, loop.var, update, around, ranges)
            for update, around in self._updates(loop, ())
        ]
        if not found:
            raise NotApplicable(f"{loop.var} reduces nothing")
        low = reduce(lambda a, b: minimum(a, b, ranges), (low for low, _ in found))
        high = reduce(lambda a, b: maximum(a, b, ranges), (high for _, high in found))
        low, high = maximum(loop.lo, low, ranges), minimum(loop.hi, high, ranges)
        return replace(loop, lo=low.simplify(ranges), hi=high.simplify(ranges))

    def _updates(self, loop: Loop, around: Around) -> Iterator[tuple[Update, Around]]:
        """The updates in a loop, each with the loops between, the innermost last."""
        for s in loop.body:
            match s:
                case Loop():
                    yield from self._updates(s, (*around, s))
                case Update():
                    yield s, around
                case Prefetch() | Branch() if all(map(_only_asks, walk_stmts((s,)))):
                    pass
                case _:
                    raise NotApplicable(f"{loop.var} does more than to reduce")


def _only_asks(s: Stmt) -> bool:
    """Whether a statement does nothing but to ask for memory, or to tell what is asked for."""
    return isinstance(s, Prefetch | Branch | Loop)


def _bounds(
    kernel: Kernel, var: str, update: Update, inside: Around, ranges: Mapping[str, Range]
) -> tuple[Index, Index]:
    """The first iteration, and one past the last, of those that add something to an update."""
    lows: list[Index] = []
    highs: list[Index] = []
    for c, extent, _ in windows_of(kernel, update, var):
        step = c.coefficient(var)
        rest = c - Index.of(var) * (step or 0)
        low, high = extreme(-rest, inside), extreme(rest, inside)
        if not step or low is None or high is None:
            continue
        # There is a place inside of the extent: step * k + high >= 0, step * k - low <= extent - 1.
        before, after = (high, low + extent - 1) if step > 0 else (low + extent - 1, high)
        size = Index.of(abs(step))
        lows.append(floordiv(-before + (abs(step) - 1), size, ranges))
        highs.append(floordiv(after, size, ranges) + 1)
    if not lows:
        raise NotApplicable(f"no iteration of {var} is known to be outside")
    return (
        reduce(lambda a, b: maximum(a, b, ranges), lows),
        reduce(lambda a, b: minimum(a, b, ranges), highs),
    )


def windows_of(
    kernel: Kernel, update: Update, var: str
) -> Iterator[tuple[Index, Index, tuple[int, int]]]:
    """(coordinate, extent, halo): what a loop moves that adds nothing to an update outside.

    The halo is what memory has of the fill before and after. What is read there without a test
    gives that fill, too.
    """

    def finite(name: str) -> bool:
        return kernel.buffer(name).finite

    for e in update.elements:
        for r in dict.fromkeys(reads(e)):
            if not any(_moved(c, var) for _, c in r.coords):
                continue
            layout = kernel.buffer(r.value).layout
            if not outside_adds_nothing(update.reducer, update.elements, r, layout, finite):
                continue
            extents = dict(layout.extents)
            for d, c in r.coords:
                if isinstance(c, Index) and _moved(c, var):
                    yield c, Index.of(extents[d]), layout.room(d, r.fill or layout.fill)


def _moved(c: object, var: str) -> bool:
    return isinstance(c, Index) and var in c.names()


def extreme(x: Index, inside: Around) -> Index | None:
    """The largest value of an index over some loops, the innermost last; None if none is known."""
    for loop in reversed(inside):
        if loop.var in x.names():
            way = _direction(x, loop.var)
            if way is None:
                return None
            x = x.subs({loop.var: loop.hi - 1 if way > 0 else loop.lo})
    return x


def _direction(x: Index, var: str) -> int | None:
    """1 if an index never falls as a variable grows, -1 if it never rises; None if unknown."""
    ways: set[int] = set()
    for atoms, c in x.terms:
        own = [a for a in atoms if var in Index((((a,), 1),)).names()]
        if not own:
            continue
        if len(atoms) > 1:
            return None
        match own[0]:
            case Var():
                way: int | None = 1
            case Min(p, q) | Max(p, q):
                found = {_direction(i, var) for i in (p, q) if var in i.names()}
                way = found.pop() if len(found) == 1 else None
            case FloorDiv(p, q) if q.is_const:
                way = _direction(p, var)
            case _:
                way = None
        if way is None:
            return None
        ways.add(way if c > 0 else -way)
    return ways.pop() if len(ways) == 1 else None


def without_fills(kernel: Kernel) -> Kernel:
    """The kernel with reads of no fill where the loops around leave nothing outside."""
    if not any(map(_has_fill, walk_stmts(kernel.body))):
        return kernel
    return replace(kernel, body=_without_fills(kernel, kernel.body, ()))


def _has_fill(s: Stmt) -> bool:
    """Whether a statement itself has a read with a fill."""
    return any(r.fill is not None for e in exprs(s) for r in reads(e))


def _without_fills(kernel: Kernel, body: tuple[Stmt, ...], around: Around) -> tuple[Stmt, ...]:
    """The statements of `without_fills`, inside of some loops."""
    ranges = ranges_of(around, dict(kernel.symbols))

    @cache
    def read(r: Read) -> Read:
        if r.fill is None:
            return r
        layout = kernel.buffer(r.value).layout
        extents = dict(layout.extents)
        for d, c in r.coords:
            if not isinstance(c, Index):
                return r
            before, after = layout.room(d, r.fill)
            last = Index.of(extents[d]) + (after - 1)
            found = c.bounds(ranges) if c.is_polynomial else None
            # Most are seen to be inside, or not, from their bounds: those of a sum need no sum.
            if not (
                (found is not None and found[0] + before >= 0)
                or _is_positive(c + before, around, ranges)
            ):
                return r
            if not (
                (found is not None and last.is_const and found[1] <= last.const)
                or _is_positive(last - c, around, ranges)
            ):
                return r
        return replace(r, fill=None)

    result: list[Stmt] = []
    for s in body:
        match s:
            case Loop():
                result.append(replace(s, body=_without_fills(kernel, s.body, (*around, s))))
            case Branch():
                then = _without_fills(kernel, s.then, around)
                result.append(
                    replace(s, then=then, orelse=_without_fills(kernel, s.orelse, around))
                )
            case _ if any(read(r) is not r for e in exprs(s) for r in reads(e)):
                result += rewrite((s,), read=read)
            case _:
                result.append(s)
    return tuple(result)


def _is_positive(x: Index, around: Around, ranges: Mapping[str, Range]) -> bool:
    """Whether an index is known to be 0 or more wherever all loops around it have an iteration."""
    bounds = close_bounds(x, ranges)
    if bounds is not None and bounds[0] >= 0:
        return True
    for number in reversed(range(len(around))):
        loop = around[number]
        factor = x.coefficient(loop.var)
        if not factor or (loop.lo.is_const and loop.hi.is_const):
            continue
        if factor > 0:
            ends = list(extreme_operands(loop.lo, Max))
        else:
            ends = [e - 1 for e in extreme_operands(loop.hi, Min)]
        return any(_is_positive(x.subs({loop.var: e}), around[:number], ranges) for e in ends)
    return False
