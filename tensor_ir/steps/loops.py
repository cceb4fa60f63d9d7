"""Steps on loops: split, fuse, reorder, cut, part, mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import assert_never

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import ZERO, Index, Range, floordiv, mod
from rutc.tensor_ir.indices.comparing import chosen
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Merge, Space, Stmt, Update
from rutc.tensor_ir.statements import accesses, rewrite, walk_loops, walk_stmts
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    check_fresh,
    check_independent,
    check_no_order,
    check_no_registers,
    check_positive,
    check_vector,
    constant_extent,
    constant_start,
    find_loops,
    in_blocks,
    moves,
    outer_ranges,
    replace_loop,
    simplified,
    symbolic_extent,
    with_index,
    with_replaced,
)

MOST_PRODUCTS = 8
"""The iterations of a dot loop are at most so many."""

MOST_UNROLLED = 64
"""An unrolled loop whose extent is not constant has at most so many iterations."""


@record
class Split(Step):
    """Split a loop in blocks of `factor`; its extent may be symbolic.

    for v in [0, n) { S }  ->  for v.o in [0, ceil(n/f)) { for v.i in [0, min(f, n - f*v.o)) { S } }
    """

    var: str
    factor: int

    def apply(self, kernel: Kernel) -> Kernel:
        """The split kernel. Raises NotApplicable for bounds that depend on other loops."""
        f = self.factor
        outer, inner = f"{self.var}.o", f"{self.var}.i"
        find_loops(kernel, self.var)
        check_positive("factor", f)
        check_no_registers(kernel, self.var)
        check_fresh(kernel, outer, inner)

        def split(loop: Loop) -> tuple[Stmt, ...]:
            n = symbolic_extent(kernel, loop)
            if loop.kind is Kind.VECTOR:
                raise NotApplicable(f"{self.var} is a vector already")
            if loop.kind is Kind.DOT:
                raise NotApplicable(f"the iterations of {self.var} go into one instruction already")
            if loop.kind is Kind.UNROLL and n % f != 0:
                raise NotApplicable(f"{self.var} is unrolled and {f} does not divide {n}")
            around, inside = in_blocks(kernel, loop, f, outer, inner)
            return (replace(around, body=(inside,)),)

        return with_replaced(kernel, self.var, split)


@record
class Fuse(Step):
    """Make one loop of two nested ones.

    for a in [0, m) { for b in [0, n) { S } }  ->  for ab in [0, m*n) { S[a: ab//n, b: ab%n] }
    """

    outer: str
    inner: str
    name: str

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with the loops fused. Raises NotApplicable unless directly nested."""
        find_loops(kernel, self.outer)
        check_no_registers(kernel, self.outer)
        check_no_registers(kernel, self.inner)
        check_fresh(kernel, self.name)
        var = Index.of(self.name)

        def fuse(loop: Loop) -> tuple[Stmt, ...]:
            if len(loop.body) != 1 or not isinstance(loop.body[0], Loop):
                raise NotApplicable(f"{self.outer} does more than loop over {self.inner}")
            inside = loop.body[0]
            if inside.var != self.inner:
                raise NotApplicable(f"{self.outer} directly holds {inside.var}")
            if inside.kind is not loop.kind:
                raise NotApplicable(f"{self.outer} is {loop.kind.value}, {self.inner} is not")
            if self.outer in inside.lo.names():
                raise NotApplicable(f"the bounds of {self.inner} depend on {self.outer}")
            m, n = symbolic_extent(kernel, loop), symbolic_extent(kernel, inside)
            total = Index.of(m * n)
            ranges = dict(kernel.symbols)
            most = total.bounds(ranges)
            if most is not None:
                ranges[self.name] = (0, max(most[1] - 1, 0))
            divisor = Index.of(n if n != 0 else 1)
            a = floordiv(var, divisor, ranges)
            b = mod(var, divisor, ranges)
            env = {self.outer: a + loop.lo, self.inner: b + inside.lo}
            body = with_index(inside.body, env)
            return (Loop(self.name, ZERO, total, loop.kind, body),)

        return with_replaced(kernel, self.outer, fuse)


@record
class Reorder(Step):
    """Put directly nested loops in another order, outermost first, wherever all of them stand.

    for a { for b { S } }  ->  for b { for a { S } }
    """

    order: tuple[str, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The reordered kernel. Raises NotApplicable unless the loops are directly nested."""
        names = set(self.order)
        if len(names) != len(self.order):
            raise NotApplicable("a loop is named twice")

        def reorder(loop: Loop) -> tuple[Stmt, ...]:
            chain = _nested(loop, names)
            if isinstance(chain, str):
                return (loop,)
            by_var = {x.var: x for x in chain}
            if [x.var for x in chain] != list(self.order):
                check_no_order(chain[-1].body)
            placed: set[str] = set()
            for v in self.order:
                placed.add(v)
                needed = (by_var[v].lo.names() | by_var[v].hi.names()) & names
                if not needed <= placed:
                    raise NotApplicable(f"the bounds of {v} depend on {sorted(needed - placed)}")
            inner = chain[-1].body
            for v in reversed(self.order):
                inner = (replace(by_var[v], body=inner),)
            return inner

        body = kernel.body
        reason = "none of the loops is there"
        for first in self.order:
            found = [s for s in walk_loops(body) if s.var == first]
            chains = [_nested(x, names) for x in found]
            if any(not isinstance(c, str) for c in chains):
                return replace(kernel, body=replace_loop(body, first, reorder))
            if _is_outermost(body, first, names):
                reason = next(c for c in chains if isinstance(c, str))
        raise NotApplicable(reason)


@record
class Cut(Step):
    """Cut a loop at fixed points, so that comparisons with them are constant in every piece.

    for v in [0, n) { S }  ->  for v in [0, p) { S }  for v in [p, n) { S }

    What they choose is left of the choices in a piece: a row of many values that are concatenated
    would have all of them in the piece of each.
    """

    var: str
    points: tuple[int, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with one loop per piece. Raises NotApplicable without constant bounds."""
        find_loops(kernel, self.var)
        check_no_registers(kernel, self.var)
        check_fresh(kernel, *(f"{self.var}.{i + 1}" for i in range(len(self.points))))
        symbols = dict(kernel.symbols)

        def cut(loop: Loop) -> tuple[Stmt, ...]:
            lo = constant_start(loop)
            hi = lo + constant_extent(loop)
            inside = sorted({p for p in self.points if lo < p < hi})
            edges = [lo, *inside, hi]
            pieces: list[Stmt] = []
            for number, (a, b) in enumerate(pairwise(edges)):
                name = self.var if number == 0 else f"{self.var}.{number}"
                body = _chosen(loop.body, {**symbols, self.var: (a, b - 1)})
                body = with_index(body, {self.var: Index.of(name) + a})
                pieces.append(Loop(name, ZERO, Index.of(b - a), loop.kind, body))
            return tuple(pieces)

        return with_replaced(kernel, self.var, cut)


def _chosen(body: tuple[Stmt, ...], ranges: Mapping[str, Range]) -> tuple[Stmt, ...]:
    """`body` without the choices that are the same everywhere in these ranges."""
    return rewrite(body, expr=lambda e: chosen(e, ranges))


@record
class Part(Step):
    """Give ranges of a loop their own code, so that comparisons with their ends are constant in it.

    for v in [0, n) { S }  ->  for v in [0, n) { if v < p { S } else { S } }

    Unlike a cut, it leaves one loop, whose iterations threads may share.
    """

    var: str
    points: tuple[int, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with branches inside. Raises NotApplicable without constant bounds."""
        find_loops(kernel, self.var)

        def part(loop: Loop) -> tuple[Stmt, ...]:
            if loop.kind is Kind.VECTOR:
                raise NotApplicable(f"the lanes of {self.var} cannot branch")
            lo = constant_start(loop)
            hi = lo + constant_extent(loop)
            edges = [lo, *sorted({p for p in self.points if lo < p < hi}), hi]
            arms = [self._arm(loop, a, b) for a, b in pairwise(edges)]
            body = arms.pop()
            for end, arm in zip(reversed(edges[1:-1]), reversed(arms), strict=True):
                body = (Branch(Index.of(self.var), Index.of(end), arm, body),)
            return (replace(loop, body=body),)

        return with_replaced(kernel, self.var, part)

    def _arm(self, loop: Loop, first: int, end: int) -> tuple[Stmt, ...]:
        if end == first + 1:
            return with_index(loop.body, {self.var: Index.of(first)})
        return simplified(loop.body, {self.var: (first, end - 1)})


@record
class Mark(Step):
    """Say how a loop's iterations are carried out.

    for v in [0, n) serial { S }  ->  for v in [0, n) unroll { S }

    Of an unrolled loop whose extent n is not constant, but at most f, every iteration has a test:

    for v in [0, n) serial { S }  ->  for v in [0, f) unroll { if v < n { S } }
    """

    var: str
    kind: Kind

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with the loop's kind changed. Raises NotApplicable where it cannot be."""
        if any(isinstance(s, Merge) and s.var == self.var for s in walk_stmts(kernel.body)):
            raise NotApplicable(f"the lanes {self.var} are merged")
        for loop in find_loops(kernel, self.var):
            self._check(kernel, loop)
        ranges = outer_ranges(kernel)

        def marked(loop: Loop) -> tuple[Stmt, ...]:
            if self.kind is not Kind.UNROLL or loop.hi.is_const:
                return (replace(loop, kind=self.kind),)
            bounds = loop.hi.bounds(ranges)
            if loop.lo != ZERO or bounds is None or bounds[1] > MOST_UNROLLED:
                raise NotApplicable(f"the extent of {self.var} is not constant")
            tested = Branch(Index.of(self.var), loop.hi, loop.body, ())
            return (replace(loop, hi=Index.of(bounds[1]), kind=self.kind, body=(tested,)),)

        return replace(kernel, body=replace_loop(kernel.body, self.var, marked))

    def _check(self, kernel: Kernel, loop: Loop) -> None:
        match self.kind:
            case Kind.SERIAL:
                check_no_registers(kernel, self.var)
            case Kind.UNROLL:
                if loop.hi.is_const:
                    constant_start(loop)
            case Kind.PARALLEL:
                check_no_registers(kernel, self.var)
                check_independent(kernel, loop)
            case Kind.VECTOR:
                check_independent(kernel, loop)
                check_vector(kernel, loop)
                self._check_stack(kernel, loop)
            case Kind.DOT:
                self._check_dot(loop)
            case Kind.MATRIX:
                raise NotApplicable("matrix loops are made by matrix_tile")
            case _:
                assert_never(self.kind)

    def _check_dot(self, loop: Loop) -> None:
        if constant_start(loop) != 0 or constant_extent(loop) > MOST_PRODUCTS:
            raise NotApplicable(f"{loop.var} has more than {MOST_PRODUCTS} iterations")
        for s in walk_stmts(loop.body):
            if isinstance(s, Loop):
                if loop.var in s.lo.names() | s.hi.names():
                    raise NotApplicable(f"the bounds of {s.var} depend on {loop.var}")
            elif not isinstance(s, Update) or s.reducer.name != "sum" or s.lanes is not None:
                raise NotApplicable(f"{loop.var} does more than add to sums")
            elif any(moves(a, loop.var) for a in s.states):
                raise NotApplicable(f"{loop.var} has sums of its own")

    def _check_stack(self, kernel: Kernel, loop: Loop) -> None:
        stack = {b.name for b in kernel.locals if b.space is Space.STACK}
        for s in walk_stmts(loop.body):
            for a in accesses(s):
                if a.buffer in stack and not moves(a, loop.var):
                    raise NotApplicable(f"the lanes of {self.var} share %{a.buffer}")


def _nested(loop: Loop, names: set[str]) -> list[Loop] | str:
    """The loops over the names, `loop` first, each all that the last one does; or why not."""
    chain = [loop]
    while len(chain) < len(names):
        body = chain[-1].body
        if len(body) != 1 or not isinstance(body[0], Loop) or body[0].var not in names:
            return f"{chain[-1].var} does not directly hold one of {sorted(names)}"
        chain.append(body[0])
    return chain


def _is_outermost(body: tuple[Stmt, ...], var: str, names: set[str]) -> bool:
    """Whether a loop over `var` stands in no loop over one of `names`."""
    for s in body:
        if isinstance(s, Loop):
            if s.var == var:
                return True
            if s.var not in names and _is_outermost(s.body, var, names):
                return True
        elif isinstance(s, Branch) and (
            _is_outermost(s.then, var, names) or _is_outermost(s.orelse, var, names)
        ):
            return True
    return False
