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

from collections.abc import Mapping
from enum import Enum
from typing import assert_never

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Coord, Expr
from rutc.tensor_ir.indices.affine import Index, Range, Size, plain, quoted
from rutc.tensor_ir.indices.ranges import range_text
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.reducer import Reducer
from rutc.tensor_ir.textual.text import print_expr


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
    """Which factors of a constant are small (`tensor_ir.facts.products`): any, or in `pairs`.

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
