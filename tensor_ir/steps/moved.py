"""Iterations of a block that begin earlier than in whole blocks."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.expr import Coord
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Kernel, Stmt
from rutc.tensor_ir.statements import rewrite
from rutc.tensor_ir.steps.step import with_index

Coords = tuple[tuple[str, Coord], ...]


@record
class Moved:
    """How far the iterations i of a block's loop move: f*v + i in the block v.

    Where a coordinate of one of `locals` is i alone, it is a place in the block, as partial sums
    of every block have one: it stays.
    """

    by: Index
    locals: AbstractSet[str]

    @staticmethod
    def of(kernel: Kernel, by: Index) -> Moved:
        """Iterations of a kernel that move so far."""
        return Moved(by, frozenset(b.name for b in kernel.locals))

    def body(self, body: tuple[Stmt, ...], var: str) -> tuple[Stmt, ...]:
        """What the loop `var` does, moved."""
        still = f"{var}.still"

        def stay(buffer: str, coords: Coords) -> Coords:
            if buffer not in self.locals:
                return coords
            return tuple((d, Index.of(still) if _is_of(c, var) else c) for d, c in coords)

        held = rewrite(
            body,
            read=lambda r: r.at(stay(r.value, r.coords)),
            access=lambda a: replace(a, coords=stay(a.buffer, a.coords)),
        )
        moved = with_index(held, {var: Index.of(var) + self.by})
        return with_index(moved, {still: Index.of(var)})


def _is_of(c: Coord, var: str) -> bool:
    return isinstance(c, Index) and c.as_var == var
