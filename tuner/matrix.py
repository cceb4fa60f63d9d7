"""The schedule of 8-bit products for processors with matrix registers."""

from __future__ import annotations

from collections.abc import Mapping

from rutc.tensor_ir.affine import Index, Range
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.kernel import Kernel, Loop, walk_stmts
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.products import narrow_factors
from rutc.tensor_ir.steps import MatrixTile, Overlap, Reorder, Split, Step
from rutc.tuner.access import Shape, Touch, dim_of_loop
from rutc.tuner.choice import Choice, shared_out
from rutc.tuner.dot import dot_packing

ROWS = 16
COLUMNS = 16
GROUP = 4
LENGTH = 64
"""Products of one row and column in one instruction."""
SHORTEST = 32
"""Fewer are not worth the loads."""
FEWEST_ROWS = 4


def matrix(
    kernel: Kernel, shape: Shape, machine: Machine, constants: frozenset[str]
) -> Choice | None:
    """Two by two blocks of sums where one operand is a constant; None where they do not fit."""
    if not machine.has_matrices or len(shape.reductions) != 1 or shape.symbolic:
        return None
    (r,) = shape.reductions
    operands = narrow_factors(r.update)
    if operands is None or len(r.reads) != 2 or any(t.gathered for t in r.reads):
        return None
    right = next((t for t in r.reads if t.packed), None)
    left = next((t for t in r.reads if not t.packed), None)
    if right is None or left is None or right.buffer not in constants:
        return None
    row, column, inner = _loops(shape, left, right, [x.var for x in r.loops])
    if row is None or column is None or inner is None:
        return None
    read = next(o for o in operands if o.value == left.buffer)
    if not _is_inside(kernel, read, _ranges(kernel)):
        return None
    extents = shape.extents
    length = _length(extents[inner])
    if length is None:
        return None
    count = -(-extents[row] // ROWS)
    count += count % 2 if count > 1 else 0
    rows = -(-extents[row] // count)
    tall = 2 if count % 2 == 0 else 1
    blocks = -(-extents[column] // COLUMNS)
    wide = next(f for f in (2, 3, 1) if blocks % f == 0)
    others = [x.var for x in shape.shared if x.var not in (row, column)]
    order = [*others, f"{column}.o.o", f"{row}.o.o"]
    bound = [*(x.var for x in r.loops if x.var != inner), inner]
    steps: list[Step] = [
        Split(row, rows),
        *([Overlap((f"{row}.o",))] if extents[row] % rows else []),
        Split(f"{row}.o", tall),
        Split(column, COLUMNS),
        Split(f"{column}.o", wide),
        Reorder((*order, f"{row}.o.i", f"{column}.o.i", f"{row}.i", f"{column}.i")),
    ]
    if bound != [x.var for x in r.loops]:
        steps.append(Reorder(tuple(bound)))
    steps.append(Split(inner, length))
    steps += shared_out(order, shape, machine)
    tiles = (f"{row}.o.i", f"{column}.o.i")
    steps.append(MatrixTile(tiles, f"{row}.i", f"{column}.i", f"{inner}.i"))
    of_loop = dim_of_loop(kernel, right.buffer)
    dims = [d for d, _ in kernel.buffer(right.buffer).layout.extents]
    inside = [of_loop[v] for v in bound if v in of_loop]
    packing = dot_packing(dims, inside, of_loop[column], COLUMNS, GROUP)
    return Choice(tuple(steps), {right.buffer: packing})


def _loops(
    shape: Shape, left: Touch, right: Touch, bound: list[str]
) -> tuple[str | None, str | None, str | None]:
    """(rows, columns, products): the loops of a block; None for one that there is not."""
    shared = [x.var for x in shape.shared]
    rows = [v for v in shared if left.strides.get(v) and not right.depends(v)]
    columns = [v for v in shared if right.strides.get(v) == 1 and not left.depends(v)]
    inner = [v for v in bound if left.unit(v) and right.strides.get(v) == 1]
    row = max(rows, key=lambda v: _used(shape.extents[v]), default=None)
    if row is not None and shape.extents[row] < FEWEST_ROWS:
        row = None
    column = max(columns, key=lambda v: shape.extents[v], default=None)
    return row, column, max(inner, key=lambda v: shape.extents[v], default=None)


def _used(extent: int) -> tuple[float, int]:
    """The share of the registers' rows that a loop fills, and its extent."""
    count = -(-extent // ROWS)
    return round(extent / (count * ROWS), 1), extent


def _length(extent: int) -> int | None:
    """Products at a time: the longest that divides the loop."""
    for n in range(min(extent, LENGTH) // GROUP * GROUP, SHORTEST - 1, -GROUP):
        if extent % n == 0:
            return n
    return None


def _ranges(kernel: Kernel) -> dict[str, Range]:
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, Loop)]
    return {x.var: (x.lo.value, max(x.hi.value - 1, x.lo.value)) for x in loops}


def _is_inside(kernel: Kernel, r: Read, ranges: Mapping[str, Range]) -> bool:
    """Whether a read never leaves its buffer, or stays within the halo of its own fill."""
    if r.fill is None:
        return True
    layout = kernel.buffer(r.value).layout
    extents = dict(layout.extents)
    own = layout.fill == r.fill
    for d, c in r.coords:
        bounds = c.bounds(ranges) if isinstance(c, Index) else None
        if bounds is None:
            return False
        before, after = (x.get(d, 0) if own else 0 for x in (layout.before, layout.after))
        if bounds[0] < -before or bounds[1] > Index.of(extents[d]).value - 1 + after:
            return False
    return True
