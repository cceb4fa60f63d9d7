"""What the statements of kernels hold, read and write: walks over them, and what rewrites them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from operator import is_
from typing import assert_never

from rutc.tensor_ir.expr import Expr, Read, indices, map_index, map_reads, reads
from rutc.tensor_ir.indices.affine import Index, Range
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Init,
    Kernel,
    Loop,
    Merge,
    Prefetch,
    Put,
    Stmt,
    Update,
)

_HOLDERS = (Loop, Branch)
"""The statements that hold others."""

Around = tuple[Loop, ...]
"""The loops around a statement, the innermost last."""


def walk_stmts(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements, outer ones first."""
    waiting = list(body[::-1])
    while waiting:
        s = waiting.pop()
        yield s
        # Every step looks at all statements, and few of them have others inside.
        if isinstance(s, Loop):
            waiting += s.body[::-1]
        elif isinstance(s, Branch):
            waiting += s.orelse[::-1]
            waiting += s.then[::-1]


def walk_loops(body: tuple[Stmt, ...]) -> Iterator[Loop]:
    """All loops, outer ones first."""
    waiting = [s for s in body[::-1] if isinstance(s, _HOLDERS)]
    while waiting:
        s = waiting.pop()
        if isinstance(s, Loop):
            yield s
            inside = s.body
        else:
            inside = (*s.then, *s.orelse)
        waiting += [x for x in inside[::-1] if isinstance(x, _HOLDERS)]


def walk_within(body: tuple[Stmt, ...], around: Around = ()) -> Iterator[tuple[Stmt, Around]]:
    """All statements, outer ones first, each with the loops around it."""
    for s in body:
        yield s, around
        if isinstance(s, Loop):
            yield from walk_within(s.body, (*around, s))
        elif isinstance(s, Branch):
            yield from walk_within((*s.then, *s.orelse), around)


def accesses(s: Stmt) -> tuple[Access, ...]:
    """The targets that a statement itself writes or updates."""
    match s:
        case Assign() | Put():
            return (s.target,)
        case Init() | Update():
            return s.states
        case Merge():
            return (*s.states, *s.sources)
        case Loop() | Branch() | Prefetch():
            return ()
        case _:
            assert_never(s)


def exprs(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates."""
    match s:
        case Assign():
            return (s.value,)
        case Put():
            return (s.value, *(c for _, c in s.target.coords if not isinstance(c, Index)))
        case Update():
            return s.elements
        case Init() | Merge() | Loop() | Branch() | Prefetch():
            return ()
        case _:
            assert_never(s)


def reads_in(body: tuple[Stmt, ...]) -> Iterator[Read]:
    """All reads of statements, in order."""
    return (r for s in walk_stmts(body) for e in exprs(s) for r in reads(e))


def own_indices(s: Stmt) -> tuple[Index, ...]:
    """The index expressions of a statement, those of statements in it left out; equal ones once."""
    if isinstance(s, Loop):
        return s.lo, s.hi
    if isinstance(s, Branch):
        return s.left, s.right
    if isinstance(s, Prefetch):
        return (s.address,)
    # Statements never change, and every step asks for those of all that it leaves as they are.
    known: tuple[Index, ...] | None = s.__dict__.get("_indices")
    if known is None:
        found: dict[Index, None] = {}
        for c in [c for a in accesses(s) for _, c in a.coords]:
            found |= {c: None} if isinstance(c, Index) else dict.fromkeys(indices(c))
        for e in exprs(s):
            found |= dict.fromkeys(indices(e))
        known = s.__dict__["_indices"] = tuple(found)
    return known


def is_for_ranges(s: Stmt) -> bool:
    """Whether ranges may tell something of a statement: it divides, or compares, or one in it does.

    Divisions, minima and maxima are what ranges simplify in indices.
    """
    # Asked of all statements by every step that adds a loop somewhere.
    known: bool | None = s.__dict__.get("_for_ranges")
    if known is None:
        known = (
            isinstance(s, Branch)
            or not all(i.is_polynomial for i in own_indices(s))
            or (isinstance(s, Loop) and any(map(is_for_ranges, s.body)))
        )
        s.__dict__["_for_ranges"] = known
    return known


def with_symbols(kernel: Kernel, symbols: Mapping[str, Range]) -> Kernel:
    """The kernel with those of the symbols that it reads, in the order of the mapping."""
    if not symbols:
        return replace(kernel, symbols=())
    used = {n for b in (*kernel.args, *kernel.locals) for n in b.layout.names()}
    for s in walk_stmts(kernel.body):
        used.update(*[i.names() for i in own_indices(s)])
    return replace(kernel, symbols=tuple((n, r) for n, r in symbols.items() if n in used))


def rewrite(
    body: tuple[Stmt, ...],
    *,
    index: Callable[[Index], Index] | None = None,
    read: Callable[[Read], Expr] | None = None,
    expr: Callable[[Expr], Expr] | None = None,
    access: Callable[[Access], Access] | None = None,
) -> tuple[Stmt, ...]:
    """`body` with functions applied to every index, then read, then expression, then target.

    Indices that are equal are given to `index` once.
    """
    rewriter = _Rewriter(index, read, expr, access)
    return tuple(map(rewriter.stmt, body))


class _Rewriter:
    """What `rewrite` does to each part of a statement."""

    # No closures that call each other: only the search for cycles would find those to be garbage.

    def __init__(
        self,
        index: Callable[[Index], Index] | None,
        read: Callable[[Read], Expr] | None,
        expr: Callable[[Expr], Expr] | None,
        access: Callable[[Access], Access] | None,
    ) -> None:
        """Apply these functions; None: nothing."""
        self.index = cache(index) if index else (lambda i: i)
        self.maps = index is not None
        self.on_read, self.on_expr, self.on_access = read, expr, access
        self.indices_only = read is None and expr is None and access is None

    def expr(self, e: Expr) -> Expr:
        """An expression."""
        if self.on_read:
            e = map_reads(e, self.index, self.on_read)
        elif self.maps:
            e = map_index(e, self.index)
        return self.on_expr(e) if self.on_expr else e

    def access(self, a: Access) -> Access:
        """A target."""
        coords = tuple(
            [(d, self.index(c) if isinstance(c, Index) else self.expr(c)) for d, c in a.coords]
        )
        found = a if coords == a.coords else Access(a.buffer, coords)
        return self.on_access(found) if self.on_access else found

    def stmt(self, s: Stmt) -> Stmt:
        """A statement and all in it; the same one where indices alone change, and none does."""
        if isinstance(s, Loop):
            lo, hi, inner = self.index(s.lo), self.index(s.hi), tuple(map(self.stmt, s.body))
            if lo is s.lo and hi is s.hi and all(map(is_, inner, s.body)):
                return s
            return Loop(s.var, lo, hi, s.kind, inner)
        if self.indices_only and not isinstance(s, Branch):
            kept = True
            for i in own_indices(s):
                mapped = self.index(i)
                kept &= mapped is i or mapped == i
            if kept:
                return s
        match s:
            case Assign():
                return Assign(self.access(s.target), self.expr(s.value))
            case Put():
                return Put(self.access(s.target), s.reducer, self.expr(s.value))
            case Init():
                return Init(tuple(map(self.access, s.states)), s.reducer)
            case Update():
                states, elements = map(self.access, s.states), map(self.expr, s.elements)
                return Update(tuple(states), s.reducer, tuple(elements), s.lanes)
            case Merge():
                states, sources = map(self.access, s.states), map(self.access, s.sources)
                return replace(s, states=tuple(states), sources=tuple(sources))
            case Branch():
                then, orelse = map(self.stmt, s.then), map(self.stmt, s.orelse)
                return Branch(self.index(s.left), self.index(s.right), tuple(then), tuple(orelse))
            case Prefetch():
                return replace(s, address=self.index(s.address))
            case _:
                assert_never(s)
