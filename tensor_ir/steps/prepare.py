"""Preparing: compute what several tiles use of an operand once, before the first of them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.expr import Expr, Read, index_names, point, reads, transform, walk
from rutc.tensor_ir.facts.outside import is_finite
from rutc.tensor_ir.indices.affine import ZERO, Index
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Kernel,
    Kind,
    Loop,
    Space,
    Stmt,
    Update,
)
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.statements import rewrite, walk_loops, walk_stmts
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    check_fresh,
    find_loops,
    outer_ranges,
    replace_loop,
    with_index,
)


@record
class Prepare(Step):
    """Compute what is made of `buffer` for all of `loops` before the loop `outside`, on the stack.

    for i { for j { acc.init; for k { acc.update(a[i, k] * f(w[k, j])) }; o[i, j] = acc } }
      ->  for k.p { for j.p vector { p[k, j] = f(w[k, j]) } };
          for i { for j { acc.init; for k { acc.update(a[i, k] * p[k, j]) }; o[i, j] = acc } }

    The last one of `loops` becomes the vector. `f(..)` is the largest expression of an update that
    reads `buffer` and depends on none of the loops from `outside` on but those, or a read alone,
    whose elements then lie side by side.

    Where only a run tells how often `outside` is repeated, one that does it fewer than `least`
    times prepares nothing:

    for i in [0, n) { S }
      ->  if n < least { for i in [0, n) { S } } else { prepare; for i in [0, n) { S' } }
    """

    buffer: str
    outside: str
    loops: tuple[str, ...]
    least: int = 2

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with the operand prepared. Raises NotApplicable where no part is the same."""
        name = f"{self.buffer}.prepared"
        if any(b.name == name for b in (*kernel.args, *kernel.locals)):
            raise NotApplicable(f"%{self.buffer} is prepared already")
        if not self.loops:
            raise NotApplicable("it takes one loop at least")
        check_fresh(kernel, *(f"{v}.p" for v in self.loops))
        found = find_loops(kernel, self.outside)
        if len(found) > 1:
            raise NotApplicable(f"there are {len(found)} loops over {self.outside}")
        (around,) = found
        inside = {s.var: s for s in walk_loops((around,))}
        missing = [v for v in self.loops if v not in inside or v == self.outside]
        if missing:
            raise NotApplicable(f"{missing[0]} is no loop inside of {self.outside}")
        taken = self._taken(around, inside.keys() - set(self.loops))
        ranges = outer_ranges(kernel)
        extents: dict[str, int] = {}
        own: list[Loop] = []
        for v in self.loops:
            x = inside[v]
            bounds = x.hi.bounds(ranges)
            if x.lo != ZERO or bounds is None or x.hi.names() & inside.keys():
                raise NotApplicable(f"the extent of {v} depends on other loops, or has no bound")
            extents[v] = bounds[1]
            kind = Kind.VECTOR if v == self.loops[-1] else Kind.SERIAL
            own.append(Loop(f"{v}.p", ZERO, x.hi, kind, ()))
        coords = point(self.loops)
        kept = Read(name, coords, taken.dtype)
        first: tuple[Stmt, ...] = (Assign(Access(name, coords), taken),)
        first = with_index(first, {v: Index.of(f"{v}.p") for v in self.loops})
        for x in reversed(own):
            first = (replace(x, body=first),)

        def local(e: Expr) -> Expr:
            return transform(e, lambda x: kept if x == taken else x)

        def visit(loop: Loop) -> tuple[Stmt, ...]:
            many = (*first, *rewrite((loop,), expr=local))
            times = loop.hi - loop.lo
            return many if times.is_const else (Branch(times, Index.of(self.least), (loop,), many),)

        body = replace_loop(kernel.body, self.outside, visit)
        # What lies outside of a window is left out only where the other factor is finite.
        finite = is_finite(taken, lambda value: kernel.buffer(value).finite)
        layout = dense(self.loops, extents)
        prepared = Buffer(name, taken.dtype, layout, Space.STACK, finite=finite)
        return replace(kernel, body=body, locals=(*kernel.locals, prepared))

    def _taken(self, around: Loop, others: set[str]) -> Expr:
        """The one expression to compute before."""
        found: dict[Expr, None] = {}
        for s in walk_stmts((around,)):
            if isinstance(s, Update):
                for e in s.elements:
                    whole = computed_of(e, self.buffer, others)
                    if whole is not None:
                        found[whole] = None
        written = {s.target.buffer for s in walk_stmts((around,)) if isinstance(s, Assign)}
        changed = [r.value for e in found for r in reads(e) if r.value in written]
        if changed:
            raise NotApplicable(f"%{changed[0]} is written in {around.var}")
        if len(found) != 1:
            raise NotApplicable(f"{len(found)} expressions are made of %{self.buffer}, not one")
        return next(iter(found))


def computed_of(e: Expr, buffer: str, others: AbstractSet[str]) -> Expr | None:
    """The largest expression in `e` that is made of a buffer and depends on no loop of `others`.

    None if there is none.
    """
    for x in walk(e):
        if not index_names(x) & others and any(r.value == buffer for r in reads(x)):
            return x
    return None
