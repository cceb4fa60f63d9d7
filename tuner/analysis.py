"""A freshly lowered kernel taken apart: its loops, its reductions and its accesses to memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rutc.tensor_ir.expr import Expr, Read, index_names, reads, reads_plainly
from rutc.tensor_ir.facts.gradual import row_chosen
from rutc.tensor_ir.facts.windows import Window, window
from rutc.tensor_ir.indices.affine import Index, Range, Size, plain, typical
from rutc.tensor_ir.indices.ranges import SOME, common_size, with_common, without_common
from rutc.tensor_ir.kernel import Assign, Branch, Buffer, Kernel, Loop, Put, Space, Stmt, Update
from rutc.tensor_ir.statements import exprs, walk_loops
from rutc.tensor_ir.steps.inside import windows_of
from rutc.tuner.access import Reduction, Shape, Touch
from rutc.tuner.tiles.columns import in_columns


def analyse(kernel: Kernel, constants: frozenset[str]) -> Shape:
    """The kernel's shape. `constants` are the buffers whose layout is still free."""
    shared: list[Loop] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        shared.append(body[0])
        body = body[0].body
    if not body:
        shared, body = [], kernel.body
    lengths = _Lengths(kernel)
    touches, reductions = _accesses(kernel, constants, len(shared), lengths)
    return Shape(
        tuple(shared),
        body,
        reductions,
        touches,
        extents=lengths.extents,
        sizes=lengths.sizes,
        symbolic=frozenset(lengths.symbolic),
        common_extents=lengths.common_extents,
        shared_extents=lengths.shared_extents,
        longest=lengths.longest,
        single=frozenset(lengths.single),
    )


class _Lengths:
    """How long the loops of a kernel are, as its `Shape` has it, and the `ranges` of variables."""

    def __init__(self, kernel: Kernel) -> None:
        self._symbols = dict(kernel.symbols)
        self.some = {n: with_common(r, max(common_size(r), SOME)) for n, r in self._symbols.items()}
        """The symbols, of which none is commonly less than `SOME`."""
        self._many = without_common(self._symbols)
        self.ranges: dict[str, Range] = {}
        self.extents: dict[str, int] = {}
        self.common_extents: dict[str, int] = {}
        self.shared_extents: dict[str, int] = {}
        self.symbolic: set[str] = set()
        self.longest: dict[str, int] = {}
        self.single: set[str] = set()
        self.sizes: dict[str, Size] = {}
        for x in walk_loops(kernel.body):
            self._add(x)
        self.ranges |= self._symbols

    def _add(self, x: Loop) -> None:
        low, high = x.lo.value, typical(x.hi, self.some)
        most = x.hi.bounds(self._symbols)
        self.ranges[x.var] = (low, max((most[1] if most is not None else high) - 1, low))
        self.extents[x.var] = high - low
        self.common_extents[x.var] = max(typical(x.hi, self._symbols) - low, 1)
        self.shared_extents[x.var] = typical(x.hi, self._many) - low
        self.sizes[x.var] = plain(x.hi - low)
        if not x.hi.is_const:
            self.symbolic.add(x.var)
            self.extents[x.var] = max(self.extents[x.var], 1)
            self.shared_extents[x.var] = max(self.shared_extents[x.var], 1)
            if most is not None:
                self.longest[x.var] = most[1] - low
                self.single |= {x.var} if most[0] - low <= 1 else set()


def _accesses(
    kernel: Kernel, constants: frozenset[str], depth: int, lengths: _Lengths
) -> tuple[tuple[Touch, ...], tuple[Reduction, ...]]:
    """(accesses to memory, reductions) in the order of statements, inside of `depth` shared loops.

    What several statements beside each other read at one place is loaded once.
    """
    buffers = {b.name: b for b in (*kernel.args, *kernel.locals)}
    touches: list[Touch] = []
    reductions: list[Reduction] = []
    within: dict[str, frozenset[str]] = {}
    for s, loops, seen in _within_loops(kernel.body, ()):
        names = tuple(x.var for x in loops)
        found = (r for e in exprs(s) for r in reads(e))
        places = dict.fromkeys(r for r in found if buffers[r.value].space is not Space.REGISTER)
        read = {r: _touch(r, buffers, names, lengths.ranges, constants, within) for r in places}
        touches.extend(t for r, t in read.items() if r not in seen)
        seen.update(places)
        if isinstance(s, Assign | Put) and buffers[s.target.buffer].space is not Space.REGISTER:
            target = buffers[s.target.buffer]
            place = Read(target.name, s.target.coords, target.dtype)
            free = frozenset[str]()
            store = _touch(place, buffers, names, lengths.ranges, free, within, is_store=True)
            touches.append(store)
        elif isinstance(s, Assign):
            own = within.get(s.target.buffer, frozenset())
            within[s.target.buffer] = own | _loops_of(s.value, within)
        if isinstance(s, Update):
            inner = loops[depth:]
            windows = _windows(kernel, s, inner, lengths.extents, lengths.some)
            reductions.append(Reduction(s, inner, tuple(read.values()), *windows))
    return tuple(touches), tuple(reductions)


def _within_loops(
    stmts: tuple[Stmt, ...], loops: tuple[Loop, ...]
) -> Iterator[tuple[Stmt, tuple[Loop, ...], set[Read]]]:
    """(statement, the loops around it, a set that it shares with those beside it), in order."""
    beside: set[Read] = set()
    for s in stmts:
        if isinstance(s, Loop):
            yield from _within_loops(s.body, (*loops, s))
        elif isinstance(s, Branch):
            yield from _within_loops(s.then, loops)
            yield from _within_loops(s.orelse, loops)
        else:
            yield s, loops, beside


def _windows(
    kernel: Kernel,
    update: Update,
    loops: tuple[Loop, ...],
    extents: Mapping[str, int],
    symbols: Mapping[str, Range],
) -> tuple[tuple[Window, ...], frozenset[str]]:
    """The windows of an update whose loops may have other bounds, as the step `inside` gives.

    And the loops of which that saves tests of where they are.
    """
    own = {x.var for x in loops}
    found: list[Window] = []
    tested: set[str] = set()
    for loop in loops:
        if not loop.hi.is_const:
            continue
        for c, size, room in windows_of(kernel, update, loop.var):
            w = window(c, own, extents.keys() - own, typical(size, symbols))
            if w is None:
                continue
            found.append(w)
            ranges = {v: (0, extents[v] - 1) for v in (w.bound, w.free)}
            bounds = c.bounds(ranges)
            if bounds is None or bounds[0] < -room[0] or bounds[1] >= w.extent + room[1]:
                tested.add(w.bound)
    return tuple(found), frozenset(tested)


def _loops_of(e: Expr, within: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The loops that an expression depends on, by way of registers, too."""
    registers = (within[r.value] for r in reads(e) if r.value in within)
    return index_names(e).union(*registers)


def _touch(
    r: Read,
    buffers: Mapping[str, Buffer],
    loops: tuple[str, ...],
    ranges: Mapping[str, Range],
    constants: frozenset[str],
    within: Mapping[str, frozenset[str]],
    *,
    is_store: bool = False,
) -> Touch:
    """The access of a read; registers hold what depends on the loops `within`."""
    buffer = buffers[r.value]
    coords: dict[str, Index] = {}
    scattered: set[str] = set()
    for d, c in r.coords:
        if isinstance(c, Index):
            coords[d] = c.simplify(ranges)
        else:
            coords[d] = Index.of(0)
            scattered |= _loops_of(c, within)
    strides: dict[str, int | None] = {}
    exact: dict[str, Size | None] = {}
    arranged = not is_store and in_columns(buffer.layout)
    packed = buffer.name in constants or arranged
    if packed:
        for c in coords.values():
            for v in c.names():
                strides[v] = exact[v] = 1 if c.as_var == v else None
    else:
        address = buffer.layout.address(coords, ranges)
        for v in loops:
            factor = address.factor(v)
            exact[v] = None if factor is None else plain(factor)
            strides[v] = _stride(factor, ranges)
    for v in scattered:
        strides[v] = exact[v] = None
    chosen: dict[str, int] = {}
    row = None if arranged else row_chosen(r.coords, buffer.layout)
    if row is not None:
        moved = frozenset().union(*(c.names() for c in coords.values()))
        chosen = dict.fromkeys(scattered - moved, row[1])
    small = replace(
        buffer.small,
        pairs=_loops_along(buffer.small.pairs, coords),
        fours=_loops_along(buffer.small.fours, coords),
    )
    return Touch(
        buffer.name,
        is_store,
        strides,
        loops,
        packed,
        bytes=buffer.dtype.bytes,
        buffer_bytes=typical(buffer.bytes, ranges),
        gathered=not reads_plainly(r),
        exact=exact,
        small=small,
        nibbles=buffer.layout.nibbles,
        arranged=arranged,
        chosen=chosen,
    )


def _loops_along(dims: tuple[str, ...], coords: Mapping[str, Index]) -> tuple[str, ...]:
    """The loops that are coordinates along some dims."""
    loops = (coords[d].as_var for d in dims if d in coords)
    return tuple(v for v in loops if v is not None)


def _stride(factor: Index | None, ranges: Mapping[str, Range]) -> int | None:
    """Elements that a step of a loop commonly moves by; None where that may be backward."""
    if factor is None or factor.is_const:
        return None if factor is None else factor.const
    bounds = factor.bounds(ranges)
    if bounds is None or bounds[0] < 0:
        return None
    if bounds == (0, 1) and factor.as_var is not None:
        return 1
    return max(typical(factor, ranges), 2)
