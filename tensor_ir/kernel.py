"""The kernel language: loops over buffers, what a fusion group is lowered to and scheduled in.

    kernel := name(buffer, ...) { stmt* }
    buffer := name : dtype layout space [finite] [small [along dims]] [gradual along dims] [singly]
              [of n at most]
    space  := memory | stack | register
    stmt   := for v in [lo, hi) kind { stmt* }       kind: serial | parallel | unroll | vector
            | buffer[dim=coord, ...] = expr
            | put buffer[dim=coord, ...] reducer= expr
            | reducer.init(state...)                  the states become the identity
            | reducer.update(state..., expr...)       the states take in one element
            | reducer.merge(state..., lanes..., v)    the states take in the states of all v
            | if a < b { stmt* } else { stmt* }
            | prefetch buffer @ index                 no effect but on time

Expressions are those of the graph language; a read names a buffer instead of a value. Loop bounds
are index expressions over outer loops and symbols. The iterations of a dot loop, which are few,
only add products to states; directly nested matrix loops start or add to a block of sums, or store
it: 16 columns, and 16 rows at most, whose number may depend on symbols. Those of parallel, unrolled
and vectorised loops are independent of each other, except that updates inside a vector loop of a
`register` state without that loop's axis never occur (`merge` joins the lanes). A `put` combines a
value into an element, which the expression of a coordinate may choose (`set` replaces it), and does
nothing where the coordinates are outside of the buffer. Registers are private to a thread and are
indexed by unrolled and vector loops only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import cache
from operator import is_
from typing import assert_never

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.affine import Index, Range, Size, plain, quoted
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Coord, Expr, Read, indices, map_index, map_reads, reads
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.ranges import range_text
from rutc.tensor_ir.reducer import Reducer
from rutc.tensor_ir.text import print_expr


class Space(Enum):
    """Where a buffer lives: handed in, on the thread's stack, or in registers."""

    MEMORY = "memory"
    STACK = "stack"
    REGISTER = "register"


class Kind(Enum):
    """How the iterations of a loop are carried out."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    UNROLL = "unroll"
    VECTOR = "vector"
    DOT = "dot"
    MATRIX = "matrix"


@record
class Small:
    """Which factors that a constant holds are small (`tensor_ir.products`): any, or in `pairs`.

    Of a dim in `pairs`, elements 2i and 2i + 1 are small together; of one in `fours`, pairs 4i and
    4i + 2 as well, and so are pairs 4i + 1 and 4i + 3.
    """

    any_two: bool = False
    pairs: tuple[str, ...] = ()
    fours: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.any_two or bool(self.pairs)

    def __str__(self) -> str:
        said = "small" if self.any_two else f"small along {', '.join(self.pairs)}"
        return f"{said}, in fours along {', '.join(self.fours)}" if self.fours else said


@record
class Buffer:
    """Elements of one type; the layout's dims name its axes.

    Those of a `finite` one are known to be finite numbers: their products with 0 are 0. Those of a
    `small` one are known to be small factors. Along the dims of which one is `gradual`, each
    element is the one before it or the next number; they are places that there are. Those in
    nibbles are read only. Lanes that lie apart in one that is accessed `singly` have loads and
    stores of their own. It has `most` elements at most, where its sizes do not tell as much.
    """

    name: str
    dtype: DType
    layout: Layout
    space: Space = Space.MEMORY
    finite: bool = False
    small: Small = Small()
    gradual: tuple[str, ...] = ()
    singly: bool = False
    most: int | None = None

    @cached_property
    def bytes(self) -> Size:
        """What its elements take."""
        if self.layout.nibbles:
            return plain((Index.of(self.layout.size) + 1) // 2)
        return plain(Index.of(self.layout.size) * self.dtype.bytes)

    def most_elements(self, symbols: Mapping[str, Range]) -> int | None:
        """How many elements it has at most, over the ranges of sizes; None where nothing tells."""
        bounds = Index.of(self.layout.size).bounds(symbols)
        told = [n for n in (self.most, bounds and bounds[1]) if n is not None]
        return min(told, default=None)


@record
class Access:
    """One element of a buffer, as a target."""

    buffer: str
    coords: tuple[tuple[str, Coord], ...] = ()


@record
class Loop:
    """`var` from `lo` below `hi` in steps of one."""

    var: str
    lo: Index
    hi: Index
    kind: Kind
    body: tuple[Stmt, ...]


@record
class Assign:
    """`target = value`."""

    target: Access
    value: Expr


@record
class Put:
    """The element at `target`, if there is one, takes `value` in, or becomes it (no reducer)."""

    target: Access
    reducer: Reducer | None
    value: Expr


@record
class Init:
    """The states become the reducer's identity."""

    states: tuple[Access, ...]
    reducer: Reducer


@record
class Update:
    """The states take in one element. `lanes` names a vector loop whose idle lanes must not."""

    states: tuple[Access, ...]
    reducer: Reducer
    elements: tuple[Expr, ...]
    lanes: str | None = None


@record
class Merge:
    """`states` take in `sources` for all values of `var`, an axis of the sources."""

    states: tuple[Access, ...]
    sources: tuple[Access, ...]
    reducer: Reducer
    var: str
    extent: int


@record
class Branch:
    """`then` where `left < right`, else `orelse`."""

    left: Index
    right: Index
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...]


@record
class Prefetch:
    """Bring the memory line of element number `address` of a buffer into the cache of `level`.

    There is no other effect, and the address may lie outside of the buffer. With `write` the line
    is to be written to: no other core may keep it.
    """

    buffer: str
    address: Index
    level: int = 2
    write: bool = False


Stmt = Loop | Assign | Put | Init | Update | Merge | Branch | Prefetch
_HOLDERS = (Loop, Branch)
"""The statements that hold others."""


@record
class Kernel:
    """Loops over buffers. `args` are the memory buffers in calling order, `locals` the others."""

    name: str
    args: tuple[Buffer, ...]
    locals: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    origin: tuple[str, ...] = ()
    symbols: tuple[tuple[str, Range], ...] = ()
    """The sizes and loop counters of the host program that the kernel reads, with their ranges."""

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name. Raises KeyError when there is none."""
        for b in (*self.args, *self.locals):
            if b.name == name:
                return b
        raise KeyError(name)

    def __str__(self) -> str:
        args = ", ".join(_buffer(b) for b in self.args)
        lines = [f"kernel {self.name}({args}) {{"]
        lines += [f"  symbol {quoted(n)} = {range_text(r)}" for n, r in self.symbols]
        lines += [f"  local {_buffer(b)}" for b in self.locals]
        for s in self.body:
            _stmt(s, 1, lines)
        return "\n".join([*lines, "}"])


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


# -- text -------------------------------------------------------------------------------------
def _buffer(b: Buffer) -> str:
    known = f"{' finite' if b.finite else ''}{f' {b.small}' if b.small else ''}"
    known += f" gradual along {', '.join(b.gradual)}" if b.gradual else ""
    known += " singly" if b.singly else ""
    known += "" if b.most is None else f" of {b.most} at most"
    return f"%{b.name}: {b.dtype} {b.layout} {b.space.value}{known}"


def _stmt(s: Stmt, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    match s:
        case Loop():
            lines.append(f"{pad}for {s.var} in [{s.lo}, {s.hi}) {s.kind.value} {{")
            for inner in s.body:
                _stmt(inner, depth + 1, lines)
            lines.append(f"{pad}}}")
        case Assign():
            lines.append(f"{pad}{_access(s.target)} = {print_expr(s.value)}")
        case Put():
            how = s.reducer.name if s.reducer is not None else "set"
            lines.append(f"{pad}put {_access(s.target)} {how}= {print_expr(s.value)}")
        case Init():
            lines.append(f"{pad}{s.reducer.name}.init({', '.join(map(_access, s.states))})")
        case Update():
            parts = [*map(_access, s.states), *map(print_expr, s.elements)]
            lanes = f" lanes {s.lanes}" if s.lanes else ""
            lines.append(f"{pad}{s.reducer.name}.update({', '.join(parts)}){lanes}")
        case Merge():
            parts = [*map(_access, s.states), *map(_access, s.sources), s.var]
            lines.append(f"{pad}{s.reducer.name}.merge({', '.join(parts)})")
        case Branch():
            lines.append(f"{pad}if {s.left} < {s.right} {{")
            for inner in s.then:
                _stmt(inner, depth + 1, lines)
            if s.orelse:
                lines.append(f"{pad}}} else {{")
                for inner in s.orelse:
                    _stmt(inner, depth + 1, lines)
            lines.append(f"{pad}}}")
        case Prefetch():
            purpose = " to write" if s.write else ""
            lines.append(f"{pad}prefetch %{s.buffer} @ {s.address} into {s.level}{purpose}")
        case _:
            assert_never(s)


def _access(a: Access) -> str:
    coords = ", ".join(d if c == Index.of(d) else f"{d}={_coord(c)}" for d, c in a.coords)
    return f"%{a.buffer}[{coords}]"


def _coord(c: Coord) -> str:
    return str(c) if isinstance(c, Index) else print_expr(c)
