"""The step that goes on with the states of a running reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import ZERO, Index
from rutc.tensor_ir.kernel import Assign, Init, Kernel, Kind, Loop, Stmt, Update
from rutc.tensor_ir.running import Prefix, running
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    find_loops,
    symbolic_extent,
    with_index,
    with_replaced,
)


@record
class Running(Step):
    """Go on with the states of the iteration before, where a reduction is a running one.

    for m in [0, n) { acc.init; for k in [0, n) { acc.update(x[m-k else 0]) }; o[m] = acc }
      ->  acc.init; for m in [0, n) { acc.update(x[m]); o[m] = acc }

    Where it reads x[m+k else 0], iterations are taken from the last one on.
    """

    var: str

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with one loop less. Raises NotApplicable where nothing else is the same."""

        def go_on(loop: Loop) -> tuple[Stmt, ...]:
            start, update, after = running_parts(loop.body)
            found = prefix_of(kernel, update, loop.body[1], (loop.var,))
            if found is None or loop.lo != ZERO:
                raise NotApplicable(f"the reduction is no running one along {loop.var}")
            inner: tuple[Stmt, ...] = (replace(update, elements=found.elements), *after)
            if found.back:
                inner = with_index(inner, {self.var: loop.hi - 1 - Index.of(self.var)})
            return (start, replace(loop, kind=Kind.SERIAL, body=inner))

        find_loops(kernel, self.var)
        return with_replaced(kernel, self.var, go_on)


def running_parts(body: tuple[Stmt, ...]) -> tuple[Init, Update, tuple[Assign, ...]]:
    """(start, update, what follows) of a reduction over one loop.

    Raises:
        NotApplicable: the statements are something else.
    """
    match body:
        case (Init() as start, Loop(body=(Update(lanes=None) as update,)), *after):
            stores = tuple(s for s in after if isinstance(s, Assign))
            if len(stores) == len(after):
                return start, update, stores
    raise NotApplicable("it holds no reduction over one loop, or more than that")


def prefix_of(
    kernel: Kernel, update: Update, reduction: Stmt, free: Sequence[str]
) -> Prefix | None:
    """What the reduction by a loop is where it is a running one along one of the free loops."""
    assert isinstance(reduction, Loop)
    if reduction.lo != ZERO:
        return None
    sizes = {b.name: dict(b.layout.extents) for b in (*kernel.args, *kernel.locals)}
    extents = {x.var: symbolic_extent(kernel, x) for x in walk_loops(kernel.body)}
    return running(
        update.reducer,
        update.elements,
        reduction.var,
        free,
        extents,
        dict(kernel.symbols),
        lambda r, d: sizes[r.value][d],
    )
