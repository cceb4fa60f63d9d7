"""How a kernel touches memory: what every access costs, per loop variable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.affine import Index, Range, Size, plain, typical
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Expr, Read, index_names, reads, reads_plainly
from rutc.tensor_ir.gradual import row_chosen
from rutc.tensor_ir.kernel import (
    Assign,
    Branch,
    Buffer,
    Kernel,
    Loop,
    Put,
    Small,
    Space,
    Stmt,
    Update,
    exprs,
    reads_in,
    walk_loops,
)
from rutc.tensor_ir.machine import NEAR_STRIDES, Machine
from rutc.tensor_ir.products import narrow_factors, scaled
from rutc.tensor_ir.ranges import SOME, common_size, with_common, without_common
from rutc.tensor_ir.steps.inside import windows_of
from rutc.tensor_ir.windows import Window, window
from rutc.tuner.columns import in_columns


@record
class Touch:
    """One access: the elements it moves per step of each variable.

    `strides[v]` is 0 where v does not matter and None where the place is no affine function of v.
    Strides that are no constants are what they commonly are; `exact` has them as they are.
    A `packed` access is to a constant, whose layout follows the schedule, or to a value that is
    `arranged` so, in columns of pairs: its strides are those of the ideal layout, 1 for every
    variable that it depends on. The place of a `gathered` access
    depends on data. Of a `small` one,
    elements are small factors: any two, or neighbours along the loops of its `pairs`. Of one in
    `nibbles`, two elements share one of its `bytes`.
    """

    buffer: str
    is_store: bool
    strides: Mapping[str, int | None]
    loops: tuple[str, ...]
    packed: bool
    bytes: int
    buffer_bytes: int
    gathered: bool = False
    exact: Mapping[str, Size | None] = field(default_factory=dict)
    small: Small = Small()
    nibbles: bool = False
    arranged: bool = False
    chosen: Mapping[str, int] = field(default_factory=dict)
    """Loop -> the neighbours among which data choose that it moves, and nothing else of the place
    is."""

    @property
    def packable(self) -> bool:
        """Whether it is to a constant, of which the schedule says how it is packed."""
        return self.packed and not self.arranged

    def line(self, machine: Machine) -> int:
        """The elements of a cache line."""
        return machine.line_bytes // self.bytes * (2 if self.nibbles else 1)

    def depends(self, var: str) -> bool:
        """Whether the place differs between iterations of `var`."""
        return self.strides.get(var, 0) != 0

    def unit(self, var: str) -> bool:
        """Whether neighbours along `var` are neighbours in memory."""
        return self.strides.get(var, 0) == 1

    def near(self, var: str) -> bool:
        """Whether one load takes the elements for neighbours along `var`, all or a single one."""
        if self.packed:
            return not self.gathered or self.strides.get(var, 0) is not None
        return self.strides.get(var, 0) in (0, 1)

    def across(self, vector: str, var: str) -> bool:
        """Whether vectors along a loop lie across memory, and `var` goes along it."""
        far = self.strides.get(vector) not in (None, 0, 1, *NEAR_STRIDES)
        return far and self.unit(var) and not self.packed and not self.gathered

    def picks(self, var: str, lanes: int, machine: Machine) -> int:
        """The operations by which lanes along `var` take what data choose from registers."""
        return machine.picks(self.bytes, self.chosen[var], lanes) if var in self.chosen else 0

    def known(self, var: str) -> bool:
        """Whether a step of `var` is so many elements whatever the sizes of a run."""
        return isinstance(self.exact.get(var, 0), int)

    def continues(self, outer: str, inner: str, extent: Size) -> bool:
        """Whether `outer` goes on where `inner`, of that extent, ends.

        Where data choose along both, the accesses to these data tell.
        """
        if outer in self.chosen and inner in self.chosen:
            return True
        o, i = self.exact.get(outer, 0), self.exact.get(inner, 0)
        return o is not None and i is not None and o == plain(i * extent)

    def renamed(self, loop: str, name: str) -> Touch:
        """The access with a loop `name` that moves as `loop` does."""
        strides = {**self.strides, name: self.strides.get(loop, 0)}
        exact = {**self.exact, name: self.exact.get(loop, 0)}
        known = loop in self.chosen
        chosen = {**self.chosen, name: self.chosen[loop]} if known else self.chosen
        return replace(self, strides=strides, exact=exact, chosen=chosen)


@record
class Reduction:
    """One update: the loops around it inside the shared ones, and what it reads.

    Its `windows` reach outside of what they are read from; of those of the bound loops `tested`,
    memory has no halo.
    """

    update: Update
    loops: tuple[Loop, ...]
    reads: tuple[Touch, ...]
    windows: tuple[Window, ...] = ()
    tested: frozenset[str] = frozenset()

    @cached_property
    def narrow(self) -> tuple[DType, DType] | None:
        """The types of the narrow factors whose products are summed; None for any other sum."""
        u = self.update
        found = narrow_factors(u)
        inside = scaled(u.reducer, u.elements) if found is None else None
        if inside is not None and inside.is_summed(self.nearest):
            # Their sums are scaled, not they (`tuner.factors`).
            found = inside.factors
        return None if found is None else (found[0].dtype, found[1].dtype)

    def together(self, machine: Machine) -> int:
        """How many of its products instructions add up at once; 1 where there are none."""
        if self.narrow is None:
            return 1
        small = any(t.small.any_two or self.nearest in t.small.pairs for t in self.reads)
        fours = any(self.nearest in t.small.fours for t in self.reads)
        return machine.products(*self.narrow, small=small, fours=fours)

    def stride(self, var: str) -> int:
        """How many elements of a value that is no constant a step of a loop moves by, at most."""
        return max((abs(t.strides.get(var) or 0) for t in self.reads if not t.packed), default=0)

    @cached_property
    def nearest(self) -> str | None:
        """The loop along which operands are nearest in memory: neighbours are taken along it."""
        names = [x.var for x in reversed(self.loops)]
        return min(names, key=self.stride, default=None)

    def adds_apart(self, machine: Machine) -> bool:
        """Whether other instructions add these sums to the states."""
        narrow = self.narrow
        return narrow is not None and self.together(machine) > 1 and machine.adds_apart(narrow[0])

    def pairs_bf16(self, machine: Machine) -> bool:
        """Whether instructions add up pairs of its products, of bf16."""
        narrow = self.narrow
        return narrow is not None and narrow[0] is DType.BF16 and self.together(machine) > 1

    @property
    def bound(self) -> tuple[Loop, ...]:
        """The loops that the states do not survive."""
        kept: list[Loop] = []
        for x in reversed(self.loops):
            if any(not isinstance(s, Loop) for s in x.body) and x is not self.loops[-1]:
                break
            kept.append(x)
        return tuple(reversed(kept))


@record
class Shape:
    """A freshly lowered kernel taken apart: shared loops, reductions, all accesses to memory.

    `sizes` are the loops' extents; of those in `symbolic`, `extents` holds what they commonly are,
    `SOME` of them at least, and `common_extents` also where they are fewer. `shared_extents` is
    what decides whether threads share the kernel: what the extents would be if nothing said what
    sizes commonly are, as many a run has more. `longest` has the most that those in `symbolic` may
    be, where that is known, and those in `single` may be a single iteration.
    """

    shared: tuple[Loop, ...]
    body: tuple[Stmt, ...]
    reductions: tuple[Reduction, ...]
    touches: tuple[Touch, ...]
    extents: Mapping[str, int]
    sizes: Mapping[str, Size]
    symbolic: frozenset[str] = frozenset()
    common_extents: Mapping[str, int] = field(default_factory=dict)
    shared_extents: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)
    single: frozenset[str] = frozenset()

    def may_exceed(self, loop: str, iterations: int) -> bool:
        """Whether a run tells how long a loop is, and that may be more than so many iterations."""
        return loop in self.symbolic and self.longest.get(loop, iterations + 1) > iterations

    def varies(self, loop: str, iterations: int) -> bool:
        """Whether a run tells how long a loop is, and that is not mostly, at most, so many.

        Tiles of so many rows are then shorter in many a run, or one of them does some rows again.
        """
        most = self.longest.get(loop)
        usual = most is not None and self.common_extents[loop] == most <= iterations
        return loop in self.symbolic and not usual

    @cached_property
    def tile_costs(self) -> dict[object, object]:
        """What tells the cycles of register tiles (`TileCosts`), where they were asked for."""
        return {}

    @cached_property
    def constants(self) -> frozenset[str]:
        """The buffers that the kernel reads whose layout is still free."""
        return frozenset(t.buffer for t in self.touches if t.packable)

    @property
    def private(self) -> list[str]:
        """Loops inside the shared ones that belong to no reduction."""
        bound = {x.var for r in self.reductions for x in r.bound}
        return [x.var for x in walk_loops(self.body) if x.var not in bound]


def analyse(kernel: Kernel, constants: frozenset[str]) -> Shape:
    """The kernel's shape. `constants` are the buffers whose layout is still free."""
    shared: list[Loop] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], Loop):
        shared.append(body[0])
        body = body[0].body
    if not body:
        shared, body = [], kernel.body
    ranges: dict[str, Range] = {}
    extents: dict[str, int] = {}
    symbols = dict(kernel.symbols)
    some = {n: with_common(r, max(common_size(r), SOME)) for n, r in symbols.items()}
    many = without_common(symbols)
    common_extents: dict[str, int] = {}
    shared_extents: dict[str, int] = {}
    symbolic: set[str] = set()
    longest: dict[str, int] = {}
    single: set[str] = set()
    sizes: dict[str, Size] = {}
    for x in walk_loops(kernel.body):
        low, high = x.lo.value, typical(x.hi, some)
        most = x.hi.bounds(symbols)
        ranges[x.var] = (low, max((most[1] if most is not None else high) - 1, low))
        extents[x.var] = high - low
        common_extents[x.var] = max(typical(x.hi, symbols) - low, 1)
        shared_extents[x.var] = typical(x.hi, many) - low
        sizes[x.var] = plain(x.hi - low)
        if not x.hi.is_const:
            symbolic.add(x.var)
            longest |= {x.var: most[1] - low} if most is not None else {}
            single |= {x.var} if most is not None and most[0] - low <= 1 else set()
            extents[x.var] = max(extents[x.var], 1)
            shared_extents[x.var] = max(shared_extents[x.var], 1)
    ranges |= symbols
    buffers = {b.name: b for b in (*kernel.args, *kernel.locals)}
    touches: list[Touch] = []
    reductions: list[Reduction] = []
    within: dict[str, frozenset[str]] = {}

    for s, loops, seen in _within_loops(kernel.body, ()):
        names = tuple(x.var for x in loops)
        found = (r for e in exprs(s) for r in reads(e))
        places = dict.fromkeys(r for r in found if buffers[r.value].space is not Space.REGISTER)
        read = {r: _touch(r, buffers, names, ranges, constants, within) for r in places}
        # What several statements read at one place is loaded once.
        touches.extend(t for r, t in read.items() if r not in seen)
        seen.update(places)
        if isinstance(s, Assign | Put) and buffers[s.target.buffer].space is not Space.REGISTER:
            target = buffers[s.target.buffer]
            place = Read(target.name, s.target.coords, target.dtype)
            store = _touch(place, buffers, names, ranges, frozenset(), within, is_store=True)
            touches.append(store)
        elif isinstance(s, Assign):
            own = within.get(s.target.buffer, frozenset())
            within[s.target.buffer] = own | _loops_of(s.value, within)
        if isinstance(s, Update):
            inner = loops[len(shared) :]
            windows = _windows(kernel, s, inner, extents, some)
            reductions.append(Reduction(s, inner, tuple(read.values()), *windows))
    return Shape(
        tuple(shared),
        body,
        tuple(reductions),
        tuple(touches),
        extents,
        sizes,
        frozenset(symbolic),
        common_extents,
        shared_extents,
        longest,
        frozenset(single),
    )


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


def moves_evenly(kernel: Kernel, buffer: str, loop: str, step: int = 1) -> bool:
    """Whether so many iterations of a loop go on as far from where the last ones read a buffer."""
    layout = kernel.buffer(buffer).layout
    steps = {loop: Index.of(loop) * step}
    for coords in (r.coords for r in reads_in(kernel.body) if r.value == buffer):
        plain = {d: c.subs(steps) for d, c in coords if isinstance(c, Index)}
        if any(loop in index_names(c) for d, c in coords if not isinstance(c, Index)):
            return False
        if len(plain) == len(coords):
            if layout.address(plain, {}).coefficient(loop) is None:
                return False
        elif any(c.coefficient(loop) is None for c in plain.values() if loop in c.names()):
            return False
    return True


def memory_order(loops: Iterable[str], shape: Shape) -> list[str]:
    """Loops in the order of the stores' memory, farthest outermost."""
    stores = [t for t in shape.touches if t.is_store]

    def distance(v: str) -> int:
        return max((abs(t.strides.get(v) or 0) for t in stores), default=0)

    return sorted(loops, key=lambda v: -distance(v))


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
    size = typical(buffer.bytes, ranges)
    gathered = not reads_plainly(r)
    each = buffer.dtype.bytes
    small = replace(
        buffer.small,
        pairs=_loops_along(buffer.small.pairs, coords),
        fours=_loops_along(buffer.small.fours, coords),
    )
    nibbles = buffer.layout.nibbles
    return Touch(
        buffer.name,
        is_store,
        strides,
        loops,
        packed,
        each,
        size,
        gathered,
        exact,
        small,
        nibbles,
        arranged,
        chosen,
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
