"""What accesses cost: the numbers that layout decisions weigh, in cycles per vector.

The model counts operations on vectors as wide as the machine's: a load of neighbours costs 1, of
one element for all lanes a fraction, of scattered elements a step per lane. Constants can be packed
as a kernel likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import ceil, gcd, inf, log2, prod

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.graph_opt.exprs import index_coords, is_gathered
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    Expr,
    IndexValue,
    Lit,
    Read,
    children,
    coord_names,
    reads,
    walk,
)
from rutc.tensor_ir.facts.products import scaled, summed_factors, terms_of
from rutc.tensor_ir.graph import Nest
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.machine import NEAR_STRIDES, Machine
from rutc.tensor_ir.running import running_nest


@record
class ReadUse:
    """One read of a nest: which loops move it, and along which dim each loop moves by one."""

    read: Read
    is_const: bool
    moves: Mapping[str, str | None]
    """Loop -> the dim that it alone moves by one, or None where it moves otherwise."""
    near: Mapping[str, tuple[str, int]]
    """Loop -> the dim that it alone moves, and by how much where that is one of NEAR_STRIDES."""
    touched: int
    """Elements read in all."""
    chosen: Mapping[str, str]
    """Loop -> the dim along which data that it moves choose, and nothing else of the read is."""

    def steps(self, loop: str, inner: Mapping[str, str | None]) -> int:
        """How far apart a loop's places are in memory, where that is near; 0 elsewhere."""
        dim, step = self.near.get(loop, (None, 0))
        return step if dim is not None and dim == inner.get(self.read.value) else 0


class NestCost:
    """The cost of one nest as a function of the innermost dims of the values that it touches."""

    def __init__(
        self,
        nest: Nest,
        extents: Mapping[str, int],
        constants: frozenset[str],
        machine: Machine,
        steps: frozenset[str] = frozenset(),
        varying: AbstractSet[str] = frozenset(),
    ) -> None:
        """Take the nest's reads apart; `steps` are sizes of 0 or 1.

        Extents of dims in `varying` are what is common. The nest touches `values`.
        """
        self.machine = machine
        self.coefficients = machine.coefficients.layouts
        self.lanes = machine.width
        self.steps = steps
        self.nest = nest
        self.running = running_nest(nest, extents.__getitem__)
        self.extents = extents if self.running is None else {**extents, self.running.bound: 1}
        self.varying = varying
        self.points = prod(self.extents[d] for d in nest.dims)
        self.stored = prod(extents[d] for d in nest.out.dims)
        found = dict.fromkeys(r for e in nest.body for r in reads(e))
        self.uses = tuple(self._use(r, r.value in constants) for r in found)
        touched = (*(r.value for r in found), *(o.name for o in nest.outs))
        self.values = tuple(dict.fromkeys(touched))
        self._best: dict[tuple[str | None, ...], tuple[float, str | None]] = {}
        """Innermost dims of `values` -> what `best` gives."""

    def _use(self, r: Read, is_const: bool) -> ReadUse:
        moves: dict[str, str | None] = {}
        near: dict[str, tuple[str, int]] = {}
        touched = 1
        own = frozenset(self.nest.dims)
        plain = {v for _, c in index_coords(r) for v in c.names()}
        data = [d for d, c in r.coords if not isinstance(c, Index)]
        chosen: dict[str, str] = {}
        for d, c in r.coords:
            names = own & coord_names(c)
            # Places that data tell may be the same ones again.
            most = 1 << 40 if isinstance(c, Index) else self.extents[d]
            touched *= min(prod([self.extents[v] for v in names]), most)
            if data == [d]:
                chosen = dict.fromkeys(names - plain, d)
            for v in names:
                near.pop(v, None)
                by_one = False
                if isinstance(c, Index) and v not in moves:
                    step = c.coefficient(v)
                    if step is not None and step in NEAR_STRIDES:
                        near[v] = d, step
                    by_one = step == 1 or (step is None and self._by_one(c, v))
                moves[v] = d if by_one else None
        return ReadUse(r, is_const, moves, near, touched, chosen)

    def _by_one(self, c: Index, v: str) -> bool:
        """Whether an index that is no multiple of a loop and what is free of it moves by one."""
        factor = c.factor(v)
        return factor is not None and factor.as_var in self.steps

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """The loops that can be vectors: neighbours along them do the same."""
        kept = {*self.arms, *([self.running.along] if self.running is not None else [])}
        return tuple(d for d in self.nest.dims if self.extents[d] > 1 and d not in kept)

    @cached_property
    def arms(self) -> frozenset[str]:
        """The loops whose index decides what is computed: all arms of a choice are, in a vector."""
        found: set[str] = set()
        for e in self.nest.body:
            for x in walk(e):
                if isinstance(x, Apply) and x.op == "eq" and isinstance(x.args[0], IndexValue):
                    found |= x.args[0].index.names()
        return frozenset(found)

    @cached_property
    def _outer(self) -> frozenset[str]:
        """The free loops that move every read of a sum, where others move some: they are outside.

        Along the others a tile's vectors and rows lie, which share what they read.
        """
        free = [d for d in self.nest.dims if d not in self.nest.bound and self.extents[d] > 1]
        moved = [d for d in free if all(d in u.moves for u in self.uses)]
        return frozenset(moved if self.nest.bound and len(moved) < len(free) else ())

    @cached_property
    def windows(self) -> frozenset[str]:
        """The values that an elementwise nest reads at several places, some of them outside.

        It reads all of them at every point: a concatenation reads one of its parts.
        """
        if self.nest.bound:
            return frozenset()
        always = _whatever_the_index(self.nest.body)
        uses = (u for u in self.uses if u.read.fill is not None and not u.is_const)
        names = [u.read.value for u in uses if u.read in always]
        return frozenset(name for name in names if names.count(name) > 1)

    @cached_property
    def _narrow(self) -> DType | None:
        """The type of the narrow factors whose products are summed, one product at a point."""
        pair = summed_factors(self.nest.reducer, self.nest.body)
        return pair[0].dtype if pair else None

    @cached_property
    def grouped(self) -> bool:
        """Whether neighbours along a bound loop are multiplied together: narrow products."""
        return self.by_columns or self._narrow not in (None, DType.BF16)

    @cached_property
    def by_columns(self) -> bool:
        """Whether a factor that is computed is copied into columns of pairs of products."""
        return self.in_matrices or self.in_pairs

    @cached_property
    def in_pairs(self) -> bool:
        """Whether pairs of products of bf16 are added to vectors."""
        able = self.machine.products(DType.BF16, DType.BF16) > 1
        return able and self._narrow is DType.BF16 and not self.in_matrices

    @cached_property
    def in_matrices(self) -> bool:
        """Whether products of bf16 are summed in registers for matrices: parts are nowhere else."""
        terms = terms_of(self.nest.reducer, self.nest.body) or ()
        able = self.machine.has_matrices(DType.BF16)
        return len(terms) > 1 or (able and any(a.dtype is DType.BF16 for a, _ in terms))

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        """The loops that registers for matrices have along a row: those of the constant, if any.

        Where only a run tells how many rows or products there are, they are those of the second
        factor, which is laid in columns.
        """
        rights = [u for u in self.uses if u.is_const]
        if not rights and not self.varying.isdisjoint(self.nest.dims):
            second = {right for _, right in terms_of(self.nest.reducer, self.nest.body) or ()}
            rights = [u for u in self.uses if u.read in second]
        others = [u for u in self.uses if rights and u not in rights]
        return tuple(
            v
            for v in self.loops
            if v not in self.nest.bound
            and all(v in u.moves for u in rights)
            and all(v not in u.moves for u in others)
        )

    @cached_property
    def _summed(self) -> tuple[str, ...]:
        """The bound loops along which products may be summed as what they are, and scaled then."""
        inside = scaled(self.nest.reducer, self.nest.body)
        return tuple(d for d in self.nest.bound if inside is None or inside.is_summed(d))

    def neighbours(self, u: ReadUse, inner: Mapping[str, str | None]) -> str | None:
        """The dim along which the longest bound loop moves a read by one.

        Of several that are as long it is the innermost one in memory, or the first.
        """
        bound = [d for d in self._summed if u.moves.get(d) is not None]
        most = max((self.extents[d] for d in bound), default=0)
        dims = [u.moves[d] for d in bound if self.extents[d] == most]
        along = inner.get(u.read.value)
        return along if along in dims else next(iter(dims), None)

    def apart(self, vector: str, inner: Mapping[str, str | None]) -> tuple[tuple[Read, str], ...]:
        """Reads of which a copy with this dim innermost costs less than putting elements together.

        They are the same for all lanes of `vector`.
        """
        vectors = self.points / self.extents[vector] * self._vectors(vector)
        copy = self.coefficients.copy
        return tuple(
            (u.read, d)
            for u in self.uses
            if not u.is_const
            and vector not in u.moves
            and (d := self.neighbours(u, inner)) is not None
            and vectors * self._away(u, inner) > u.touched * copy
        )

    def _away(self, u: ReadUse, inner: Mapping[str, str | None]) -> float:
        """What a broadcast costs more than if the longest bound loop went along memory.

        Only for narrow products is that a part of the cost by which layouts are chosen: elsewhere
        the choice may well be between this and a copy that joins the kernel before.
        """
        along, w = inner.get(u.read.value), self.coefficients
        if self.neighbours(u, inner) == along:
            return 0.0
        if self.in_matrices:
            return inf
        if self.grouped:
            return self._apart - w.broadcast
        others = [d for d in self.nest.bound if d in u.moves and u.moves[d] != along]
        held = self.machine.l1 / 2 / self.machine.line_bytes
        if prod(self.extents[d] for d in others) >= held:
            return w.other_line
        return w.other_line * max((self._crammed(u, d) for d in others), default=0.0)

    def _crammed(self, u: ReadUse, loop: str) -> float:
        """How long lines wait for each other, a loop's step each, where few sets have all of them.

        They wait at each step where one set of the first cache has twice as many as it holds;
        several sets have room beside each other. What lies outside of a value is beside it, in a
        halo, which puts steps elsewhere.
        """
        dim, machine = u.moves[loop], self.machine
        if dim is None or u.read.fill is not None:
            return 0.0
        way, line = machine.l1_way_bytes, machine.line_bytes
        inside = prod(self.extents[d] for d, _ in u.read.coords if d != dim)
        sets = way // max(gcd(inside * u.read.dtype.bytes, way), line)
        over = self.extents[loop] / (sets * machine.l1 / way) - 1
        return min(max(over, 0.0), 1.0) / sets

    def best(self, inner: Mapping[str, str | None]) -> tuple[float, str | None]:
        """(cycles, vector loop) given each value's innermost dim."""
        # Asked again and again while the dims of other nests' values are tried.
        key = tuple([inner.get(name) for name in self.values])
        known = self._best.get(key)
        if known is not None:
            return known
        best: tuple[float, str | None] = (float("inf"), None)
        for v in self.loops if not self.in_matrices else self._columns:
            cost = self._cost(v, inner)
            if cost < best[0]:
                best = (cost, v)
        found = best if best[1] is not None else (float(self.points), None)
        self._best[key] = found
        return found

    def strided(self, vector: str, inner: Mapping[str, str | None]) -> tuple[ReadUse, ...]:
        """The reads that are neither broadcast nor contiguous along `vector`."""
        return tuple(
            u
            for u in self.uses
            if not u.is_const
            and vector in u.moves
            and (u.moves[vector] is None or u.moves[vector] != inner.get(u.read.value))
        )

    def gathered(
        self, vector: str, inner: Mapping[str, str | None]
    ) -> tuple[tuple[Read, str], ...]:
        """Reads at places that data tell of which a copy with a dim innermost costs less.

        The vector's elements then lie side by side wherever they are, and not each on a line that
        nothing foresees.
        """
        vectors = self.points / self.extents[vector] * self._vectors(vector)
        w = self.coefficients
        apart = vectors * (self._gather - 1)
        return tuple(
            (u.read, d)
            for u in self.strided(vector, inner)
            if (d := u.moves[vector]) is not None
            and is_gathered(u.read)
            and u.touched * w.copy < apart
        )

    def _picks(self, u: ReadUse, v: str, inner: Mapping[str, str | None]) -> int:
        """The operations by which lanes along a loop take what data choose from a short row."""
        d = u.chosen.get(v)
        if d is None or u.is_const or d in self.varying or inner.get(u.read.value) != d:
            return 0
        lanes = min(self.extents[v], self.machine.width)
        return self.machine.picks(u.read.dtype.bytes, self.extents[d], lanes)

    @property
    def _gather(self) -> float:
        """What a vector costs of elements at places that data tell."""
        return self.machine.coefficients.sharing.gather * self.lanes

    @property
    def _apart(self) -> float:
        """What a vector costs of elements that lie near, but apart: a load and a permutation."""
        return 2.0

    @property
    def _store_apart(self) -> float:
        """What a vector costs whose lanes do not lie side by side in memory."""
        w = self.coefficients
        return (w.store_scattered if self.nest.bound else w.store_crossed) * self.lanes

    def _lines_again(self, loop: str | None, v: str, touched: int, vectors: float) -> float:
        """What lines cost that come again in every iteration of a loop along the innermost dim.

        The loop is an outer one: in each of its iterations every element is on another line, of
        which there are more than the first cache holds. Or rows of a tile are along it, which share
        nothing: for each of the nest's `vectors` all that it reads is loaded.
        """
        machine = self.machine
        if loop is None or loop == v or loop not in self._outer:
            return 0.0
        beside = touched / self.extents[loop] * machine.line_bytes
        if beside <= machine.l1:
            return 0.0
        near = beside <= machine.l2
        rate = machine.l2_bytes_per_cycle if near else machine.l3_bytes_per_cycle
        return min(touched * machine.line_bytes / rate, vectors * len(self.uses))

    def _vectors(self, v: str) -> int:
        """Vectors along a loop; one that varies ends in one that is mostly idle."""
        return ceil(self.extents[v] / self.lanes) + (v in self.varying)

    def _cost(self, v: str, inner: Mapping[str, str | None]) -> float:
        extent, w = self.extents[v], self.coefficients
        each = self._vectors(v)
        vectors = self.points / extent * each
        total = 0.0
        copied: set[str] = set()
        beside = any(v not in u.moves for u in self.uses if u.is_const)
        for u in self.uses:
            if v not in u.moves:
                near = not self.grouped or inner.get(u.read.value) == self.neighbours(u, inner)
                shared = vectors * w.broadcast
                if not near and not u.is_const:
                    apart = inf if self.in_matrices else vectors * self._apart
                    shared = min(apart, shared + u.touched * w.copy)
                if not u.is_const:
                    along = inner.get(u.read.value)
                    loop = next((d for d, x in u.moves.items() if x == along), None)
                    shared += self._lines_again(loop, v, u.touched, vectors)
                total += shared
            elif picks := self._picks(u, v, inner):
                total += vectors * picks
            elif u.is_const:
                total += vectors * w.packed
            elif u.moves[v] is not None and u.moves[v] == inner.get(u.read.value):
                total += vectors
                if self.grouped and beside and self.neighbours(u, inner) != u.moves[v]:
                    # Every lane's neighbours are put together from as many vectors, where lanes
                    # along a constant would have theirs side by side.
                    total += vectors * self._apart
            else:
                steps = u.steps(v, inner) if self.nest.bound and not self.grouped else 0
                scattered = vectors * (steps * self._apart or w.scattered * self.lanes)
                packed = vectors
                gathered = is_gathered(u.read)
                if gathered and self.nest.bound:
                    scattered = vectors * self._gather
                if gathered and u.moves[v] is None:
                    packed = scattered
                elif u.read.value not in copied:
                    packed += u.touched * w.copy
                window = u.read.value in self.windows and u.moves[v] is not None
                if window and packed < scattered:
                    copied.add(u.read.value)
                total += min(scattered, packed) if self.nest.bound or window else scattered
        if v in self.nest.bound:
            total += self.points / extent * w.merge * log2(self.lanes) + self.stored * 0.5
        else:
            stores = self.stored / extent * each
            same = all(inner.get(o.name) in (v, None) for o in self.nest.outs)
            total += stores * (1.0 if same else self._store_apart)
            for o in self.nest.outs:
                total += self._lines_again(inner.get(o.name), v, self.stored, vectors)
        return total


def _whatever_the_index(body: Iterable[Expr]) -> set[Read]:
    """The reads that are done whatever range an index is in: not in arms that a range chooses.

    Arms that single indices choose are computed beside each other.
    """
    found: set[Read] = set()
    seen: set[int] = set()
    left = [*body]
    while left:
        e = left.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        if isinstance(e, Read):
            found.add(e)
        if not (isinstance(e, Apply) and e.op == "select" and _is_range(e.args[0])):
            left += children(e)
    return found


def _is_range(condition: Expr) -> bool:
    """Whether a condition holds for an index up to a place, or from one on."""
    match condition:
        case Apply(op="lt" | "le" | "gt" | "ge", args=(IndexValue(), Lit())):
            return True
        case _:
            return False
