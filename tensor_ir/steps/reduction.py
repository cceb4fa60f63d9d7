"""Steps on reductions: spread over vector lanes, block for the cache, make partial sums."""

from __future__ import annotations

from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.indices.affine import ZERO, Index, minimum
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Init,
    Kernel,
    Kind,
    Loop,
    Merge,
    Space,
    Stmt,
    Update,
)
from rutc.tensor_ir.layout import Axis, Layout, dense
from rutc.tensor_ir.statements import accesses, walk_loops, walk_stmts
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    check_fresh,
    check_no_order,
    check_positive,
    constant_extent,
    find_loops,
    in_blocks,
    outer_ranges,
    plain_coords,
    replace_loop,
    symbolic_extent,
    with_index,
    with_replaced,
)


@record
class Lanes(Step):
    """Reduce over `width` independent states, merged at the end.

    for k in [0, n) { acc.update(x[k]) }
      ->  for l vector { lanes[l].init }
          for k.o in [0, ceil(n/w)) { for l in [0, min(w, n-w*k.o)) vector { lanes[l].update } }
          acc.merge(lanes, l)

    The whole blocks come first and a shorter one after them.
    `outer` is the outermost loop of the reduction that `var` belongs to (`var` itself if alone).
    """

    var: str
    width: int
    outer: str

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with a vector of states. Raises NotApplicable unless only updates are held."""
        lane, block, last = f"{self.var}.l", f"{self.var}.o", f"{self.var}.r"
        find_loops(kernel, self.var)
        check_positive("width", self.width)
        check_fresh(kernel, lane, block, last)
        added: dict[str, Buffer] = {}

        def lift(reduction: Loop) -> tuple[Stmt, ...]:
            n, *others = {symbolic_extent(kernel, x) for x in find_loops(kernel, self.var)}
            if others:
                raise NotApplicable(f"the loops over {self.var} have different extents")
            width = max(1, min(self.width, n)) if isinstance(n, int) else self.width
            update = self._only_update(kernel, reduction)
            spread: list[Access] = []
            for a, t in zip(update.states, update.reducer.state, strict=True):
                name = f"{a.buffer}.{lane}"
                added[name] = Buffer(name, t, Layout((Axis(lane, width, 1),)), Space.REGISTER)
                spread.append(Access(name, ((lane, Index.of(lane)),)))
            states = tuple(spread)

            def blocks(loop: Loop, name: str, lo: Index, hi: Index, *, whole: bool) -> Loop:
                position = Index.of(name) * width + Index.of(lane) + loop.lo
                rest = Index.of(n) - Index.of(name) * width
                ranges = {name: (lo.value, hi.value - 1)} if hi.is_const else {}
                high = Index.of(width) if whole else minimum(width, rest, ranges)
                inner = with_index(loop.body, {self.var: position})
                inner = _retarget(inner, states, lane)
                vector = Loop(lane, ZERO, high, Kind.VECTOR, inner)
                return Loop(name, lo, hi, Kind.SERIAL, (vector,))

            def split(loop: Loop) -> tuple[Stmt, ...]:
                count = (Index.of(n) + (width - 1)) // width
                full = Index.of(n) // width
                if count == full or full == ZERO:
                    return (blocks(loop, block, ZERO, count, whole=False),)
                return (
                    blocks(loop, block, ZERO, full, whole=True),
                    blocks(loop, last, full, count, whole=False),
                )

            start = Loop(lane, ZERO, Index.of(width), Kind.VECTOR, (Init(states, update.reducer),))
            join = Merge(update.states, states, update.reducer, lane, width)
            return (start, *replace_loop((reduction,), self.var, split), join)

        return with_replaced(kernel, self.outer, lift, added.values())

    def _only_update(self, kernel: Kernel, reduction: Loop) -> Update:
        """What the loops of the reduction do, which is nothing but this."""
        inside = list(walk_stmts((reduction,)))
        loops = [s for s in inside if isinstance(s, Loop)]
        updates = [s for s in inside if not isinstance(s, Loop)]
        if len(updates) != 1 or not isinstance(updates[0], Update):
            raise NotApplicable(f"the loops from {self.outer} do more than one update")
        update = updates[0]
        if self.var not in {x.var for x in loops}:
            raise NotApplicable(f"{self.outer} does not hold {self.var}")
        if update.lanes is not None or any(a.coords for a in update.states):
            raise NotApplicable(f"the states of the reduction over {self.var} are spread already")
        if any(x.kind is Kind.VECTOR for x in loops):
            raise NotApplicable(f"the reduction over {self.var} holds a vector loop")
        for x in loops:
            if self.var in x.lo.names() | x.hi.names():
                raise NotApplicable(f"the bounds of {x.var} depend on {self.var}")
        for s in walk_stmts(kernel.body):
            if isinstance(s, Loop) and s.kind is Kind.VECTOR and reduction in walk_stmts(s.body):
                raise NotApplicable(f"the reduction stands in the vector loop {s.var}")
        return update


@record
class BlockReduction(Step):
    """Carry partial sums in memory between blocks of a reduction: the output's, or some of its own.

    for i { acc.init; for k in [0, n) { acc.update }; o[i] = f(acc) }
      ->  for k.b { for i { acc.init;
                            for k in block { acc.update };
                            if 0 < k.b { acc.update(o[i]) };
                            if k.b < last { o[i] = acc } else { o[i] = f(acc) } } }

    The states, one for each reduction, are sums or extremes. The block of operands that all i of
    a tile use again then fits a nearer cache. `outside` is the loop that the block loop goes
    around; `output` the buffer that holds the partial states. Where there is none of that name, it
    is made: on the stack, with an element for each iteration of the loops from `outside` on, in
    their order.
    """

    var: str
    factor: int
    outside: str
    output: str

    def apply(self, kernel: Kernel) -> Kernel:
        """The blocked kernel. Raises NotApplicable when the output cannot hold the states."""
        block = f"{self.var}.b"
        check_positive("factor", self.factor)
        check_fresh(kernel, block)
        if len(find_loops(kernel, self.var)) > 1 or len(find_loops(kernel, self.outside)) > 1:
            raise NotApplicable("the loops occur several times")
        n = constant_extent(find_loops(kernel, self.var)[0])
        count = -(-n // self.factor)
        if count < 2:
            raise NotApplicable("one block holds the whole reduction")
        b = Index.of(block)
        own = all(x.name != self.output for x in (*kernel.args, *kernel.locals))
        added: list[Buffer] = []

        def split(loop: Loop) -> tuple[Stmt, ...]:
            return in_blocks(kernel, loop, self.factor, block, self.var)[1:]

        def visit(body: tuple[Stmt, ...], around: tuple[Loop, ...]) -> tuple[Stmt, ...]:
            if len(body) == 1 and isinstance(body[0], Loop):
                return (replace(body[0], body=visit(body[0].body, (*around, body[0]))),)
            init, reduction, after = self._reduction(body)
            check_no_order(reduction.body)
            (state,) = init.states
            kind = init.reducer.state[0]
            if own:
                added.append(self._partials(kernel, around, kind))
                target = Access(self.output, tuple((x.var, Index.of(x.var)) for x in around))
            else:
                target = self._target(kernel, init, after)
            before = Read(self.output, plain_coords(target), kind)
            save: Stmt = Assign(target, Read(state.buffer, plain_coords(state), kind))
            return (
                init,
                *replace_loop((reduction,), self.var, split),
                Branch(ZERO, b, (Update(init.states, init.reducer.of_states, (before,)),), ()),
                Branch(b, Index.of(count - 1), (save,), after),
            )

        def wrap(loop: Loop) -> tuple[Stmt, ...]:
            return (Loop(block, ZERO, Index.of(count), Kind.SERIAL, visit((loop,), ())),)

        return with_replaced(kernel, self.outside, wrap, added)

    def _partials(self, kernel: Kernel, around: tuple[Loop, ...], kind: DType) -> Buffer:
        """A buffer on the stack for the partial states of all iterations of some loops."""
        ranges = outer_ranges(kernel)
        extents: dict[str, int] = {}
        for x in around:
            bounds = x.hi.bounds(ranges)
            if x.lo != ZERO or bounds is None:
                raise NotApplicable(f"the extent of {x.var} has no bound")
            extents[x.var] = bounds[1]
        return Buffer(self.output, kind, dense(tuple(extents), extents), Space.STACK)

    def _reduction(self, body: tuple[Stmt, ...]) -> tuple[Init, Loop, tuple[Stmt, ...]]:
        """(start, loops, what follows) of the reduction that is `body`."""
        match body:
            case (Init() as init, Loop() as reduction, *_):
                after = body[2:]
            case _:
                raise NotApplicable(f"{self.outside} does more than one reduction")
        if not any(s.var == self.var for s in walk_loops((reduction,))):
            raise NotApplicable(f"the reduction in {self.outside} does not run over {self.var}")
        if any(isinstance(s, Init) for s in walk_stmts(after)) or len(init.states) != 1:
            raise NotApplicable("it takes one reduction with one state")
        return init, reduction, after

    def _target(self, kernel: Kernel, init: Init, after: tuple[Stmt, ...]) -> Access:
        """The place of the output that holds a reduction's partial state."""
        stores = [s for s in after if isinstance(s, Assign) and s.target.buffer == self.output]
        every = [a for s in walk_stmts(kernel.body) for a in accesses(s) if a.buffer == self.output]
        if len(stores) != 1 or len(every) != 1:
            raise NotApplicable(f"%{self.output} is not stored once, right after the reduction")
        if kernel.buffer(self.output).dtype is not init.reducer.state[0]:
            raise NotApplicable(f"%{self.output} has another type than the state")
        return stores[0].target


def _retarget(body: tuple[Stmt, ...], states: tuple[Access, ...], lane: str) -> tuple[Stmt, ...]:
    return tuple(
        replace(s, states=states, lanes=lane)
        if isinstance(s, Update)
        else replace(s, body=_retarget(s.body, states, lane))
        if isinstance(s, Loop)
        else s
        for s in body
    )
