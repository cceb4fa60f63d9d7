"""Prefetching what loops without reductions read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from rutc.base.record import record
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Kernel, Kind, Loop, Prefetch
from rutc.tensor_ir.statements import Around, walk_loops
from rutc.tensor_ir.steps.hints import address_of, reads_of, with_hints
from rutc.tensor_ir.steps.step import Step, check_positive, find_loops

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
        why = f"no innermost loop in {self.loop} reads more of %{self.buffer}"
        return with_hints(kernel, partial(self._hints, kernel), why)

    def _hints(self, kernel: Kernel, loop: Loop, outer: Around) -> list[Prefetch]:
        """What an iteration of an innermost loop asks for; nothing where it is not in `loop`.

        Nor is anything asked for within vectors: each of their lanes would.
        """
        if all(x.var != self.loop for x in (*outer, loop)):
            return []
        if any(x.kind in IN_REGISTERS for x in outer):
            return []
        if any(x.kind not in IN_REGISTERS for x in walk_loops(loop.body)):
            return []
        later = {self.loop: Index.of(self.loop) + 1}
        now = dict.fromkeys(
            p for _, r, x in reads_of(self.buffer, loop.body) for p in self._lines(kernel, r, x)
        )
        found = dict.fromkeys(p.subs(later) for p in now)
        return [Prefetch(self.buffer, p, self.level) for p in found if p not in now]

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
