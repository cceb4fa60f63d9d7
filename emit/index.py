"""Index expressions as LLVM values: scalars outside of vector loops, lanes inside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import assert_never

from rutc.base.cached import cached_property
from rutc.base.record import record
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, I64, counting, i64, is_vector, splat
from rutc.emit.llvm.opaque import opaque
from rutc.tensor_ir.indices.affine import (
    ZERO,
    Atom,
    Compound,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Monomial,
    Range,
    Size,
    Var,
    plain,
)

LaneKey = tuple[str, int, int, Size]
"""What tells vectors of a loop's iterations apart."""
At = tuple[tuple[int] | Range | None, ...]
"""What is known of variables: a value, a range, or nothing."""
NO_LANES: Mapping[str, Range] = {}
"""The ranges of vector loops outside of any."""
FARTHEST = sys.maxsize
"""The depth of what must stay where it is needed."""


@record
class Lane:
    """The vector loop being emitted: lane l of this chunk is iteration `base + l` of `var`."""

    var: str
    base: int
    lanes: int
    mask: ir.Value | None
    """Which lanes are iterations at all; None for all of them."""
    end: Index
    """The end of the loop, which tells equal masks; `CHOSEN` where data tell the lanes."""

    @cached_property
    def key(self) -> LaneKey:
        """Equal for vectors of the same iterations."""
        return self.var, self.base, self.lanes, plain(self.end)

    @cached_property
    def ranges(self) -> Mapping[str, Range]:
        """The range of the loop's variable; lanes behind its end compute nothing that counts."""
        last = self.base + self.lanes - 1
        last = min(last, self.end.value - 1) if self.end.is_const else last
        return {self.var: (self.base, max(last, self.base))}


CHOSEN = Index.of("$put")
"""The end of lanes of which others than a loop's are left out."""


@lru_cache(maxsize=1 << 12)
def chunk(var: str, base: int, lanes: int, end: Index) -> Lane:
    """The lanes from iteration `base` on of a vector loop whose end is constant."""
    active = [base + i < end.const for i in range(lanes)]
    mask = None if all(active) else ir.Constant(ir.VectorType(ir.IntType(1), lanes), active)
    return Lane(var, base, lanes, mask, end)


@record
class Unrolled:
    """An unrolled loop over [lo, hi) that is being emitted, and the block in which it began."""

    lo: int
    hi: int
    block: ir.Block


@record
class Scope:
    """A part of the code, and the keys of what has been computed where it dominates all of it."""

    block: ir.Block
    """The first of the part: all that is computed at its end dominates the part."""
    keys: list[object]


class IndexEmitter:
    """Computes index expressions; partial results are shared within the scopes they dominate.

    What depends on loops' counters and symbols alone is computed once, in the innermost of their
    loops, wherever it is needed first: LLVM, which would move it there out of every loop inside,
    takes longer by far.

    With `hide_divisions`, LLVM does not see through divisions by symbols. It has loops compute all
    anew in which such a quotient has a part, where others step from one address to the next; but
    products and remainders that cancel, it then leaves as they are.
    """

    def __init__(self, builder: ir.IRBuilder, *, hide_divisions: bool) -> None:
        """Start with no variables."""
        self.builder = builder
        self.hide_divisions = hide_divisions
        self.values: dict[str, ir.Value] = {}
        self.vectors: set[str] = set()
        """The variables whose values have lanes."""
        self.constants: dict[str, Index] = {}
        self._numbers: dict[str, tuple[int]] = {}
        """The same as what is hashed and compared at once."""
        self.ranges: dict[str, Range] = {}
        self.ends: dict[str, Index] = {}
        """Below which sizes loop variables stay that have no constant end."""
        self.unrolled: dict[str, Unrolled] = {}
        """Unrolled loops around, outermost first; `constants` has the iteration."""
        self.lane: Lane | None = None
        self._scopes = [Scope(builder.block, [])]
        self._values: dict[object, ir.Value] = {}
        """What has been computed in the scopes around: each key is that of one of them."""
        self._counters: dict[str, tuple[int, Range | None]] = {}
        """Counters and symbols: how many scopes are around, and the range there."""
        self._homes: dict[str, int] = {}
        """By their names, how many scopes are around values that are shared in a loop outside."""
        self._resolved: dict[tuple[Index, At], Index] = {}
        self._simplified: dict[tuple[Index, At], Index] = {}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values computed inside are forgotten at the end (they may not dominate what follows)."""
        self._scopes.append(Scope(self.builder.block, []))
        yield
        for key in self._scopes.pop().keys:
            del self._values[key]

    @contextmanager
    def variable(
        self, name: str, value: ir.Value | None, bound: Range | None, end: Index | None = None
    ) -> Iterator[None]:
        """Bind a variable to a value, or (value None) forget its range."""
        old_value, old_range = self.values.get(name), self.ranges.get(name)
        old_end = self.ends.get(name)
        if end is not None and not end.is_const:
            self.ends[name] = end
        if value is not None:
            self.values[name] = value
        if bound is not None:
            self.ranges[name] = bound
        yield
        _restore(self.values, name, old_value)
        _restore(self.ranges, name, old_range)
        _restore(self.ends, name, old_end)

    @contextmanager
    def counter(
        self, name: str, value: ir.Value, bound: Range | None, end: Index | None = None
    ) -> Iterator[None]:
        """Bind a variable to a value that the first block of this scope, or one before, gives."""
        old = self._counters.get(name)
        with self.variable(name, value, bound, end):
            self._counters[name] = len(self._scopes), self.ranges.get(name)
            yield
        _restore(self._counters, name, old)

    @contextmanager
    def narrowed(self, name: str, bound: Range) -> Iterator[None]:
        """Know more of a variable's range in this scope: what depends on it stays inside."""
        old = self._counters.get(name)
        with self.variable(name, None, bound):
            if old is not None:
                self._counters[name] = len(self._scopes), bound
            yield
        _restore(self._counters, name, old)

    @contextmanager
    def constant(self, name: str, value: int) -> Iterator[None]:
        """Bind a variable to a constant."""
        old, before = self.constants.get(name), self._numbers.get(name)
        self.constants[name], self._numbers[name] = Index.of(value), (value,)
        yield
        _restore(self.constants, name, old)
        _restore(self._numbers, name, before)

    @contextmanager
    def symbolic(self, name: str, bound: Range) -> Iterator[None]:
        """Treat a constant as the variable that it is a value of, with inclusive bounds."""
        old, before = self.constants.pop(name), self._numbers.pop(name)
        with self.variable(name, None, bound):
            yield
        self.constants[name], self._numbers[name] = old, before

    def resolve(self, index: Index) -> Index:
        """The index with constant variables put in, simplified for the lanes that are emitted."""
        polynomial, names = index.is_polynomial, index.ordered_names()
        # Without divisions nothing depends on ranges.
        at = tuple([self._numbers.get(n) for n in names]) if polynomial else self.at(names)
        known = self._resolved.get((index, at))
        if known is None:
            known = self._resolved[index, at] = self.simplified(index.subs(self.constants))
        return known

    def simplified(self, index: Index) -> Index:
        """The index, simplified for the lanes at hand; what places of a tile share, only once."""
        if index.is_polynomial:
            return index
        beside, common = index.apart()
        at = self.at(common.ordered_names())
        known = self._simplified.get((common, at))
        if known is None:
            ranges = {**self.ranges, **self._of_lanes()}
            known = self._simplified[common, at] = common.simplify(ranges)
        return known + beside

    def at(self, names: tuple[str, ...]) -> At:
        """What is known of variables: equal wherever indices over them resolve to equal ones."""
        numbers, ranges, lanes = self._numbers, self.ranges, self._of_lanes()
        return tuple([numbers.get(n) or lanes.get(n) or ranges.get(n) for n in names])

    def _of_lanes(self) -> Mapping[str, Range]:
        """The range of a vector loop's variable in the lanes that are emitted."""
        return NO_LANES if self.lane is None else self.lane.ranges

    def bounds(self, index: Index) -> Range | None:
        """The least and the largest value of a resolved index in the lanes that are emitted."""
        return index.bounds({**self.ranges, **self._of_lanes()})

    def varies(self, index: Index) -> bool:
        """Whether a resolved index differs between the lanes."""
        if self.lane is not None and self.lane.var in index.names():
            return True
        return self.holds_vectors(index)

    def holds_vectors(self, index: Index) -> bool:
        """Whether a variable of an index has a value with lanes."""
        return not self.vectors.isdisjoint(index.names())

    def define(self, name: str, value: ir.Value) -> None:
        """Gives a new variable a value for all that follows."""
        self.values[name] = value
        if is_vector(value):
            self.vectors.add(name)

    def emit(self, index: Index) -> ir.Value:
        """The value of a resolved index: i64, or a vector of i64 where it varies by lane."""
        if not index.terms:
            return i64(index.const)
        return self.shared((index, self.window(index)), lambda: self._sum(index), index)

    def shared(
        self, key: object, build: Callable[[], ir.Value], *needs: Index | ir.Value
    ) -> ir.Value:
        """What `build` emits, or what it has emitted for the same key where that dominates.

        It is emitted as far outside as what it `needs` allows, if that is told.
        """
        found = self._values.get(key)
        if found is not None:
            return found
        depth = max(map(self.depth, needs), default=FARTHEST)
        if depth == FARTHEST:
            value = self._values[key] = build()
            self._scopes[-1].keys.append(key)
            return value
        scope, here = self._scopes[depth - 1], self.builder.block
        self.builder.position_at_end(scope.block)
        value = self._values[key] = build()
        scope.keys.append(key)
        self.builder.position_at_end(here)
        self._homes[value.ref] = depth
        return value

    def depth(self, need: Index | ir.Value) -> int:
        """How many scopes are around the innermost counter in an index, or around a value."""
        if isinstance(need, ir.Value):
            return self._homes.get(need.ref, FARTHEST)
        return self._depth_of(need)

    def _depth_of(self, index: Index) -> int:
        """How many scopes are around the innermost counter in an index; FARTHEST: it must stay."""
        if len(index.terms) == 1:
            return self._depth_of_term(index.terms[0])
        return max([1, *[self._depth_of_term(term) for term in index.terms]])

    def _depth_of_term(self, term: tuple[Monomial, int]) -> int:
        """The same of a term."""
        depth = 1
        for a in term[0]:
            for name in a.names:
                known = self._counters.get(name)
                # Within a branch more may be known of a counter than where it begins.
                if known is None or known[1] != self.ranges.get(name):
                    return FARTHEST
                if known[0] > depth:
                    depth = known[0]
            if not isinstance(a, Var) and not self._is_total(Index((term,))):
                return FARTHEST
        return depth

    def apart(self, index: Index) -> tuple[Index, Index]:
        """(outside, inside): the terms that scopes farther outside tell, and the others."""
        if len(index.terms) <= 1:
            return ZERO, index
        depths = [self._depth_of_term(term) for term in index.terms]
        last = max(depths)
        outside = [t for t, depth in zip(index.terms, depths, strict=True) if depth < last]
        if not outside:
            return ZERO, index
        inside = [t for t, depth in zip(index.terms, depths, strict=True) if depth == last]
        return Index(tuple(outside)), Index(tuple(inside), index.const)

    def _is_total(self, index: Index) -> bool:
        """Whether all divisors are known to be positive, even in loops without iterations."""
        known = [divisor.bounds(self.ranges) for divisor in _divisors(index)]
        return all(bounds is not None and bounds[0] > 0 for bounds in known)

    def window(self, index: Index) -> LaneKey | None:
        """What tells values of a resolved index apart in different vectors; None if nothing."""
        lane = self.lane
        return lane.key if lane is not None and lane.var in index.names() else None

    def narrow(self, index: Index) -> ir.Value | None:
        """A resolved index that grows evenly along the lanes as a vector of i32.

        None where it does not, or where numbers of 32 bits are not known to hold it, in lanes that
        are no iterations either.
        """
        lane, bounds = self.lane, index.bounds(self.ranges)
        step = index.coefficient(lane.var) if lane is not None else None
        if lane is None or not step or bounds is None:
            return None
        rest = index - Index.of(lane.var) * step
        most = max(map(abs, bounds)) + abs(step) * lane.lanes
        if lane.var in rest.names() or most >= 1 << (I32.width - 1):
            return None
        first = self.builder.trunc(self.emit(rest + lane.base * step), I32)
        steps = [step * i for i in range(lane.lanes)]
        along = ir.Constant(ir.VectorType(I32, lane.lanes), steps)
        return self.builder.add(splat(self.builder, first, lane.lanes), along)

    # -- internals ------------------------------------------------------------------------------
    def _sum(self, index: Index) -> ir.Value:
        if index.const:
            return self._add(self.emit(Index(index.terms)), i64(index.const))
        outside, inside = self.apart(index)
        if outside.terms:
            return self._add(self.emit(outside), self.emit(inside))
        if len(index.terms) > 1:
            first, *rest = (self.emit(Index((term,))) for term in index.terms)
            return reduce(self._add, rest, first)
        ((mono, c),) = index.terms
        value = self._monomial(mono)
        return value if c == 1 else self._mul(value, i64(c))

    def _monomial(self, mono: tuple[Atom, ...]) -> ir.Value:
        value = self._atom(mono[0])
        for a in mono[1:]:
            value = self._mul(value, self._atom(a))
        return value

    def _atom(self, a: Atom) -> ir.Value:
        if isinstance(a, Var):
            if self.lane is not None and a.name == self.lane.var:
                return self._iota()
            return self.values[a.name]
        index = Index((((a,), 1),))
        return self.shared((a, self.window(index)), lambda: self._compute(a), index)

    def _iota(self) -> ir.Value:
        assert self.lane is not None
        return counting(self.lane.base, self.lane.lanes)

    def _compute(self, a: Compound) -> ir.Value:
        b = self.builder
        match a:
            case FloorDiv(x, y) | Mod(x, y):
                bounds = self.bounds(x)
                seam = self._with_seam(a, bounds)
                if seam is not None:
                    return seam
                num, den = self._matched(self.emit(x), self.emit(y))
                if bounds is not None and bounds[0] >= 0:
                    divide = self.quotient if isinstance(a, FloorDiv) else self.rest
                    if not is_vector(num) or not y.is_const or not _is_short(bounds[1], y.const):
                        return divide(num, den)
                    # Lanes are divided by way of the upper halves of products, and there is no
                    # instruction for those of 64 bits.
                    narrow = ir.VectorType(I32, num.lanes)
                    quotient = divide(b.trunc(num, narrow), b.trunc(den, narrow))
                    return b.zext(quotient, num.type)
                quotient, rest = b.sdiv(num, den), b.srem(num, den)
                zero = ir.Constant(num.type, None)
                negative = b.icmp_signed("<", rest, zero)
                if isinstance(a, Mod):
                    return b.add(rest, b.select(negative, den, zero))
                return b.add(quotient, b.sext(negative, num.type))
            case Min(x, y) | Max(x, y):
                p, q = self._matched(self.emit(x), self.emit(y))
                less = b.icmp_signed("<" if isinstance(a, Min) else ">", p, q)
                return b.select(less, p, q)
            case _:
                assert_never(a)

    def _with_seam(self, a: FloorDiv[Index] | Mod[Index], bounds: Range | None) -> ir.Value | None:
        """A quotient or remainder of each lane by those of the first; None where others are better.

            (3 + v) % n, v = base + lane  ->  r = (3 + base) % n + lane; r < n ? r : r - n

        So it is where the lanes come to one seam at most, whatever the divisor.
        """
        (num, den), lane, b = a.operands, self.lane, self.builder
        least = self.bounds(den)
        if lane is None or least is None or self.holds_vectors(Index((((a,), 1),))):
            return None
        step = num.coefficient(lane.var)
        if not step or lane.var in den.names() or abs(step) * (lane.lanes - 1) >= least[0]:
            return None
        if den.is_const and den.const & (den.const - 1) == 0 and bounds and bounds[0] >= 0:
            return None
        first = num.subs({lane.var: Index.of(lane.base)})
        rest = splat(b, self.emit(self.simplified(first % den)), lane.lanes)
        rest = b.add(rest, counting(0, lane.lanes, step))
        size = splat(b, self.emit(den), lane.lanes)
        zero = ir.Constant(rest.type, None)
        beyond = b.icmp_signed(">=", rest, size) if step > 0 else b.icmp_signed("<", rest, zero)
        if isinstance(a, Mod):
            whole = b.select(beyond, size, zero)
            return b.sub(rest, whole) if step > 0 else b.add(rest, whole)
        quotient = splat(b, self.emit(self.simplified(first // den)), lane.lanes)
        more = b.sext(beyond, rest.type)
        return b.sub(quotient, more) if step > 0 else b.add(quotient, more)

    def quotient(self, p: ir.Value, q: ir.Value) -> ir.Value:
        """The quotient of numbers that are not negative."""
        return self._hidden(self.builder.udiv(p, q))

    def rest(self, p: ir.Value, q: ir.Value) -> ir.Value:
        """The remainder of numbers that are not negative."""
        return self._hidden(self.builder.urem(p, q))

    def _hidden(self, divided: ir.Instruction) -> ir.Value:
        constant = isinstance(divided.operands[1], ir.Constant)
        if not self.hide_divisions or divided.type != I64 or constant:
            return divided
        return opaque(self.builder, divided)

    def _matched(self, p: ir.Value, q: ir.Value) -> tuple[ir.Value, ir.Value]:
        if is_vector(p) and not is_vector(q):
            return p, splat(self.builder, q, p.lanes)
        if is_vector(q) and not is_vector(p):
            return splat(self.builder, p, q.lanes), q
        return p, q

    def _add(self, p: ir.Value, q: ir.Value) -> ir.Value:
        p, q = self._matched(p, q)
        return self.builder.add(p, q, nsw=True)

    def _mul(self, p: ir.Value, q: ir.Value) -> ir.Value:
        p, q = self._matched(p, q)
        return self.builder.mul(p, q, nsw=True)


def _is_short(most: int, divisor: int) -> bool:
    """Whether numbers up to `most` are better divided in 32 bits: not by shifts.

    One bit is left for lanes a little beyond them, which are no iterations.
    """
    return max(most, divisor) < 1 << (I32.width - 1) and divisor & (divisor - 1) != 0


@lru_cache(maxsize=1 << 12)
def _divisors(index: Index) -> frozenset[Index]:
    """All that is divided by in an index, its operands' operands included."""
    found: frozenset[Index] = frozenset()
    for mono, _ in index.terms:
        for a in mono:
            if isinstance(a, Var):
                continue
            if isinstance(a, FloorDiv | Mod):
                found |= {a.den}
            found = found.union(*map(_divisors, a.operands))
    return found


def _restore(table: Mapping[str, object], name: str, old: object) -> None:
    if old is None:
        table.pop(name, None)  # type: ignore[attr-defined]
    else:
        table[name] = old  # type: ignore[index]
