"""A loop that goes through memory again and again becomes two."""

from __future__ import annotations

from rutc.tensor_ir.affine import Index, Mod
from rutc.tensor_ir.expr import Read, walk
from rutc.tensor_ir.kernel import Kernel, exprs, walk_stmts
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Split
from rutc.tuner.access import Shape


def apart(kernel: Kernel, shape: Shape, machine: Machine) -> Split | None:
    """The step that splits the loop along which the store is contiguous where a read repeats.

    %y[i, j] = %x[i, j % 56], j of 168  ->  split(j, 56)

    None where no read does, or where the parts would be shorter than a vector.
    """
    stores = [t for t in shape.touches if t.is_store]
    for loop in shape.shared:
        extent = shape.sizes[loop.var]
        if not isinstance(extent, int) or not all(t.unit(loop.var) for t in stores):
            continue
        for s in walk_stmts(kernel.body):
            for r in (x for e in exprs(s) for x in walk(e) if isinstance(x, Read)):
                for _, c in r.coords:
                    period = _period(c, loop.var) if isinstance(c, Index) else None
                    if period and machine.width <= period < extent and extent % period == 0:
                        return Split(loop.var, period)
    return None


def _period(c: Index, var: str) -> int | None:
    """q of a coordinate `(var + ...) % q`."""
    for mono, _ in c.terms:
        match mono:
            case (Mod(num, den),) if den.is_const and num.coefficient(var) == 1:
                return den.value
            case _:
                continue
    return None
