"""Prefetching: bring operands and results nearer while something else is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.indices.affine import ONE, ZERO, Index, Range
from rutc.tensor_ir.indices.division import maximum
from rutc.tensor_ir.kernel import Access, Assign, Branch, Kernel, Kind, Loop, Prefetch, Stmt, Update
from rutc.tensor_ir.statements import Around, reads_in, walk_loops, walk_stmts
from rutc.tensor_ir.steps.hints import address_of, reads_of, with_hints
from rutc.tensor_ir.steps.step import NotApplicable, Step, check_positive, find_loops, replace_loop

Turn = tuple[Index, Index, int | None]
"""A loop inside: its variable, its extent, and that as a number unless it is symbolic."""


@record
class _Block:
    """What to ask for next: so many elements of a buffer from an address on."""

    start: Index
    elements: int
    write: bool
    along: frozenset[str]
    """The variables of the loops that go along it; others repeat what they do."""
    in_order: bool
    """Whether its lines are read in the order in which they lie in memory."""


@record
class PrefetchBlock(Step):
    """Ask for memory that a later iteration of a block loop touches, spread evenly over this one.

    for b { for i in [0, m) { for k in [0, n) { acc.update(w[b, k]) } } }
      ->  for b { for i { for k { prefetch w @ b*e + ahead + (i*n + k)*ceil(e / (m*n)) into level;
                                  acc.update(w[b, k]) } } }

    e is what one iteration of the loop over `block` touches, at most the distance in memory between
    two of them; `ahead` is in elements, 0 for that distance: the next iteration. What one iteration
    reads of `buffer`, or stores there, should lie in one piece. One hint is made for each line of
    `line` elements; `level` is the cache to bring it to. Where loops inside are of symbolic extent,
    e / (m*n) is known in the run only; few iterations ask for several lines each. Where there is
    but one, it reads all there is once, and asks for nothing if that is from one end to the other:
    the hardware does, in time. It does not where tiles have at least so many `rows` (0: however
    many), whose arithmetic takes about as long as memory does: then one iteration asks as well.

      ->  for b { for i { for k { if m < 4 { if m < 2 { } else { for l { prefetch line l } } }
                                  else { prefetch one };
                                  acc.update(w[b, k]) } } }

    The tests stand in the innermost loop, where they are foreseen: loops of their own for few and
    for many iterations would be twice the code. How many lines there may be is no matter for the
    code's size: tiles of all numbers of rows have a copy of it.
    """

    buffer: str
    block: str
    ahead: int
    line: int
    level: int = 2
    rows: int = 0

    def __str__(self) -> str:
        """The step as text, without rows that are not told."""
        text = Step.__str__(self)
        return text if self.rows else f"{text.removesuffix(', 0)')})"

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with prefetches in the innermost reduction loops."""
        check_positive("line", self.line)
        if not any(self._touches(loop) for loop in find_loops(kernel, self.block)):
            raise NotApplicable(f"%{self.buffer} is not touched in {self.block}")
        ranges = dict(kernel.symbols)

        def visit(loop: Loop) -> tuple[Stmt, ...]:
            found = self._touches(loop)
            if not found:
                return (loop,)
            block = self._next(kernel, loop, found)
            if _updates_directly(loop.body):
                return self._prefetching(loop, [], block, ranges)
            inside = self._inside(loop.body, [], block, ranges)
            return (replace(loop, body=inside),)

        return replace(kernel, body=replace_loop(kernel.body, self.block, visit))

    def _touches(self, loop: Loop) -> list[Read | Access]:
        """The places of the buffer that a loop reads or stores to."""
        read = [r for r in reads_in(loop.body) if r.value == self.buffer]
        stored = [s.target for s in walk_stmts(loop.body) if isinstance(s, Assign)]
        return [*read, *(a for a in stored if a.buffer == self.buffer)]

    def _next(self, kernel: Kernel, loop: Loop, found: Sequence[Read | Access]) -> _Block:
        """What the next iteration touches."""
        loops = list(walk_loops(loop.body))
        inner = {s.var: ZERO for s in loops}
        places = [address_of(kernel, r, {}) for r in found]
        along = frozenset(v for a in places if a is not None for v in a.names())
        write = not any(isinstance(r, Read) for r in found)
        for read in found:
            address = address_of(kernel, read, inner)
            elements = address.coefficient(self.block) if address is not None else None
            if address is not None and elements is not None and elements > 0:
                touched = min(elements, _span(places, address, loops) or elements)
                in_order = all(
                    self._in_order(address_of(kernel, r, {}), x)
                    for s, r, x in reads_of(self.buffer, loop.body)
                    if isinstance(s, Update)
                )
                return _Block(address + (self.ahead or elements), touched, write, along, in_order)
        raise NotApplicable(f"%{self.buffer} does not lie in blocks of {self.block}")

    def _in_order(self, address: Index | None, loops: tuple[Loop, ...]) -> bool:
        """Whether loops go from line to line in the order in which these lie in memory.

        A loop in steps shorter than a line does so if all of them together are longer than one.
        """
        if address is None:
            return True
        steps = [(abs(address.coefficient(x.var) or 0), x.hi - x.lo) for x in loops]
        far = (not count.is_const or n * count.const > self.line for n, count in steps)
        lines = [n for (n, _), is_far in zip(steps, far, strict=True) if n and is_far]
        return lines == sorted(lines, reverse=True)

    def _inside(
        self,
        body: tuple[Stmt, ...],
        loops: list[Turn],
        block: _Block,
        ranges: Mapping[str, Range],
    ) -> tuple[Stmt, ...]:
        result: list[Stmt] = []
        for s in body:
            match s:
                case Loop(kind=Kind.SERIAL | Kind.PARALLEL):
                    inner = [*loops, self._turn(s)]
                    if _updates_directly(s.body):
                        result += self._prefetching(s, inner, block, ranges)
                    else:
                        nested = self._inside(s.body, inner, block, ranges)
                        result.append(replace(s, body=nested))
                case Branch():
                    then = self._inside(s.then, loops, block, ranges)
                    orelse = self._inside(s.orelse, loops, block, ranges)
                    result.append(replace(s, then=then, orelse=orelse))
                case _:
                    result.append(s)
        return tuple(result)

    def _turn(self, loop: Loop) -> Turn:
        extent = loop.hi - loop.lo
        bounds = extent.bounds({self.block: (0, 0)})
        return Index.of(loop.var), extent, None if bounds is None else max(bounds[1], 1)

    def _prefetching(
        self,
        loop: Loop,
        loops: list[Turn],
        block: _Block,
        ranges: Mapping[str, Range],
    ) -> tuple[Stmt, ...]:
        """A loop that updates, with its hints."""
        symbolic = [k for k, (_, _, number) in enumerate(loops) if number is None]
        outer = loops[: symbolic[-1] + 1] if symbolic else []
        inner = [(v, number) for v, _, number in loops[len(outer) :] if number is not None]
        first, turns = ZERO, Index.of(1)
        for v, extent, _ in outer:
            first, turns = first * extent + v, turns * extent
        position, known = first, prod(number for _, number in inner)
        for v, number in inner:
            position = position * number + v
        share = -(-block.elements // known)
        # A quotient by what may be 0 has to stay in the loop, where it costs more than the hints.
        turns = maximum(turns, ONE, ranges)
        last = Index.of(block.elements - 1) // (turns * known)
        place = block.start + position * (last + 1)

        def hints(lines: int) -> tuple[Stmt, ...]:
            at = range(0, lines * self.line, self.line)
            return tuple(Prefetch(self.buffer, place + k, self.level, block.write) for k in at)

        lines = -(-share // self.line)
        if not symbolic or lines == 1:
            return (replace(loop, body=(*hints(lines), *loop.body)),)
        once = all(n == 1 or not v.names().isdisjoint(block.along) for v, n in inner)
        several: Stmt = self._lines(place, last, block)
        few_rows = not self.rows or _rows(loop.body, block.along) < self.rows
        if once and block.in_order and few_rows:
            several = Branch(turns, Index.of(2), (), (several,))
        few = Branch(turns, Index.of(lines), (several,), hints(1))
        return (replace(loop, body=(few, *loop.body)),)

    def _lines(self, first: Index, last: Index, block: _Block) -> Loop:
        """A loop over the lines from an element on, the last of them that many elements further."""
        var = f"{self.block}.line"
        hint = Prefetch(self.buffer, first + Index.of(var) * self.line, self.level, block.write)
        return Loop(var, ZERO, last // self.line + 1, Kind.SERIAL, (hint,))


def _rows(body: tuple[Stmt, ...], along: AbstractSet[str]) -> int:
    """How many rows of a tile use what is read along these loops; at most 1 if a run tells."""
    loops = (x for x in walk_loops(body) if x.kind is Kind.UNROLL and x.var not in along)
    extents = (x.hi - x.lo for x in loops)
    return prod(n.const for n in extents if n.is_const)


@record
class PrefetchLater(Step):
    """Ask for what the innermost updates read of a buffer some iterations of a loop later.

    for p { for i { for k { for j in [0, 32) vector { acc[j].update(x[k, 32*p + j]) } } } }
      ->  for p { for i { for k { prefetch x[k, 32*(p + ahead)] + 16*(i % 2) into level;
                                  for j vector { acc[j].update(x[k, 32*p + j]) } } } }

    What a later iteration reads may lie far from what this one reads, row by row of memory. One
    hint is made for each line of `line` elements of each row; with `turns`, the loops named there
    share a row's lines: each of their iterations asks for one of them. Where those `again` read
    the same once more, which is near then, only their first iterations ask:

      ->  for p { for i { for k { if i < 1 { prefetch x[k + ahead, 32*p] }; ... } } }
    """

    buffer: str
    loop: str
    ahead: int
    line: int
    level: int
    turns: tuple[str, ...] = ()
    again: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The step as text, without loops that are not told."""
        text = Step.__str__(self)
        return text if self.again else f"{text.removesuffix(', [])')})"

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with prefetches in the innermost reduction loops."""
        check_positive("line", self.line)
        find_loops(kernel, self.loop)
        why = f"no innermost update in {self.loop} reads %{self.buffer}"
        return with_hints(kernel, partial(self._hints, kernel), why)

    def _hints(self, kernel: Kernel, loop: Loop, outer: Around) -> list[Stmt]:
        """What an iteration of an innermost loop asks for; nothing where it is not in `loop`."""
        around = (*outer, loop)
        if all(x.var != self.loop for x in around) or not _updates_directly(loop.body):
            return []
        found: dict[Index, Prefetch] = {}
        for s, read, loops in reads_of(self.buffer, loop.body):
            if not isinstance(s, Update):
                continue
            address = address_of(kernel, read, {self.loop: Index.of(self.loop) + self.ahead})
            if address is None or {x.kind for x in loops} - {Kind.UNROLL, Kind.VECTOR}:
                continue
            unit = [x.var for x in loops if address.coefficient(x.var) == 1]
            starts, lines = [address], 1
            for x in loops:
                bounds = (x.hi - x.lo).bounds({})
                extent = bounds[1] if bounds is not None else 1
                if x.var in unit[:1]:
                    lines = -(-extent // self.line) + any(
                        c % self.line for _, c in address.subs({x.var: ZERO}).terms
                    )
                    starts = [a.subs({x.var: x.lo}) for a in starts]
                else:
                    starts = [
                        a.subs({x.var: x.lo + i}) for a in starts for i in range(max(extent, 1))
                    ]
            places = list(range(0, lines * self.line, self.line))
            number = ZERO
            for x in around:
                if x.var in self.turns:
                    number = number + Index.of(x.var)
            for a in dict.fromkeys(starts):
                if self.turns and lines > 1:
                    places = [0]
                    a = a + (number % lines) * self.line
                for place in places:
                    found.setdefault(a + place, Prefetch(self.buffer, a + place, self.level))
        hints: tuple[Stmt, ...] = tuple(found.values())
        for x in outer:
            if x.var in self.again and hints:
                hints = (Branch(Index.of(x.var), x.lo + 1, hints, ()),)
        return list(hints)


@record
class PrefetchResult(Step):
    """Ask for the places that are stored to, or read, after a reduction before it begins.

    for i { for j in [0, 32) vector { acc[j].init }; for k { ... }; for j vector { c[i, j] = acc } }
      ->  for i { for j in [0, 32) vector { acc[j].init };
                  prefetch c[i, 0] to write; prefetch c[i, 16] to write;
                  for k { ... }; for j vector { c[i, j] = acc } }

    Stores of a whole tile at once would otherwise wait for their lines one after the other. One
    hint is made for each line of `line` elements.
    """

    buffer: str
    line: int

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with prefetches before the reductions that `buffer` is touched after."""
        check_positive("line", self.line)
        if all(b.name != self.buffer for b in kernel.args):
            raise NotApplicable(f"%{self.buffer} is no argument")
        count = 0

        def visit(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            nonlocal count
            result: list[Stmt] = []
            for number, s in enumerate(body):
                if isinstance(s, Loop) and s.kind in (Kind.SERIAL, Kind.PARALLEL):
                    if any(isinstance(x, Update) for x in walk_stmts(s.body)):
                        hints = self._hints(kernel, body[number + 1 :])
                        count += len(hints)
                        result += hints
                    result.append(replace(s, body=visit(s.body)))
                elif isinstance(s, Branch):
                    result.append(replace(s, then=visit(s.then), orelse=visit(s.orelse)))
                else:
                    result.append(s)
            return tuple(result)

        body = visit(kernel.body)
        if not count:
            raise NotApplicable(f"nothing after a reduction touches %{self.buffer}")
        return replace(kernel, body=body)

    def _hints(self, kernel: Kernel, after: tuple[Stmt, ...]) -> tuple[Prefetch, ...]:
        found: dict[Index, Prefetch] = {}
        for place, write, loops in self._touches(after, ()):
            address = address_of(kernel, place, {})
            if address is None:
                continue
            starts = [address]
            for x in loops:
                bounds = (x.hi - x.lo).bounds({})
                extent = bounds[1] if bounds is not None else 1
                step = self.line if address.coefficient(x.var) == 1 else 1
                starts = [a.subs({x.var: x.lo + i}) for a in starts for i in range(0, extent, step)]
            for a in starts:
                found.setdefault(a, Prefetch(self.buffer, a, 1, write))
        return tuple(found.values())

    def _touches(
        self, body: tuple[Stmt, ...], loops: tuple[Loop, ...]
    ) -> Iterator[tuple[Read | Access, bool, tuple[Loop, ...]]]:
        """(place, whether it is written, the unrolled and vector loops around it) of a tile."""
        for s in body:
            match s:
                case Loop(kind=Kind.UNROLL | Kind.VECTOR):
                    yield from self._touches(s.body, (*loops, s))
                case Branch():
                    yield from self._touches(s.then, loops)
                case Assign():
                    if s.target.buffer == self.buffer:
                        yield s.target, True, loops
                    for r in reads(s.value):
                        if r.value == self.buffer:
                            yield r, False, loops


def _span(addresses: Sequence[Index | None], first: Index, loops: Sequence[Loop]) -> int | None:
    """Elements from the first to the last that loops touch; None if that is not known."""
    ranges: dict[str, Range] = {}
    for s in loops:
        low, extent = s.lo.bounds({}), (s.hi - s.lo).bounds({})
        if low is None or extent is None:
            return None
        before = ranges.get(s.var, low)
        ranges[s.var] = min(low[0], before[0]), max(low[1] + max(extent[1], 1) - 1, before[1])
    places = [0]
    for address in addresses:
        bounds = (address - first).bounds(ranges) if address is not None else None
        if bounds is None:
            return None
        places += bounds
    return max(places) - min(places) + 1


def _updates_directly(body: tuple[Stmt, ...]) -> bool:
    """Whether there is an update inside, and none in a loop that is neither unrolled nor vectors.

    Sums of blocks are added after the loop that makes them.
    """
    return _updates(body) and not any(
        isinstance(s, Loop) and s.kind in (Kind.SERIAL, Kind.PARALLEL) and _updates(s.body)
        for s in walk_stmts(body)
    )


def _updates(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Update) for s in walk_stmts(body))
