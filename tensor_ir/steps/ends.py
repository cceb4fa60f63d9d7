"""Steps that treat the ends of loops: peel, even, overlap, balance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import TypeVar

from rutc.base.record import record
from rutc.tensor_ir.canonical import renamed
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.indices.affine import ONE, ZERO, Index, Min, Range, floordiv, maximum, minimum
from rutc.tensor_ir.kernel import Assign, Branch, Init, Kernel, Kind, Loop, Put, Stmt
from rutc.tensor_ir.statements import accesses, exprs, walk_loops, walk_stmts
from rutc.tensor_ir.steps.moved import Moved
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    check_fresh,
    check_no_registers,
    check_positive,
    constant_extent,
    constant_start,
    field_text,
    find_loops,
    outer_ranges,
    simplified,
    symbolic_extent,
    with_index,
    with_replaced,
)
from rutc.tensor_ir.steps.tile import rows_apart

N = TypeVar("N", int, Index)


@record
class Peel(Step):
    """Give the last iteration its own code, so that what depends on the edge is constant in both.

    for v in [0, n) { S }  ->  for v in [0, n) { if v < n-1 { S } else { S[v: n-1] } }

    The branch is inside of parallel loops that are nested directly, so that threads still share
    the iterations of all of them:

    for v in [0, n) parallel { for w in [0, m) parallel { S } }
      ->  for v in [0, n) parallel { for w in [0, m) parallel { if v < n-1 { S } else .. } }

    Where n is symbolic, the last iteration is told by the loop that it cuts short:

    for v in [0, ceil(n/f)) { for i in [0, min(f, n - f*v)) { S } }
      ->  for v in [0, ceil(n/f)) { if v < n//f { for i in [0, f) { S } }
                                    else { for i in [0, min(f, n - f*v)) { S } } }

    There, what is left has code of its own if it is at most one of `rests`, smallest first, and
    all loops that are cut short are as long: with rests = (16,), where f = 32,

                   .. else { if n - f*v <= 16 { for i in [0, min(16, max(1, n - f*v))) { S } }
                             else { for i in [0, min(f, max(17, n - f*v))) { S } } }

    The ends tell how many iterations there are at least: vectors of these need no masks.

    A loop that runs once at most stays as it is.
    """

    var: str
    rests: tuple[int, ...] = ()

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with a branch inside. Raises NotApplicable without constant bounds."""
        if list(self.rests) != sorted({r for r in self.rests if r > 0}):
            raise NotApplicable("lengths of rests are above 0 and ascend")
        find_loops(kernel, self.var)

        def peel(loop: Loop) -> tuple[Stmt, ...]:
            if loop.kind is Kind.VECTOR:
                raise NotApplicable(f"the lanes of {self.var} cannot branch")
            if not (loop.hi - loop.lo).is_const:
                bounds = (loop.hi - loop.lo).bounds(dict(kernel.symbols))
                if bounds is not None and bounds[1] <= 1:
                    return (loop,)
                return (replace(loop, body=(_cut_short(loop, self.rests),)),)
            low, n = constant_start(loop), constant_extent(loop)
            last = loop.lo + (n - 1)
            if n == 1:
                return (replace(loop, body=with_index(loop.body, {self.var: last})),)

            def by_end(body: tuple[Stmt, ...]) -> Branch:
                main = simplified(body, {self.var: (low, max(low, low + n - 2))})
                return Branch(Index.of(self.var), last, main, with_index(body, {self.var: last}))

            return (_branched(loop, self.var, by_end),)

        return with_replaced(kernel, self.var, peel)

    def __str__(self) -> str:
        """Without rests, as in records that are older than they are, where there are none."""
        return super().__str__() if self.rests else f"peel({field_text(self.var)})"


def _branched(loop: Loop, var: str, chosen: Callable[[tuple[Stmt, ...]], Branch]) -> Loop:
    """A loop whose body is `chosen` by an iteration of `var`, inside of the parallel ones in it."""
    inner = _shared_within(loop)
    if inner is not None and var not in inner.lo.names() | inner.hi.names():
        return replace(loop, body=(_branched(inner, var, chosen),))
    return replace(loop, body=(chosen(loop.body),))


def _shared_within(loop: Loop) -> Loop | None:
    """The parallel loop that is all of a parallel one's body."""
    match loop:
        case Loop(kind=Kind.PARALLEL, body=(Loop(kind=Kind.PARALLEL) as inner,)):
            return inner
        case _:
            return None


@record
class Even(Step):
    """Make the last blocks of a loop about equal.

    for v in [0, ceil(n/f)) { for i in [0, min(f, n - f*v)) { S[i: f*v + i] } }
      ->  for v in [0, ceil(n/f)) { for i in [0, min(f, end - start)) { S[i: start + i] } }

    Then no block is short unless n itself is: 17 iterations in blocks of 8 are 6, 6 and 5. Blocks
    start early by multiples of `rows_apart`, so that those before them are whole tiles. Where that
    is more than 1, it is the last two instead of three that are equal, and the blocks before them
    have code of their own, as peeling gives: that of the last ones does some iterations again.

    Where n comes in multiples, as all places of maps with even sides do, blocks are known to be no
    shorter than the shortest of all these n.

    The last block may be `longer` than the others by so many iterations, where that saves a block:
    with `longer` = 1, 17 iterations are 8 and 9, and v goes up to max(ceil((n-1)/f), min(n, 1)).

    Where n is constant, the last blocks are shorter by one iteration, and have code of their own:
    17 iterations in blocks of 6 are 6, 6 and 5, and 14 in blocks of 5 are 5, 5 and 4.
    """

    var: str
    longer: int

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with a branch inside. Raises NotApplicable where no loop inside is cut."""
        if self.longer < 0:
            raise NotApplicable("the last block cannot be longer by less than 0")
        find_loops(kernel, self.var)
        ranges = outer_ranges(kernel)

        def even(loop: Loop) -> tuple[Stmt, ...]:
            if loop.kind is Kind.VECTOR:
                raise NotApplicable(f"the lanes of {self.var} cannot branch")
            ends = _cut_loops(loop)
            if len(set(ends.values())) != 1 or loop.lo != ZERO:
                raise NotApplicable(f"no loop, or several, are cut short by {self.var}")
            factor, total = next(iter(ends.values()))
            if total.is_const:
                return (self._of_constant(kernel, loop, set(ends), factor, total.const),)
            if self.longer >= factor:
                raise NotApplicable(f"{self.longer} iterations are a block of their own")
            number = Index.of(self.var)
            step = rows_apart(factor + self.longer)
            blocks, start, length = _last_blocks(
                number,
                loop.hi,
                total,
                factor,
                self.longer,
                lambda x, n: floordiv(x, Index.of(n), ranges),
                lambda x, y: minimum(x, y, ranges),
                lambda x, y: maximum(x, y, ranges),
            )
            shortest = _shortest_block(factor, self.longer, *_least(total, ranges))
            if shortest > 1:
                # The formula does not show it.
                length = maximum(length, shortest, ranges)
            moved = Moved.of(kernel, start - number * factor)
            whole = _with_ends(loop.body, dict.fromkeys(ends, Index.of(factor)))
            rest = _with_ends(loop.body, dict.fromkeys(ends, length), moved)
            if step > 1:
                rest = (Branch(number, blocks - 2, whole, rest),)
            return (replace(loop, hi=blocks, body=rest),)

        return with_replaced(kernel, self.var, even)

    def _of_constant(
        self, kernel: Kernel, loop: Loop, ends: AbstractSet[Index], factor: int, total: int
    ) -> Loop:
        """The loop over blocks of `factor` iterations or one less, of which there are `total`."""
        blocks = -(-total // factor)
        whole = blocks - (blocks * factor - total)
        if whole < 1 or self.longer:
            raise NotApplicable(f"blocks of {factor} iterations and one less make no {total}")
        number = Index.of(self.var)

        def by_length(body: tuple[Stmt, ...]) -> Branch:
            longer = _with_ends(body, dict.fromkeys(ends, Index.of(factor)))
            moved = Moved.of(kernel, whole - number)
            rest = _with_ends(body, dict.fromkeys(ends, Index.of(factor - 1)), moved)
            return Branch(
                number,
                Index.of(whole),
                simplified(longer, {self.var: (0, whole - 1)}),
                simplified(rest, {self.var: (whole, blocks - 1)}),
            )

        return _branched(loop, self.var, by_length)


def _last_blocks(
    number: N,
    blocks: N,
    total: N,
    factor: int,
    longer: int,
    quotient: Callable[[N, int], N],
    smaller: Callable[[N | int, N | int], N],
    larger: Callable[[N | int, N | int], N],
) -> tuple[N, N, N]:
    """(blocks, start, length): how many there are where the last ones are about equal, and one."""
    step, missing = rows_apart(factor + longer), blocks * factor - total
    if longer:
        needed = quotient(total - longer + (factor - 1), factor)
        blocks = larger(needed, smaller(total, 1))
        missing = larger(0, blocks * factor - total)
    parts = 3 if step == 1 else 2
    last = larger(0, number - blocks + 2)
    start, end = number * factor, smaller(total, (number + 1) * factor + last * longer)
    for k in range(1, parts):
        # The block k before the end, and how far this one and the next are behind it.
        early = quotient(missing * (parts - k), parts * step) * step
        place = larger(0, (blocks - k) * factor - early)
        behind, next_behind = larger(0, number - blocks + k), larger(0, number - blocks + k + 1)
        start = smaller(start, place + behind * factor)
        end = smaller(end, place + next_behind * (factor + longer))
    return blocks, start, smaller(factor + longer, end - start)


def _least(total: Index, ranges: Mapping[str, Range]) -> tuple[int, int]:
    """(least, together): a size is no less if it is not 0, and a multiple of so many."""
    together, bounds = gcd(total.const, *[c for _, c in total.terms]), total.bounds(ranges)
    least = 1 if bounds is None else max(bounds[0], 1)
    return -(-least // together) * together, together


@lru_cache(maxsize=1 << 10)
def _shortest_block(factor: int, longer: int, least: int, together: int) -> int:
    """The length of the shortest block of all sizes from `least` on that come so many together."""
    # Those that are larger have more whole blocks in front, and the same remainders.
    several = 5 * (factor + longer)
    found = factor
    for size in range(least, max(least, several) + factor * together + 1, together):
        blocks = -(-size // factor)
        for number in range(max(blocks - 4, 0), blocks):
            needed, _, length = _last_blocks(
                number, blocks, size, factor, longer, int.__floordiv__, min, max
            )
            if number < needed:
                found = min(found, length)
    return found


@record
class Overlap(Step):
    """Let the last block of each of some loops be whole: it does some iterations again.

    for v in [0, ceil(n/f)) { for i in [0, min(f, n - f*v)) { S[f*v + i] } }
      ->  for v in [0, ceil(n/f)) { for i in [0, f) { S[min(f*v, n - f) + i] } }

    Where n is symbolic and may be less than f, such few iterations have loops of their own:

      ->  for v in [0, ceil(n/f)) { if f <= n { for i in [0, f) { S[min(f*v, n - f) + i] } }
                                    else { for i.few in [0, min(f, n)) { S[i.few] } } }

    The loops are named from the outermost on; the choice is made in the innermost. The few have
    registers of their own, so that the others' may be spread over a tile.
    """

    loops: tuple[str, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with whole blocks. Raises NotApplicable where no loop inside is cut."""
        if not self.loops:
            raise NotApplicable("it takes one loop at least")
        ranges = outer_ranges(kernel)
        cuts: dict[str, tuple[Index, int, Index]] = {}
        for v in self.loops:
            for loop in find_loops(kernel, v):
                ends = _cut_loops(loop)
                if len(ends) != 1 or loop.lo != ZERO:
                    raise NotApplicable(f"no loop, or several, are cut short by {v}")
                if loop.kind is Kind.VECTOR:
                    raise NotApplicable(f"the lanes of {v} cannot branch")
                ((end, (factor, total)),) = ends.items()
                bounds = total.bounds(ranges)
                if bounds is not None and bounds[1] < factor:
                    raise NotApplicable(f"{v} has no block of {factor}")
                _check_repeatable(kernel, loop)
                cuts[v] = end, factor, total

        own = _own_locals(kernel, find_loops(kernel, self.loops[-1]))

        def overlap(loop: Loop) -> tuple[Stmt, ...]:
            body = loop.body
            for v, (end, factor, total) in cuts.items():
                if not any(s.hi == end for s in walk_loops(body)):
                    raise NotApplicable(f"what {v} cuts short is not inside {loop.var}")
                number = Index.of(v) * factor
                moved = Moved.of(kernel, minimum(number, total - factor, ranges) - number)
                body = _with_ends(body, {end: Index.of(factor)}, moved)
            for v, (_, factor, total) in cuts.items():
                few = replace(kernel, body=with_index(loop.body, {v: ZERO}))
                inside = [s.var for s in walk_loops(loop.body)]
                rest = renamed(few, {x: f"{x}.few" for x in inside}, own).body
                body = (Branch(Index.of(factor - 1), total, body, rest),)
            return (replace(loop, body=body),)

        added = [replace(b, name=own[b.name]) for b in kernel.locals if b.name in own]
        return with_replaced(kernel, self.loops[-1], overlap, added)


@record
class Balance(Step):
    """Split a loop in blocks of one size, `most` or less; their number is a multiple of `number`.

    for v in [0, n) { S }
      ->  for v.o in [0, c) { for v.i in [0, f) { S[v: min(f*v.o, n - f) + v.i] } }
          where c = number * ceil(n / (number*most)), f = ceil(n / c)

    The last blocks do some iterations again where c does not divide n. Where n is symbolic, so are
    c and f: 100 iterations in blocks of 16, two at a time, are 8 of 13, and 17 are 2 of 9.
    """

    var: str
    most: int
    number: int

    def apply(self, kernel: Kernel) -> Kernel:
        """The split kernel. Raises NotApplicable where iterations cannot be done twice."""
        outer, inner = f"{self.var}.o", f"{self.var}.i"
        check_positive("size of a block", self.most)
        check_positive("number of blocks", self.number)
        check_no_registers(kernel, self.var)
        check_fresh(kernel, outer, inner)
        ranges: dict[str, Range] = dict(kernel.symbols)

        def balance(loop: Loop) -> tuple[Stmt, ...]:
            n = Index.of(symbolic_extent(kernel, loop))
            if loop.kind is not Kind.SERIAL:
                raise NotApplicable(f"{self.var} is {loop.kind.value}")
            together = self.number * self.most
            count = floordiv(n + (together - 1), Index.of(together), ranges) * self.number
            divisor = maximum(count, ONE, ranges)
            # The minimum holds by itself, but not by the bounds of its terms.
            each = floordiv(n + divisor - 1, divisor, ranges)
            size = minimum(Index.of(self.most), each, ranges)
            known = dict(ranges)
            bounds = count.bounds(ranges)
            if bounds is not None:
                known[outer] = (0, max(bounds[1] - 1, 0))
            start = minimum(Index.of(outer) * size, n - size, known)
            if start != Index.of(outer) * size:
                _check_repeatable(kernel, loop)
            body = with_index(loop.body, {self.var: start + Index.of(inner) + loop.lo})
            inside = Loop(inner, ZERO, size, loop.kind, body)
            return (Loop(outer, ZERO, count, loop.kind, (inside,)),)

        return with_replaced(kernel, self.var, balance)


def _own_locals(kernel: Kernel, loops: Iterable[Loop]) -> dict[str, str]:
    """Other names for the locals that nothing but the loops uses."""
    inside = {id(s) for x in loops for s in walk_stmts(x.body)}
    within: set[str] = set()
    beyond: set[str] = set()
    for s in walk_stmts(kernel.body):
        names = within if id(s) in inside else beyond
        names |= {a.buffer for a in accesses(s)}
        names |= {r.value for e in exprs(s) for r in reads(e)}
    return {b.name: f"{b.name}.few" for b in kernel.locals if b.name in within - beyond}


def _cut_short(loop: Loop, rests: tuple[int, ...]) -> Branch:
    """The body of a loop by whether the loops inside, which all end with it, are whole.

    Those that are not, by which of `rests` they do not exceed, if all are as long.
    """
    ends = _cut_loops(loop)
    whole = {total // factor for factor, total in ends.values()}
    if len(whole) != 1:
        raise NotApplicable(
            f"no loop, or several, are cut short by the last iteration of {loop.var}"
        )
    fixed = {hi: Index.of(factor) for hi, (factor, _) in ends.items()}
    short = loop.body
    for end, (factor, total) in ends.items() if rests and len(ends) == 1 else ():
        left = total - factor * Index.of(loop.var)
        lengths = [*(r for r in rests if r < factor), factor]
        for fewer, most in reversed(list(pairwise([0, *lengths]))):
            known = minimum(most, maximum(fewer + 1, left, {}), {})
            part = _with_ends(loop.body, {end: known})
            short = (Branch(left, Index.of(most + 1), part, short),) if most < factor else part
    return Branch(Index.of(loop.var), whole.pop(), _with_ends(loop.body, fixed), short)


def _cut_loops(loop: Loop) -> dict[Index, tuple[int, Index]]:
    """The ends min(f, n - f*v) of the loops inside one over v: for each, f and n."""
    found: dict[Index, tuple[int, Index]] = {}
    for s in walk_stmts(loop.body):
        end = _shortened(s.hi, loop.var) if isinstance(s, Loop) else None
        if isinstance(s, Loop) and end is not None:
            found[s.hi] = end
    return found


def _with_ends(
    body: tuple[Stmt, ...], ends: Mapping[Index, Index], moved: Moved | None = None
) -> tuple[Stmt, ...]:
    """`body` with other ends of the loops that have one of `ends`, and their iterations moved."""
    result: list[Stmt] = []
    for s in body:
        match s:
            case Loop() if s.hi in ends:
                inner = s.body if moved is None else moved.body(s.body, s.var)
                result.append(replace(s, hi=ends[s.hi], body=_with_ends(inner, ends, moved)))
            case Loop():
                result.append(replace(s, body=_with_ends(s.body, ends, moved)))
            case Branch():
                then = _with_ends(s.then, ends, moved)
                result.append(replace(s, then=then, orelse=_with_ends(s.orelse, ends, moved)))
            case _:
                result.append(s)
    return tuple(result)


def _check_repeatable(kernel: Kernel, loop: Loop) -> None:
    memory = {b.name for b in kernel.args}
    started: set[str] = set()
    stored: set[str] = set()
    read: set[str] = set()
    for s in walk_stmts(loop.body):
        read |= {x.value for e in exprs(s) for x in reads(e)}
        match s:
            case Init():
                started |= {a.buffer for a in s.states}
            case Put():
                raise NotApplicable(f"{loop.var} puts elements, which cannot be done twice")
            case Assign():
                (stored if s.target.buffer in memory else started).add(s.target.buffer)
            case _:
                if any(a.buffer not in started for a in accesses(s)):
                    raise NotApplicable(f"{loop.var} goes on with a reduction")
    if stored & read:
        raise NotApplicable(f"{loop.var} changes %{min(stored & read)}, which it reads")


def _shortened(hi: Index, var: str) -> tuple[int, Index] | None:
    """(f, n) where `hi` is min(f, n - f*var)."""
    match hi.terms:
        case (((Min(a, b),), 1),) if hi.const == 0:
            factor, rest = (a, b) if a.is_const else (b, a)
            if factor.is_const and rest.coefficient(var) == -factor.const:
                return factor.const, rest + Index.of(var) * factor.const
    return None
