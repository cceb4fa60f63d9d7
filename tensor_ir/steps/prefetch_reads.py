"""Prefetching what loops without reductions read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from rutc.base.record import record
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Read, reads
from rutc.tensor_ir.kernel import Branch, Kernel, Kind, Loop, Prefetch, Stmt, exprs, walk_loops
from rutc.tensor_ir.steps.prefetch import address_of
from rutc.tensor_ir.steps.step import NotApplicable, Step, check_positive, find_loops

IN_REGISTERS = (Kind.UNROLL, Kind.VECTOR)
"""Kinds of loops whose iterations are one piece of code."""


@record
class PrefetchReads(Step):
    """Ask for what innermost loops read of a buffer in the next iteration of a loop around them.

    for t { for c { for j in [0, 16) vector { y[t, c, j] = x[4*t, c, j] + x[4*t + 4, c, j] } } }
      ->  for t { for c { prefetch x[4*t + 8, c, 0] into level;
                          for j vector { y[t, c, j] = x[4*t, c, j] + x[4*t + 4, c, j] } } }

    What this iteration reads as well is not asked for. One hint is made for each line of `line`
    elements; `level` is the cache to bring it to.
    """

    buffer: str
    loop: str
    line: int
    level: int

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with prefetches in the innermost loops."""
        check_positive("line", self.line)
        find_loops(kernel, self.loop)
        count = 0

        def visit(body: tuple[Stmt, ...], inside: bool) -> tuple[Stmt, ...]:
            nonlocal count
            result: list[Stmt] = []
            for s in body:
                match s:
                    case Loop(kind=Kind.SERIAL | Kind.PARALLEL):
                        within = inside or s.var == self.loop
                        inner = visit(s.body, within)
                        if within and all(x.kind in IN_REGISTERS for x in walk_loops(s.body)):
                            hints = self._hints(kernel, s.body)
                            count += len(hints)
                            inner = (*hints, *inner)
                        result.append(replace(s, body=inner))
                    case Branch():
                        then, orelse = visit(s.then, inside), visit(s.orelse, inside)
                        result.append(replace(s, then=then, orelse=orelse))
                    case _:
                        result.append(s)
            return tuple(result)

        body = visit(kernel.body, False)
        if not count:
            raise NotApplicable(f"no innermost loop in {self.loop} reads more of %{self.buffer}")
        return replace(kernel, body=body)

    def _hints(self, kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Prefetch, ...]:
        later = {self.loop: Index.of(self.loop) + 1}
        now = dict.fromkeys(
            p for r, x in _reads(body, self.buffer, ()) for p in self._lines(kernel, r, x)
        )
        found = dict.fromkeys(p.subs(later) for p in now)
        return tuple(Prefetch(self.buffer, p, self.level) for p in found if p not in now)

    def _lines(self, kernel: Kernel, read: Read, loops: tuple[Loop, ...]) -> Iterator[Index]:
        """Where the lines begin that a read touches in loops that are one piece of code."""
        address = address_of(kernel, read, {})
        if address is None:
            return
        moving = [x for x in loops if x.var in address.names()]
        if not all((x.hi - x.lo).is_const for x in moving):
            return
        steps = [self.line if address.coefficient(x.var) == 1 else 1 for x in moving]
        turns = (range(0, (x.hi - x.lo).value, n) for x, n in zip(moving, steps, strict=True))
        for at in product(*turns):
            yield address.subs({x.var: x.lo + i for x, i in zip(moving, at, strict=True)})


def _reads(
    body: tuple[Stmt, ...], buffer: str, loops: tuple[Loop, ...]
) -> Iterator[tuple[Read, tuple[Loop, ...]]]:
    """The reads of a buffer, with the loops around them."""
    for s in body:
        match s:
            case Loop():
                yield from _reads(s.body, buffer, (*loops, s))
            case Branch():
                # Whole vectors are computed there.
                yield from _reads(s.then, buffer, loops)
            case _:
                yield from ((r, loops) for e in exprs(s) for r in reads(e) if r.value == buffer)
