"""Lowering: a fusion group and its layouts become a kernel of plain scalar loops.

    shared loops {                       one iteration: everything the group does at one point
      stage 1: private loops { init; bound loops { update }; value = finish }
      stage 2: ...
    }

A value that only the group itself reads lives in a register, or on the stack when a stage loops
over dims of its own; a stored value goes to memory (and is kept in its register for later stages).
The loops are in the given order and do what the nests say; steps (see `steps`) make them fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.tensor_ir.expr import (
    Expr,
    IndexValue,
    Read,
    bind,
    index_names,
    map_reads,
    reads,
    reads_plainly,
    substitute,
    transform,
    walk,
)
from rutc.tensor_ir.graph import Nest, Scatter, Value, used
from rutc.tensor_ir.indices.affine import ZERO, Index, Range, Size, plain
from rutc.tensor_ir.indices.division import close_bounds
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Buffer,
    Init,
    Kernel,
    Kind,
    Loop,
    Put,
    Small,
    Space,
    Stmt,
    Update,
)
from rutc.tensor_ir.layout import Layout, dense
from rutc.tensor_ir.reducer import as_locals
from rutc.tensor_ir.slice_rooms import early_start, within_slices
from rutc.tensor_ir.statements import with_symbols


@record
class Slice:
    """A part of a shared loop: `size` indices of `dim`, from first + symbol * size on.

    With an `end`, the last slice begins so much earlier that none goes beyond it. Without a `loop`
    it is one index, over which nothing need go.
    """

    dim: str
    symbol: str
    size: Size
    first: int = 0
    end: Size | None = None
    loop: bool = True

    @property
    def start(self) -> Index:
        """The first index."""
        if self.end is not None:
            return early_start(self.symbol, self.size, self.end)
        return Index.of(self.symbol) * self.size + self.first


@record
class Group:
    """Nests that become one kernel.

    `stages` in definition order; each reads values from outside, or of earlier stages with the
    shared dims at identity. `shared` is the order of the common loops, outermost first. `stored`
    names the values of the group that go to memory. One run computes the `slices`, or all.
    """

    name: str
    stages: tuple[Nest, ...]
    shared: tuple[str, ...]
    stored: tuple[str, ...]
    slices: tuple[Slice, ...] = ()

    @cached_property
    def operations(self) -> int:
        """The operations of all bodies."""
        return sum(s.operations for s in self.stages)

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """All reads of the stages, in order."""
        return tuple(r for s in self.stages for e in s.body for r in reads(e))

    def external_reads(self) -> tuple[str, ...]:
        """The values read from outside, in order of first use."""
        return self._external

    @cached_property
    def read_values(self) -> frozenset[str]:
        """The values that the stages read."""
        return frozenset(r.value for r in self.reads)

    @cached_property
    def computed(self) -> frozenset[str]:
        """The values that the stages compute."""
        return frozenset(v.name for s in self.stages for v in s.outs)

    @cached_property
    def reads_outside(self) -> tuple[Read, ...]:
        """All different reads of values that other groups compute, in order."""
        return tuple(dict.fromkeys(r for r in self.reads if r.value not in self.computed))

    @cached_property
    def along(self) -> frozenset[tuple[str, str]]:
        """(dim, loop) of the coordinates of reads that are just a loop's index."""
        coords = {(d, c) for r in self.reads for d, c in r.coords if isinstance(c, Index)}
        return frozenset((d, loop) for d, c in coords if (loop := c.as_var) is not None)

    @cached_property
    def moved(self) -> Mapping[str, frozenset[str] | None]:
        """Of each value that is read, the loops that tell the place; None where data do, too."""
        found: dict[str, frozenset[str] | None] = {}
        for r in self.reads:
            before = found.get(r.value, frozenset())
            plain = reads_plainly(r)
            found[r.value] = before | index_names(r) if plain and before is not None else None
        return found

    @cached_property
    def rows(self) -> Mapping[str, frozenset[str]]:
        """Of each value that sums read, the free dims that what is read of it does not depend on.

        They are the rows of a product, of which register tiles use all that they load.
        """
        found: dict[str, frozenset[str]] = {}
        for s in (s for s in self.stages if s.bound):
            for r in (r for e in s.body for r in reads(e)):
                rows = frozenset(s.out.dims) - index_names(r) if reads_plainly(r) else frozenset()
                found[r.value] = found.get(r.value, rows) & rows
        return found

    @cached_property
    def indices(self) -> tuple[Index, ...]:
        """The index expressions whose values the stages use as numbers."""
        found = (x for s in self.stages for e in s.body for x in walk(e))
        return tuple(x.index for x in found if isinstance(x, IndexValue))

    @cached_property
    def _external(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.value for r in self.reads_outside))


def lower(
    group: Group,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    extents: Mapping[str, Size],
    symbols: Mapping[str, Range] | None = None,
    finite: AbstractSet[str] = frozenset(),
    small: Mapping[str, Small] | None = None,
    gradual: Mapping[str, tuple[str, ...]] | None = None,
) -> Kernel:
    """The kernel of a fusion group: plain loops that do what its nests say.

    Args:
        group: The nests, and the loops that they share.
        values: All values that the group reads or gives, by name.
        layouts: Those of the values that are in memory.
        extents: Those of all dims.
        symbols: The ranges of symbolic sizes.
        finite: Values all of whose elements are known to be finite numbers.
        small: Which factors that a constant holds are small.
        gradual: Along which dims the numbers of a value grow by steps of 0 or 1.
    """
    symbols, small, gradual = symbols or {}, small or {}, gradual or {}
    args = [
        Buffer(
            v,
            values[v].dtype,
            layouts[v],
            finite=v in finite,
            small=small.get(v, Small()),
            gradual=gradual.get(v, ()),
        )
        for v in (*group.external_reads(), *group.stored)
    ]
    lowering = _Lowering(group, layouts, extents, symbols)
    stages = [lowering.stage(number, s) for number, s in enumerate(group.stages)]
    body = lowering.shared([stmt for stmts in stages for stmt in stmts])
    if group.slices:
        early = next((s.symbol for s in group.slices if s.end is not None), None)
        args, body = within_slices(args, body, early, symbols)
    origin = tuple(dict.fromkeys(o for s in group.stages for o in s.origin))
    kernel = Kernel(group.name, tuple(args), tuple(lowering.locals), tuple(body), origin)
    return with_symbols(kernel, symbols)


class _Lowering:
    """Makes the statements of a group, stage by stage, and the `locals` that these need."""

    def __init__(
        self,
        group: Group,
        layouts: Mapping[str, Layout],
        extents: Mapping[str, Size],
        symbols: Mapping[str, Range],
    ) -> None:
        self.group, self.layouts, self.extents = group, layouts, extents
        self.locals: list[Buffer] = []
        self.parts = {s.dim: s.start + (Index.of(s.dim) if s.loop else 0) for s in group.slices}
        """Where an index of a sliced dim is in the whole."""
        self._reach = cache(lambda c, extent: beyond(c, extent, extents, symbols))
        self._names = {*group.shared, *symbols}
        self._places: dict[str, Buffer] = {}

    def stage(self, number: int, stage: Nest) -> list[Stmt]:
        """The statements of a stage, inside of the shared loops.

        for private dims { init; for bound dims { update }; value = finish }
        """
        # A dim of extent 1 needs no loop.
        single = {d for d in stage.out.dims if self.extents[d] == 1 and d not in self.parts}
        # Loops go along the memory that they write.
        stored = stage.out.name in self.group.stored
        axes = self.layouts[stage.out.name].axes if stored else ()
        order = dict.fromkeys((*(a.dim for a in axes), *stage.out.dims))
        private = tuple(d for d in order if d not in self.group.shared and d not in single)
        loops = {d: self._fresh(d) for d in (*private, *stage.bound)}
        renames = {d: Index.of(name) for d, name in loops.items()} | self.parts
        renames |= dict.fromkeys(single, ZERO)
        covered = (_within_halo(e, self.layouts, self._reach) for e in stage.body)
        elements = tuple(_local_reads(substitute(e, renames), self._places) for e in covered)
        results, inner = _point(stage, elements, number, self.locals)
        updates = inner.updates
        for d in reversed(stage.bound):
            updates = (_loop(loops[d], self.extents[d], updates),)
        stmts: list[Stmt] = [*inner.before, *updates]
        for v, result in zip(stage.outs, results, strict=True):
            stmts += self._store(v, result, private, renames)
        for d in reversed(private):
            stmts = [_loop(loops[d], self.extents[d], tuple(stmts))]
        return stmts

    def shared(self, body: list[Stmt]) -> list[Stmt]:
        """The shared loops around all stages."""
        looped = {s.dim for s in self.group.slices if s.loop}
        trips: dict[str, Size] = {**self.extents, **{s.dim: s.size for s in self.group.slices}}
        for d in reversed(self.group.shared):
            if d in looped if d in self.parts else self.extents[d] != 1:
                body = [_loop(d, trips[d], tuple(body))]
        return body

    def _fresh(self, dim: str) -> str:
        """A name for a loop over a dim that no other loop has."""
        name, suffix = dim, 1
        while name in self._names:
            name, suffix = f"{dim}.{suffix}", suffix + 1
        self._names.add(name)
        return name

    def _store(
        self, v: Value, result: Expr, private: tuple[str, ...], renames: Mapping[str, Index]
    ) -> list[Stmt]:
        """Keeps a result for later stages, in a register or on the stack, and stores it."""
        stmts: list[Stmt] = []
        stored = v.name in self.group.stored
        if v.name in self.group.read_values and (not private or not stored):
            layout = dense(private, self.extents)
            space = Space.STACK if private else Space.REGISTER
            place = Buffer(f"{v.name}.local", v.dtype, layout, space)
            self.locals.append(place)
            self._places[v.name] = place
            coords = tuple((d, renames[d]) for d in private)
            stmts.append(Assign(Access(place.name, coords), result))
            result = Read(place.name, coords, v.dtype)
        if stored:
            coords = tuple((d, renames.get(d, Index.of(d))) for d in v.dims)
            stmts.append(Assign(Access(v.name, coords), result))
        return stmts


@record
class _Point:
    before: tuple[Stmt, ...]
    updates: tuple[Stmt, ...]


def _point(
    stage: Nest, elements: tuple[Expr, ...], number: int, locals_: list[Buffer]
) -> tuple[tuple[Expr, ...], _Point]:
    """(results, statements) of one point of a stage's free dims."""
    if stage.reducer is None:
        return elements, _Point((), ())
    own = {f"acc{number}.{i}": t for i, t in enumerate(stage.reducer.state)}
    locals_ += [Buffer(name, t, Layout(()), Space.REGISTER) for name, t in own.items()]
    states = tuple(map(Access, own))
    init = Init(states, stage.reducer)
    update = Update(states, stage.reducer, elements)
    env: dict[str, Expr] = as_locals(s=[Read(name, (), t) for name, t in own.items()])
    results = tuple(bind(f, env) for f in stage.reducer.finish)
    return results, _Point((init,), (update,))


def _local_reads(e: Expr, places: Mapping[str, Buffer]) -> Expr:
    """`e` with reads of values kept by the group directed to their registers or stack."""
    if not places:
        return e

    def visit(x: Expr) -> Expr:
        if isinstance(x, Read) and x.value in places:
            place = places[x.value]
            kept = {a.dim for a in place.layout.axes}
            coords = tuple((d, c) for d, c in x.coords if d in kept)
            return Read(place.name, coords, x.dtype, x.fill if kept else None)
        return x

    return transform(e, visit)


def _within_halo(
    e: Expr,
    layouts: Mapping[str, Layout],
    reach: Callable[[Index, Size], tuple[int, int] | None],
) -> Expr:
    """`e` without the fills of reads that stay within their value's halo of that fill.

    Only where extents are symbolic: of constant ones, every range tells it by itself. `reach`
    tells how far a coordinate goes beyond an extent, as `beyond` does.
    """

    def without(x: Read) -> Read:
        if x.fill is None or x.value not in layouts:
            return x
        layout = layouts[x.value]
        sizes = dict(layout.extents)
        if all(isinstance(sizes[d], int) for d, _ in x.coords):
            return x
        for d, c in x.coords:
            before, after = layout.room(d, x.fill)
            if not isinstance(c, Index):
                return x
            far = reach(c, sizes[d])
            if far is None or far[0] > before or far[1] > after:
                return x
        return Read(x.value, x.coords, x.dtype)

    if all(without(r) is r for r in reads(e)):
        return e
    return map_reads(e, lambda i: i, without)


def beyond(
    c: Index, extent: Size, extents: Mapping[str, Size], symbols: Mapping[str, Range]
) -> tuple[int, int] | None:
    """How far a coordinate goes below 0, and beyond the last index; None where it is not known.

    `extents` are those of the loops that occur in it. Loops without iterations count as if they
    had one.
    """
    highest = lowest = c
    for v in sorted(c.names() - symbols.keys()):
        factor = c.factor(v)
        bounds = factor.bounds(symbols) if factor is not None else None
        if factor is None or bounds is None or not (bounds[0] >= 0 or bounds[1] <= 0):
            return None
        last = factor * (Index.of(extents[v]) - 1)
        rest = factor * Index.of(v)
        highest = highest - rest + (last if bounds[0] >= 0 else ZERO)
        lowest = lowest - rest + (ZERO if bounds[0] >= 0 else last)
    below = close_bounds(lowest, symbols)
    above = close_bounds(highest - extent + 1, symbols)
    if below is None or above is None:
        return None
    return max(0, -below[0]), max(0, above[1])


def _loop(var: str, extent: Size, body: tuple[Stmt, ...]) -> Loop:
    return Loop(var, ZERO, Index.of(extent), Kind.SERIAL, body)


def lower_scatter(
    node: Scatter,
    values: Mapping[str, Value],
    layouts: Mapping[str, Layout],
    extents: Mapping[str, Size],
    symbols: Mapping[str, Range] | None = None,
) -> Kernel:
    """The kernel of a scatter whose output lies where its base does: one put for every point.

    for dims in the order of their names { put out[coords] reducer= body }
    """
    names = [*dict.fromkeys(v for v in used(node) if v != node.base), node.out.name]
    args = tuple(Buffer(v, values[v].dtype, layouts[v]) for v in names)
    body: tuple[Stmt, ...] = (Put(Access(node.out.name, node.coords), node.reducer, node.body),)
    for d in sorted(node.dims, reverse=True):
        body = (_loop(d, extents[d], body),)
    kernel = Kernel(f"{node.out.name}.scatter", args, (), body, node.origin)
    return with_symbols(kernel, symbols or {})


def halo_kernel(
    value: Value,
    layout: Layout,
    extents: Mapping[str, Size],
    symbols: Mapping[str, Range] | None = None,
    turn: tuple[str, str] | None = None,
) -> Kernel | None:
    """The kernel that fills a stored value's halo; None when it has none.

    With a `turn` (dim, symbol) only around one index of that dim, which has none of its own.
    """
    if not layout.halo or layout.fill is None:
        return None
    order = list(dict.fromkeys(a.dim for a in layout.axes))
    body: list[Stmt] = []
    done: set[str] = set()
    slab = 0
    for d, lo, hi in layout.halo:
        slabs: tuple[tuple[Size, Size, int], ...] = (
            (-lo, 0, lo),
            (extents[d], extents[d] + hi, hi),
        )
        for first, last, width in slabs:
            if not width:
                continue
            names = {x: f"{x}.{slab}" for x in order}
            slab += 1
            # A loop starts at a constant.
            start = ZERO if isinstance(first, int) else first
            if turn is not None:
                names[turn[0]] = turn[1]
            coords = tuple((x, Index.of(names[x]) + (start if x == d else 0)) for x in value.dims)
            inner: tuple[Stmt, ...] = (Assign(Access(value.name, coords), layout.fill),)
            for x in reversed(order):
                if turn is not None and x == turn[0]:
                    continue
                low: Size = 0
                high: Size = extents[x]
                if x == d:
                    low, high = plain(first - start), plain(last - start)
                elif x not in done:
                    low -= layout.before.get(x, 0)
                    high += layout.after.get(x, 0)
                inner = (Loop(names[x], Index.of(low), Index.of(high), Kind.SERIAL, inner),)
            body += inner
        done.add(d)
    buffer = Buffer(value.name, value.dtype, layout)
    return with_symbols(Kernel(f"{value.name}.halo", (buffer,), (), tuple(body)), symbols or {})
