"""Loops that go through memory in rows: one that goes through a row again becomes two."""

from __future__ import annotations

from collections.abc import Iterator

from rutc.tensor_ir.indices.affine import FloorDiv, Index, Mod, Range
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import reads_in
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
        for c in _coordinates(kernel):
            period = _period(c, loop.var)
            if period and machine.width <= period < extent and extent % period == 0:
                return Split(loop.var, period)
    return None


def row_of(kernel: Kernel, var: str) -> int | None:
    """Iterations of a loop until one of the reads that it goes through is in the next row.

    %x[i=p // 20, j=p % 20]  ->  20 of p

    Of several such numbers it is the least; None where all reads go on as before.
    """
    return min((n for c in _coordinates(kernel) for n in _rows(c, var)), default=None)


def outside_alike(kernel: Kernel, shape: Shape, var: str, lanes: int) -> bool:
    """Whether iterations of a loop read outside of buffers, the same ones in all blocks of so many.

    %x[j=p % 20 + k - 1 else 0.0]   ->   80 of p do, whichever they are
    """
    tested = False
    block, lane = f"{var}.o", f"{var}.i"
    ranges: dict[str, Range] = {
        **dict(kernel.symbols),
        **{v: (0, n - 1) for v, n in shape.extents.items()},
        lane: (0, lanes - 1),
    }
    place = {var: Index.of(block) * lanes + Index.of(lane)}
    for r in reads_in(kernel.body):
        layout = kernel.buffer(r.value).layout
        for d, c in r.coords:
            if r.fill is None or not isinstance(c, Index) or var not in c.names():
                continue
            if layout.holds(d, r.fill, c, c, ranges):
                continue
            tested = True
            if block in c.subs(place).simplify(ranges).names():
                return False
    return tested


def _coordinates(kernel: Kernel) -> Iterator[Index]:
    """Where a kernel reads, as far as no data decide that."""
    for r in reads_in(kernel.body):
        yield from (c for _, c in r.coords if isinstance(c, Index))


def _rows(c: Index, var: str) -> Iterator[int]:
    """q of all `(var + ...) // q` and `(var + ...) % q` in a coordinate."""
    for mono, _ in c.terms:
        for atom in mono:
            if isinstance(atom, FloorDiv | Mod):
                num, den = atom.operands
                if den.is_const and num.coefficient(var) == 1:
                    yield den.value
                yield from _rows(num, var)


def _period(c: Index, var: str) -> int | None:
    """q of a coordinate `(var + ...) % q`."""
    for mono, _ in c.terms:
        match mono:
            case (Mod(num, den),) if den.is_const and num.coefficient(var) == 1:
                return den.value
            case _:
                continue
    return None
