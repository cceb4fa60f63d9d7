"""Steps that reduce parts of a loop by themselves: partial sums, and sums of what has no factor."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Expr, Read, apply, factors, index_names, reads
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
    accesses,
    exprs,
    walk_stmts,
)
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    check_fresh,
    check_positive,
    find_loops,
    in_blocks,
    replace_loop,
    simplified,
)


@record
class _Partly(Step):
    """A step that gives the states of a loop's reductions others beside them."""

    var: str

    def _partial(self, kernel: Kernel, state: str) -> Buffer:
        """A buffer like that of a state. Raises NotApplicable where there is one of its name."""
        name = f"{state}.{self.var}.partial"
        if any(b.name == name for b in (*kernel.args, *kernel.locals)):
            raise NotApplicable(f"there is a buffer %{name} already")
        return replace(kernel.buffer(state), name=name)

    def _updates(
        self, s: Stmt, around: tuple[Loop, ...]
    ) -> Iterator[tuple[Update, tuple[Loop, ...]]]:
        """The updates in a loop, each with the loops around it that tell its states apart."""
        match s:
            case Loop():
                for inner in s.body:
                    yield from self._updates(inner, (*around, s))
            case Update():
                used = {v for a in s.states for _, c in _plain(a) for v in c.names()}
                yield s, tuple(x for x in around if x.var in used)
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
            for update, over in self._updates(loop, ()):
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
                    Read(a.buffer, _plain(a), t) for a, t in zip(own, merging.elements, strict=True)
                )
                lanes = self._whole(update, over, partial)
                before.append(_for_each(lanes, Init(own, update.reducer)))
                after.append(_for_each(lanes, Update(update.states, merging, taken)))
            self._check_unseen(loop, partial)
            added.update({x.name: x for x in partial.values()})
            reduces = replace(loop, body=_moved_states(loop.body, partial))
            around, block = in_blocks(kernel, reduces, self.factor, name, self.var)
            return (replace(around, body=(*before, block, *after)),)

        body = simplified(replace_loop(kernel.body, self.var, split), dict(kernel.symbols))
        return replace(kernel, body=body, locals=(*kernel.locals, *added.values()))


@record
class FactorOut(_Partly):
    """Multiply sums of products by what is the same for all of a loop's iterations, not products.

    for k { acc.update(a[k] * g) }
      ->  partial.init; for k { partial.update(a[k]) }; acc.update(partial * g)

    Each product is rounded once less, and each sum once more. Of several loops over `var`, those
    without such factors stay as they are.
    """

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel without such factors. Raises NotApplicable where there are none."""
        loops = find_loops(kernel, self.var)
        added: dict[str, Buffer] = {}

        def split(loop: Loop) -> tuple[Stmt, ...]:
            if loop.kind is not Kind.SERIAL:
                raise NotApplicable(f"the iterations of {self.var} are not one after another")
            before: list[Stmt] = []
            after: list[Stmt] = []
            partial: dict[str, Buffer] = {}
            without: list[str] = []
            for update, over in self._updates(loop, ()):
                (state,), (element,) = self._summed(update), update.elements
                if state.buffer in partial:
                    raise NotApplicable(f"%{state.buffer} is updated twice")
                common = parted(element, _inside(loop) - {x.var for x in over})[1]
                if not common:
                    without.append(state.buffer)
                    continue
                buffer = partial[state.buffer] = self._partial(kernel, state.buffer)
                own = Access(buffer.name, state.coords)
                total = Read(buffer.name, _plain(own), buffer.dtype)
                before.append(_for_each(over, Init((own,), update.reducer)))
                taken = Update((state,), update.reducer, (_product([total, *common]),))
                after.append(_for_each(over, taken))
            if without and (partial or len(loops) == 1):
                raise NotApplicable(f"no factor of %{without[0]} is the same in {self.var}")
            if not partial:
                return (loop,)
            self._check_unseen(loop, partial)
            added.update({x.name: x for x in partial.values()})

            def moved(s: Update, over: frozenset[str]) -> Update:
                rest = parted(s.elements[0], _inside(loop) - over)[0]
                own = tuple(Access(partial[a.buffer].name, a.coords) for a in s.states)
                return replace(s, states=own, elements=(_product(rest),))

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


def _inside(loop: Loop) -> frozenset[str]:
    """A loop, and those in it."""
    return frozenset(s.var for s in walk_stmts((loop,)) if isinstance(s, Loop))


def _product(parts: list[Expr]) -> Expr:
    """The product of at least one factor, from the left."""
    total = parts[0]
    for p in parts[1:]:
        total = apply("mul", total, p)
    return total


def _for_each(loops: tuple[Loop, ...], s: Stmt) -> Stmt:
    for x in reversed(loops):
        s = replace(x, body=(s,))
    return s


def _moved_states(body: tuple[Stmt, ...], partial: Mapping[str, Buffer]) -> tuple[Stmt, ...]:
    """Loops whose updates are of other buffers."""

    def moved(s: Update, over: frozenset[str]) -> Update:
        own = tuple(Access(partial[a.buffer].name, a.coords) for a in s.states)
        return replace(s, states=own)

    return _moved(body, moved)


def _moved(
    body: tuple[Stmt, ...], change: Callable[[Update, frozenset[str]], Update]
) -> tuple[Stmt, ...]:
    """Loops with other updates; `change` is told which loops tell the states of one apart."""
    result: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            s = replace(s, body=_moved(s.body, change))
        elif isinstance(s, Update):
            names = frozenset(v for a in s.states for _, c in _plain(a) for v in c.names())
            s = change(s, names)
        result.append(s)
    return tuple(result)


def _plain(a: Access) -> tuple[tuple[str, Index], ...]:
    found: list[tuple[str, Index]] = []
    for d, c in a.coords:
        if not isinstance(c, Index):
            raise NotApplicable("the store's place depends on data")
        found.append((d, c))
    return tuple(found)
