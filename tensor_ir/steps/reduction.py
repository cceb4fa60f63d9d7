"""Steps on reductions: spread over vector lanes, block for the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rutc.tensor_ir.affine import ZERO, Index, minimum
from rutc.tensor_ir.expr import Expr, Read
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
    walk_stmts,
)
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.steps.base import (
    NotApplicable,
    constant_extent,
    find_loop,
    replace_loop,
    simplified,
    with_index,
)


@dataclass(frozen=True)
class Lanes:
    """Reduce over `width` independent states, merged at the end.

    for k in [0, n) { acc.update(x[k]) }
      ->  for l vector { lanes[l].init }
          for k.o in [0, ceil(n/w)) { for l in [0, min(w, n-w*k.o)) vector { lanes[l].update } }
          acc.merge(lanes, l)

    `outer` is the outermost loop of the reduction that `var` belongs to (`var` itself if alone).
    """

    var: str
    width: int
    outer: str

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with a vector of states. Raises NotApplicable unless only updates are held."""
        n = constant_extent(find_loop(kernel, self.var))
        width = min(self.width, n)
        lane, block = f"{self.var}.l", f"{self.var}.o"
        added: list[Buffer] = []

        def lift(reduction: Loop) -> tuple[Stmt, ...]:
            updates = [s for s in walk_stmts((reduction,)) if not isinstance(s, Loop)]
            if len(updates) != 1 or not isinstance(updates[0], Update):
                raise NotApplicable(f"the loops from {self.outer} do more than one update")
            update = updates[0]
            spread: list[Access] = []
            for a, t in zip(update.states, update.reducer.state, strict=True):
                name = f"{a.buffer}.{lane}"
                layout = Layout((Axis(lane, width, 1),))
                added.append(Buffer(name, t, layout, Space.REGISTER))
                spread.append(Access(name, ((lane, Index.of(lane)),)))
            states = tuple(spread)

            def split(loop: Loop) -> tuple[Stmt, ...]:
                count = -(-n // width)
                position = Index.of(block) * width + Index.of(lane) + loop.lo
                rest = Index.of(n) - Index.of(block) * width
                high = minimum(width, rest, {block: (0, count - 1)})
                inner = with_index(loop.body, {self.var: position})
                inner = _retarget(inner, states, lane)
                vector = Loop(lane, ZERO, high, Kind.VECTOR, inner)
                return (Loop(block, ZERO, Index.of(count), Kind.SERIAL, (vector,)),)

            start = Loop(
                lane,
                ZERO,
                Index.of(width),
                Kind.VECTOR,
                (Init(states, update.reducer),),
            )
            join = Merge(update.states, states, update.reducer, lane, width)
            return (start, *replace_loop((reduction,), self.var, split), join)

        body = simplified(replace_loop(kernel.body, self.outer, lift), {})
        unique = {b.name: b for b in added}
        return replace(kernel, body=body, locals=(*kernel.locals, *unique.values()))


@dataclass(frozen=True)
class BlockReduction:
    """Carry partial sums in the output's memory between blocks of a reduction.

    for i { acc.init; for k in [0, n) { acc.update }; o[i] = f(acc) }
      ->  for k.o { for i { if k.o < 1 { acc.init } else { acc = o[i] };
                            for k in block { acc.update };
                            if k.o < last { o[i] = acc } else { o[i] = f(acc) } } }

    The block of operands that all i of a tile use again then fits a nearer cache. `outside` is the
    loop that the block loop goes around; `output` the buffer that holds the partial states.
    """

    var: str
    factor: int
    outside: str
    output: str

    def apply(self, kernel: Kernel) -> Kernel:
        """The blocked kernel. Raises NotApplicable when the output cannot hold the states."""
        n = constant_extent(find_loop(kernel, self.var))
        count = -(-n // self.factor)
        if count < 2:
            raise NotApplicable("one block holds the whole reduction")
        block = f"{self.var}.b"
        inits = [s for s in walk_stmts(kernel.body) if isinstance(s, Init)]
        stores = [
            s
            for s in walk_stmts(kernel.body)
            if isinstance(s, Assign) and s.target.buffer == self.output
        ]
        if len(inits) != 1 or len(inits[0].states) != 1 or len(stores) != 1:
            raise NotApplicable("it takes one reduction with one state and one store")
        (state,) = inits[0].states
        target = stores[0].target
        memory = kernel.buffer(self.output)
        if memory.dtype is not inits[0].reducer.state[0]:
            raise NotApplicable("the output's type is not the state's")
        b = Index.of(block)
        partial = Read(self.output, _plain(target), memory.dtype)

        def visit(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            reductions = [i for i, s in enumerate(body) if isinstance(s, Init)]
            if not reductions:
                return tuple(
                    replace(s, body=visit(s.body)) if isinstance(s, Loop) else s for s in body
                )
            (at,) = reductions
            after = body[at + 2 :]
            reload: Stmt = Assign(state, partial)
            start = Branch(b, Index.of(1), (body[at],), (reload,))
            carried: Expr = Read(state.buffer, _plain(state), memory.dtype)
            save = Assign(target, carried)
            end = Branch(b, Index.of(count - 1), (save,), after)
            reduction = replace_loop((body[at + 1],), self.var, split)
            return (*body[:at], start, *reduction, end)

        def split(loop: Loop) -> tuple[Stmt, ...]:
            rest = Index.of(n) - b * self.factor
            width = minimum(self.factor, rest, {block: (0, count - 1)})
            inner = with_index(loop.body, {self.var: b * self.factor + Index.of(self.var)})
            return (Loop(self.var, ZERO, width, loop.kind, inner),)

        def wrap(loop: Loop) -> tuple[Stmt, ...]:
            return (Loop(block, ZERO, Index.of(count), Kind.SERIAL, visit((loop,))),)

        return replace(kernel, body=simplified(replace_loop(kernel.body, self.outside, wrap), {}))


def _plain(a: Access) -> tuple[tuple[str, Index], ...]:
    found: list[tuple[str, Index]] = []
    for d, c in a.coords:
        if not isinstance(c, Index):
            raise NotApplicable("the store's place depends on data")
        found.append((d, c))
    return tuple(found)


def _retarget(body: tuple[Stmt, ...], states: tuple[Access, ...], lane: str) -> tuple[Stmt, ...]:
    return tuple(
        replace(s, states=states, lanes=lane)
        if isinstance(s, Update)
        else replace(s, body=_retarget(s.body, states, lane))
        if isinstance(s, Loop)
        else s
        for s in body
    )
