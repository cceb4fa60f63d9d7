"""What rules ask of expressions and of the nodes that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from rutc.tensor_ir import (
    Apply,
    Coord,
    DType,
    Expr,
    Index,
    IndexValue,
    Lit,
    Nest,
    Node,
    Read,
    Scatter,
    Value,
    apply,
)
from rutc.tensor_ir.expr import children, point, reads, reads_plainly, walk
from rutc.tensor_ir.indices.affine import Atom, FloorDiv, Max, Min, Mod, Var


def expressions(n: Nest | Scatter) -> Iterator[Expr]:
    """The expressions of a node: its body, and the data-dependent coordinates of a scatter."""
    if isinstance(n, Nest):
        yield from n.body
        return
    yield n.body
    yield from (c for _, c in n.coords if not isinstance(c, Index))


def node_reads(n: Nest | Scatter) -> Iterator[Read]:
    """All reads of a node, in order, repeated ones repeated."""
    if isinstance(n, Nest) and len(n.body) == 1:
        # Rules ask this of all nests, most of which have one expression.
        return reads(n.body[0])
    return chain.from_iterable(map(reads, expressions(n)))


def map_expressions(n: Nest | Scatter, f: Callable[[Expr], Expr]) -> Nest | Scatter:
    """`n` with `f` applied to each of its expressions; `n` itself if none changes."""
    if isinstance(n, Nest):
        body = tuple(map(f, n.body))
        same = all(a is b for a, b in zip(body, n.body, strict=True))
        return n if same else replace(n, body=body)

    def coord(c: Coord) -> Coord:
        return c if isinstance(c, Index) else f(c)

    coords = tuple((d, coord(c)) for d, c in n.coords)
    value = f(n.body)
    same = value is n.body and all(a is b for (_, a), (_, b) in zip(coords, n.coords, strict=True))
    return n if same else replace(n, coords=coords, body=value)


def as_view(n: Node | None) -> tuple[Nest, Read] | None:
    """A nest that only reads, through index expressions, with or without a fill; and its read."""
    if not isinstance(n, Nest) or n.reducer is not None:
        return None
    r = n.body[0]
    if not isinstance(r, Read) or is_gathered(r):
        return None
    return n, r


def indices(e: Expr) -> Iterator[Index]:
    """All index expressions in `e`."""
    for x in walk(e):
        if isinstance(x, Read):
            yield from (c for _, c in x.coords if isinstance(c, Index))
        elif isinstance(x, IndexValue):
            yield x.index


def atoms(x: Index) -> Iterator[Atom]:
    """All atoms of an index expression, those inside divisions included."""
    for mono, _ in x.terms:
        for a in mono:
            yield a
            match a:
                case FloorDiv(p, q) | Mod(p, q) | Min(p, q) | Max(p, q):
                    yield from atoms(p)
                    yield from atoms(q)
                case Var():
                    pass


def divisions(x: Index) -> int:
    """How many divisions and remainders `x` contains."""
    return sum(isinstance(a, FloorDiv | Mod) for a in atoms(x))


def wrapped(x: int, dtype: DType) -> Lit:
    """`x` as a literal of an integer type, modulo that type's range."""
    span = 1 << dtype.bits
    lowest = -(span // 2) if dtype.is_signed else 0
    return Lit((x - lowest) % span + lowest, dtype)


def at_point(v: Value) -> Read:
    """The element of a value at the current point."""
    return Read(v.name, point(v.dims), v.dtype)


def index_coords(r: Read) -> tuple[tuple[str, Index], ...]:
    """The coordinates of `r` that are index expressions."""
    return tuple((d, c) for d, c in r.coords if isinstance(c, Index))


def reads_at_point(r: Read) -> bool:
    """Whether `r` reads, along all of its dims, at the current point."""
    # Long sequences ask it again and again; a generator would take twice as long.
    for d, c in r.coords:  # noqa: SIM110
        if not isinstance(c, Index) or c.as_var != d:
            return False
    return True


def depth(e: Expr) -> int:
    """The most operations and casts in `e` that follow from each other."""
    found: dict[int, int] = {}
    stack = [e]
    while stack:
        x = stack[-1]
        below = children(x)
        missing = [a for a in below if id(a) not in found]
        if missing:
            stack += missing
            continue
        stack.pop()
        found[id(x)] = max((found[id(a)] for a in below), default=0) + bool(below)
    return found[id(e)]


def is_gathered(r: Read) -> bool:
    """Whether data tell where `r` reads, along a dim at least."""
    return not reads_plainly(r)


def is_plain(r: Read) -> bool:
    """Whether `r` reads at index expressions only and has no fill."""
    return r.fill is None and not is_gathered(r)


def side_by_side(index: Index, first: Expr, rest: Expr) -> Expr:
    """The first expression where an index is negative, and the rest from 0 on."""
    place = IndexValue(index)
    return apply("select", apply("lt", place, Lit(0, place.dtype)), first, rest)


def below_zero(test: Expr) -> Index | None:
    """The index of which a test says that it is negative; None if it says something else."""
    if not isinstance(test, Apply) or test.op != "lt":
        return None
    x, y = test.args
    return x.index if isinstance(x, IndexValue) and isinstance(y, Lit) and y.value == 0 else None
