"""Steps that reduce parts of a loop by themselves: in turn, apart, or of what has no factor."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Cast, Expr, Lit, Read, apply, cast, index_names, reads
from rutc.tensor_ir.facts.products import whole_product
from rutc.tensor_ir.indices.affine import ZERO, Index
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Init,
    Kernel,
    Kind,
    Loop,
    Prefetch,
    Stmt,
    Update,
)
from rutc.tensor_ir.layout import Axis
from rutc.tensor_ir.reducer import Reducer, reducer
from rutc.tensor_ir.statements import Around, accesses, exprs, walk_loops, walk_stmts
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    check_fresh,
    check_positive,
    find_loops,
    in_blocks,
    plain_coords,
    replace_loop,
    with_index,
    with_replaced,
)
from rutc.tensor_ir.terms import factors, product_of, terms


@record
class _Partly(Step):
    """A step that gives the states of a loop's reductions others beside them."""

    var: str

    def _partial(self, kernel: Kernel, state: str, dtype: DType | None = None) -> Buffer:
        """A buffer like that of a state, or of another type.

        Raises NotApplicable where there is one of its name.
        """
        name = f"{state}.{self.var}.partial"
        if any(b.name == name for b in (*kernel.args, *kernel.locals)):
            raise NotApplicable(f"there is a buffer %{name} already")
        like = kernel.buffer(state)
        return replace(like, name=name, dtype=dtype or like.dtype)

    def _updates(self, s: Stmt, around: Around) -> Iterator[tuple[Update, Around]]:
        """The updates in a loop, each with the loops around it."""
        match s:
            case Loop():
                for inner in s.body:
                    yield from self._updates(inner, (*around, s))
            case Update():
                yield s, around
            case Branch() if any(isinstance(x, Update) for x in walk_stmts((s,))):
                raise NotApplicable(f"{self.var} reduces in a branch")
            case Branch() | Assign() | Prefetch():
                pass
            case _:
                raise NotApplicable(f"{self.var} does more than reduce")

    def _check_unseen(self, loop: Loop, states: Container[str]) -> None:
        """Raises NotApplicable where a loop does more with states than to update them."""
        for s in walk_stmts(loop.body):
            used = [r.value for e in exprs(s) for r in reads(e)]
            if not isinstance(s, Update):
                used += [a.buffer for a in accesses(s)]
            for name in used:
                if name in states:
                    raise NotApplicable(f"{self.var} uses %{name}, which it reduces to")

    def _whole(
        self, update: Update, around: tuple[Loop, ...], partial: Mapping[str, Buffer]
    ) -> tuple[Loop, ...]:
        """The loops over the states of an update, idle lanes among them."""
        if update.lanes is None:
            return around
        lane = Index.of(update.lanes)
        (width,) = {
            axis.extent
            for a in update.states
            for d, c in a.coords
            for axis in partial[a.buffer].layout.axes
            if c == lane and axis.dim == d
        }
        return tuple(replace(x, hi=Index.of(width)) if x.var == update.lanes else x for x in around)


@record
class PartialSums(_Partly):
    """Reduce blocks of a loop each by itself, and the results of the blocks after one another.

    for k in [0, n) { acc.update(x[k]) }
      ->  for k.p in [0, ceil(n/f)) { partial.init;
                                      for k in [0, min(f, n-f*k.p)) { partial.update(x[f*k.p+k]) };
                                      acc.update(partial) }

    The last update merges states. The rounding errors of a sum grow with the number of summands
    that are added one after another [Higham 1993, "The Accuracy of Floating Point Summation"].
    """

    factor: int

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with partial sums. Raises NotApplicable where a loop does more than reduce."""
        name = f"{self.var}.p"
        check_positive("factor", self.factor)
        check_fresh(kernel, name)
        find_loops(kernel, self.var)
        added: dict[str, Buffer] = {}

        def split(loop: Loop) -> tuple[Stmt, ...]:
            if loop.kind is not Kind.SERIAL:
                raise NotApplicable(f"the iterations of {self.var} are not one after another")
            before: list[Stmt] = []
            after: list[Stmt] = []
            partial: dict[str, Buffer] = {}
            for update, around in self._updates(loop, ()):
                over = _over(update, around)
                if any(a.buffer in partial for a in update.states):
                    if update.lanes is None:
                        raise NotApplicable(f"%{update.states[0].buffer} is updated twice")
                    # Whole blocks and a shorter one: all lanes have partial states already.
                    continue
                for a in update.states:
                    partial[a.buffer] = self._partial(kernel, a.buffer)
                own = tuple(Access(partial[a.buffer].name, a.coords) for a in update.states)
                merging = update.reducer.of_states
                taken = tuple(
                    Read(a.buffer, plain_coords(a), t)
                    for a, t in zip(own, merging.elements, strict=True)
                )
                lanes = self._whole(update, over, partial)
                before.append(_for_each(lanes, Init(own, update.reducer)))
                after.append(_for_each(lanes, Update(update.states, merging, taken)))
            self._check_unseen(loop, partial)
            added.update({x.name: x for x in partial.values()})
            reduces = replace(loop, body=_moved_states(loop.body, partial))
            parts, block = in_blocks(kernel, reduces, self.factor, name, self.var)
            return (replace(parts, body=(*before, block, *after)),)

        return with_replaced(kernel, self.var, split, added.values())


@record
class Apart(_Partly):
    """Reduce neighbouring iterations of an unrolled loop apart, where that loop has few states.

    for k { for u in [0, 4) unroll { for i { acc[i].update(x[k, u, i]) } } }
      ->  for u, i { own[u, i].init };
          for k { for u unroll { for i { own[u, i].update(x[k, u, i]) } } };
          for u, i { acc[i].update(own[u, i]) }

    An update waits for the one before it of its state, so that a tile of one row takes as long as
    one of several. Of all loops over `var`, as those of tiles of other numbers of rows are, those
    change that update fewer than `least` states: u then has as many parts, a divisor of its
    extent, as make up so many, if all of their states are at most `most`.
    """

    unrolled: str
    least: int
    most: int

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with more states. Raises NotApplicable where a loop does more than reduce."""
        part = f"{self.unrolled}.part"
        check_positive("number of states", self.least)
        check_fresh(kernel, part)
        find_loops(kernel, self.var)
        added: dict[str, Buffer] = {}
        most_parts: dict[str, int] = {}

        def apart(loop: Loop) -> tuple[Stmt, ...]:
            before: list[Stmt] = []
            after: list[Stmt] = []
            own: dict[str, Buffer] = {}
            updates = list(self._updates(loop, ()))
            parts = self._parts(updates)
            if parts == 1:
                return (loop,)
            for update, around in updates:
                if any(a.buffer in own for a in update.states):
                    raise NotApplicable(f"%{update.states[0].buffer} is updated twice")
                for a in update.states:
                    own[a.buffer] = self._spread(kernel, a.buffer, part, parts)
                spread = tuple(_in_part(a, own, part) for a in update.states)
                merging = update.reducer.of_states
                taken = tuple(
                    Read(a.buffer, plain_coords(a), t)
                    for a, t in zip(spread, merging.elements, strict=True)
                )
                each = (Loop(part, ZERO, Index.of(parts), Kind.UNROLL, ()), *_over(update, around))
                before.append(_for_each(each, Init(spread, update.reducer)))
                after.append(_for_each(each, Update(update.states, merging, taken)))
            self._check_unseen(loop, own)
            for b in own.values():
                if parts > most_parts.get(b.name, 0):
                    most_parts[b.name], added[b.name] = parts, b

            def split(u: Loop) -> tuple[Stmt, ...]:
                at = Index.of(f"{u.var}.whole") * parts + Index.of(part)
                body = with_index(_moved(u.body, moved), {u.var: at})
                inside = Loop(part, ZERO, Index.of(parts), Kind.UNROLL, body)
                count = Index.of(u.hi.value // parts)
                return (Loop(f"{u.var}.whole", ZERO, count, Kind.UNROLL, (inside,)),)

            def moved(s: Update) -> Update:
                return replace(s, states=tuple(_in_part(a, own, part) for a in s.states))

            return (*before, *replace_loop((loop,), self.unrolled, split), *after)

        return with_replaced(kernel, self.var, apart, added.values())

    def _parts(self, updates: Sequence[tuple[Update, tuple[Loop, ...]]]) -> int:
        """How many parts the unrolled loop has: 1 where states are enough, or others too many."""
        states, lengths = 0, set[int]()
        for update, around in updates:
            over = _over(update, around)
            inner = next((x for x in around if x.var == self.unrolled), None)
            if update.lanes is not None or inner is None or inner.kind is not Kind.UNROLL:
                return 1
            if inner.lo != ZERO or not inner.hi.is_const:
                return 1
            if self.unrolled in {x.var for x in over} or not all(x.hi.is_const for x in over):
                return 1
            lengths.add(inner.hi.value)
            states += len(update.states) * prod(x.hi.value for x in over)
        if len(lengths) != 1 or states >= self.least:
            return 1
        length = lengths.pop()
        fitting = [n for n in range(1, length + 1) if length % n == 0 and n * states <= self.most]
        return next((n for n in fitting if n * states >= self.least), max(fitting, default=1))

    def _spread(self, kernel: Kernel, state: str, part: str, parts: int) -> Buffer:
        """A buffer like that of a state, for each part."""
        like = kernel.buffer(state)
        axes = (Axis(part, parts, like.layout.size), *like.layout.axes)
        layout = replace(like.layout, axes=axes)
        return replace(like, name=f"{state}.{self.var}.apart", layout=layout)


def _in_part(a: Access, own: Mapping[str, Buffer], part: str) -> Access:
    """A state of a part."""
    return Access(own[a.buffer].name, ((part, Index.of(part)), *a.coords))


@record
class FactorOut(_Partly):
    """Multiply sums of products by what is the same for all of a loop's iterations, not products.

    for k { acc.update(a[k] * g) }
      ->  partial.init; for k { partial.update(a[k]) }; acc.update(partial * g)

    Each product is rounded once less, and each sum once more. Of several loops over `var`, those
    without such factors stay as they are. What is added to each product and is the same for all of
    them is added once, times their number; products of narrow integers are summed as such:

    for k in [0, 32) { acc.update((f32(i32(q[k]) * i32(w[k])) + z) * g) }
      ->  partial.init; for k in [0, 32) { partial.update(i32(q[k]) * i32(w[k])) };
          acc.update((f32(partial) + 32 * z) * g)
    """

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel without such factors. Raises NotApplicable where there are none."""
        loops = find_loops(kernel, self.var)
        added: dict[str, Buffer] = {}

        def split(loop: Loop) -> tuple[Stmt, ...]:
            if loop.kind not in (Kind.SERIAL, Kind.UNROLL):
                raise NotApplicable(f"the iterations of {self.var} are not one after another")
            before: list[Stmt] = []
            after: list[Stmt] = []
            partial: dict[str, Buffer] = {}
            without: list[str] = []
            changed: dict[str, _Summed] = {}
            for update, around in self._updates(loop, ()):
                (state,), (element,) = self._summed(update), update.elements
                over = _over(update, around)
                if state.buffer in partial:
                    raise NotApplicable(f"%{state.buffer} is updated twice")
                inside = _inside(loop) - {x.var for x in over}
                rest, common = parted(element, inside)
                if not common:
                    without.append(state.buffer)
                    continue
                summed = _summed(rest, inside, _iterations(around, inside))
                changed[state.buffer] = summed
                buffer = self._partial(kernel, state.buffer, summed.dtype)
                partial[state.buffer] = buffer
                own = Access(buffer.name, state.coords)
                total = summed.whole(Read(buffer.name, plain_coords(own), buffer.dtype))
                before.append(_for_each(over, Init((own,), summed.reducer)))
                taken = Update((state,), update.reducer, (product_of([total, *common]),))
                after.append(_for_each(over, taken))
            if without and (partial or len(loops) == 1):
                raise NotApplicable(f"no factor of %{without[0]} is the same in {self.var}")
            if not partial:
                return (loop,)
            self._check_unseen(loop, partial)
            added.update({x.name: x for x in partial.values()})

            def moved(s: Update) -> Update:
                ((name, coords),) = ((a.buffer, a.coords) for a in s.states)
                own, summed = Access(partial[name].name, coords), changed[name]
                return Update((own,), summed.reducer, (summed.element,))

            body = _moved(loop.body, moved)
            return (*before, replace(loop, body=body), *after)

        body = replace_loop(kernel.body, self.var, split)
        if not added:
            raise NotApplicable(f"no factor is the same in {self.var}")
        return replace(kernel, body=body, locals=(*kernel.locals, *added.values()))

    def _summed(self, update: Update) -> tuple[Access, ...]:
        """The state of a sum of floats. Raises NotApplicable for other reductions."""
        if update.reducer.name != "sum" or not update.reducer.state[0].is_float:
            raise NotApplicable(f"{self.var} does more than to add floats up")
        if update.lanes is not None:
            raise NotApplicable(f"lanes of {self.var} are idle")
        return update.states


def parted(e: Expr, inside: Container[str]) -> tuple[list[Expr], list[Expr]]:
    """The factors of a product that differ between iterations of the loops inside, and the others.

    Nothing is a factor of the others alone, nor what is no more than literals.
    """
    rest = [x for x in factors(e) if any(v in inside for v in index_names(x))]
    common = [x for x in factors(e) if x not in rest]
    read = any(isinstance(x, Read) for f in common for x in reads(f))
    return (rest, common) if rest and read else (factors(e), [])


@record
class _Summed:
    """What is added up of elements of a sum, and what is the same in all of them."""

    element: Expr
    reducer: Reducer
    same: tuple[Expr, ...]
    iterations: int | None

    @property
    def dtype(self) -> DType:
        """The type of the sum."""
        return self.reducer.state[0]

    def whole(self, total: Expr) -> Expr:
        """The sum of the elements, given that of what differs."""
        total = cast(total, DType.F32) if self.reducer.state == (DType.I32,) else total
        for e in self.same:
            assert self.iterations is not None
            total = apply("add", total, _times(e, self.iterations))
        return total


def _times(e: Expr, count: int) -> Expr:
    """A product a number of times; a literal in it takes the number in."""
    parts = factors(e)
    for i, f in enumerate(parts):
        if isinstance(f, Lit):
            rest, whole = parts[:i] + parts[i + 1 :], Lit(f.value * count, f.dtype)
            return product_of(rest if whole.value == 1 and rest else [*rest, whole])
    return product_of([*parts, Lit(count, e.dtype)])


def _summed(rest: list[Expr], inside: Container[str], iterations: int | None) -> _Summed:
    """What is added up of a product of factors that differ in the loops inside."""
    element = product_of(rest)
    same: tuple[Expr, ...] = ()
    if len(rest) == 1 and iterations is not None:
        parts = terms(element)
        differ = [t for t in parts if any(v in inside for v in index_names(t))]
        if differ and len(differ) < len(parts):
            same = tuple(t for t in parts if t not in differ)
            element = reduce(lambda a, b: apply("add", a, b), differ)
    whole = _whole_numbers(element, iterations)
    if whole is not None:
        return _Summed(whole, reducer("sum", DType.I32), same, iterations)
    return _Summed(element, reducer("sum", element.dtype), same, iterations)


def _whole_numbers(e: Expr, iterations: int | None) -> Expr | None:
    """The product of narrow integers that a real number is, where so many of them fit an i32."""
    pair = whole_product(e)
    if not isinstance(e, Cast) or pair is None or iterations is None:
        return None
    most = prod(1 << (f.dtype.bits - f.dtype.is_signed) for f in pair)
    return e.arg if iterations * most < 1 << (DType.I32.bits - 1) else None


def _iterations(around: tuple[Loop, ...], inside: Container[str]) -> int | None:
    """How often what these loops are around is done by those inside; None where a run tells."""
    lengths = [x.hi - x.lo for x in around if x.var in inside]
    return prod(n.value for n in lengths) if all(n.is_const for n in lengths) else None


def _inside(loop: Loop) -> frozenset[str]:
    """A loop, and those in it."""
    return frozenset(s.var for s in walk_loops((loop,)))


def _for_each(loops: tuple[Loop, ...], s: Stmt) -> Stmt:
    for x in reversed(loops):
        s = replace(x, body=(s,))
    return s


def _moved_states(body: tuple[Stmt, ...], partial: Mapping[str, Buffer]) -> tuple[Stmt, ...]:
    """Loops whose updates are of other buffers."""

    def moved(s: Update) -> Update:
        own = tuple(Access(partial[a.buffer].name, a.coords) for a in s.states)
        return replace(s, states=own)

    return _moved(body, moved)


def _moved(body: tuple[Stmt, ...], change: Callable[[Update], Update]) -> tuple[Stmt, ...]:
    """Loops with other updates."""
    result: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            s = replace(s, body=_moved(s.body, change))
        elif isinstance(s, Update):
            s = change(s)
        result.append(s)
    return tuple(result)


def _over(update: Update, around: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The loops around an update that tell its states apart."""
    used = {v for a in update.states for _, c in plain_coords(a) for v in c.names()}
    return tuple(x for x in around if x.var in used)
