"""The schedule of sums of products of narrow numbers for processors with matrix registers."""

from __future__ import annotations

from collections.abc import Mapping

from rutc.base.record import record
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.kernel import Kernel, Kind, Loop, walk_stmts
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.products import terms_of
from rutc.tensor_ir.steps import Balance, MatrixTile, PrefetchBlock, Reorder, Split, Step
from rutc.tuner.access import Shape, Touch, dim_of_loop
from rutc.tuner.blocking import comes_from_afar
from rutc.tuner.choice import Choice, shared_out
from rutc.tuner.dot import dot_packing

ROWS = 16
COLUMNS = 16
GROUP_BYTES = 4
ROW_BYTES = 64
"""Of the products of one row and column in one instruction."""
SHORTEST_BYTES = 32
"""Fewer are not worth the loads."""
FEWEST_ROWS = 4


@record
class Block:
    """What registers hold: rows of `lefts`, columns of the constants `rights`, `length` products.

    `row`, `column` and `inner` are their loops.
    """

    lefts: list[Touch]
    rights: list[Touch]
    row: str
    column: str
    inner: str
    length: int


def matrix(
    kernel: Kernel, shape: Shape, machine: Machine, constants: frozenset[str]
) -> Choice | None:
    """Two by two blocks of sums where one operand is a constant; None where they do not fit."""
    block = _block(kernel, shape, machine, constants)
    if block is None:
        return None
    extents = shape.extents
    row, column, inner = block.row, block.column, block.inner
    left, right = block.lefts[0], block.rights[0]
    bounds = Index.of(shape.sizes[row]).bounds(dict(kernel.symbols))
    tall = 2 if bounds is None or bounds[1] > ROWS else 1
    blocks = -(-extents[column] // COLUMNS)
    others = [x.var for x in shape.shared if x.var not in (row, column)]
    # What the constant does not depend on passes by each of its panels.
    passing = [v for v in others if not right.depends(v)]
    even = [v for v in passing if v not in shape.symbolic and extents[v] % 2 == 0]
    pairs = [v for v in even if left.strides.get(v)]
    # Beside a single block of rows lies that of another loop.
    beside = pairs[0] if pairs and tall == 1 else None
    most = 2 if tall == 2 or beside is not None else 4
    wide = next(f for f in (most, 3, 2, 1) if blocks % f == 0)
    inside = [f"{v}.o" if v == beside else v for v in passing]
    order = [*(v for v in others if v not in passing), f"{column}.o.o", *inside, f"{row}.o.o"]
    single = [] if beside is None else [f"{row}.o.i"]
    tiles = (f"{row}.o.i" if beside is None else f"{beside}.i", f"{column}.o.i")
    steps: list[Step] = [
        Balance(row, ROWS, tall),
        Split(f"{row}.o", tall),
        *([Split(beside, 2)] if beside is not None else []),
        Split(column, COLUMNS),
        Split(f"{column}.o", wide),
        Reorder((*order, *single, *tiles, f"{row}.i", f"{column}.i")),
    ]
    own = [x.var for x in shape.reductions[0].loops]
    bound = [*(v for v in own if v != inner), inner]
    if bound != own:
        steps.append(Reorder(tuple(bound)))
    steps.append(Split(inner, block.length))
    steps += shared_out(order, shape, machine)
    stores = [t for t in shape.touches if t.is_store]
    results = _kind_of_rows(stores, row, column)
    if results is Kind.UNROLL and row in shape.symbolic and extents[column] % COLUMNS:
        results = Kind.SERIAL
    steps.append(MatrixTile(tiles, f"{row}.i", f"{column}.i", f"{inner}.i", results))
    packs = {}
    for t in block.rights:
        if blocks > wide and comes_from_afar(t, shape, machine):
            steps.append(PrefetchBlock(t.buffer, f"{column}.o.o", 0, machine.line_bytes // t.bytes))
        of_loop = dim_of_loop(kernel, t.buffer)
        dims = [d for d, _ in kernel.buffer(t.buffer).layout.extents]
        reduced = [of_loop[v] for v in bound if v in of_loop]
        group = GROUP_BYTES // t.bytes
        packs[t.buffer] = dot_packing(dims, reduced, of_loop[column], COLUMNS, group)
    return Choice(tuple(steps), packs)


def _kind_of_rows(stores: list[Touch], row: str, column: str) -> Kind:
    """What the loop over the rows of results becomes, which depends on how near they are."""
    if any(t.unit(row) and not t.unit(column) for t in stores):
        return Kind.UNROLL
    steps = [(t.strides.get(row) or 0, t.strides.get(column) or 0) for t in stores]
    return Kind.VECTOR if all(0 < a < b for a, b in steps) else Kind.SERIAL


def _block(
    kernel: Kernel, shape: Shape, machine: Machine, constants: frozenset[str]
) -> Block | None:
    """The operands and loops of the only reduction, if it sums products with constants."""
    if len(shape.reductions) != 1:
        return None
    (r,) = shape.reductions
    if any(x.var in shape.symbolic for x in r.loops):
        return None
    terms = terms_of(r.update.reducer, r.update.elements)
    if terms is None or any(t.gathered for t in r.reads):
        return None
    dtype = terms[0][0].dtype
    if not all(machine.has_matrices(x.dtype) for pair in terms for x in pair):
        return None
    lefts = [t for t in r.reads if t.buffer not in constants]
    rights = [t for t in r.reads if t.buffer in constants]
    if not _alike(lefts) or not _alike(rights):
        return None
    if any({p.value in constants, q.value in constants} != {True, False} for p, q in terms):
        return None
    row, column, inner = _loops(shape, lefts[0], rights[0], [x.var for x in r.loops])
    if row is None or column is None or inner is None:
        return None
    values = {x for pair in terms for x in pair if x.value not in constants}
    if not all(_is_inside(kernel, x) for x in values):
        return None
    length = _length(shape.extents[inner], dtype.bytes)
    return None if length is None else Block(lefts, rights, row, column, inner, length)


def _alike(touches: list[Touch]) -> bool:
    """Whether there are some, and all move alike."""
    return bool(touches) and all(t.strides == touches[0].strides for t in touches)


def _loops(
    shape: Shape, left: Touch, right: Touch, bound: list[str]
) -> tuple[str | None, str | None, str | None]:
    """(rows, columns, products): the loops of a block; None for one that there is not."""
    shared = [x.var for x in shape.shared]
    rows = [v for v in shared if left.strides.get(v) and not right.depends(v)]
    columns = [v for v in shared if right.strides.get(v) == 1 and not left.depends(v)]
    columns = [v for v in columns if v not in shape.symbolic]
    inner = [v for v in bound if left.unit(v) and right.strides.get(v) == 1]
    # Of loops that fill them alike, one along which results are neighbours; of those of any size,
    # one whose rows lie near each other.
    near = {v for v in rows if any(t.is_store and t.unit(v) for t in shape.touches)}

    def rank(v: str) -> tuple[float, int, int, bool]:
        apart = abs(left.strides[v] or 0) if v in shape.symbolic else 0
        return (*_used(shape.shared_extents[v]), -apart, v in near)

    row = max(rows, key=rank, default=None)
    if row is not None and shape.shared_extents[row] < FEWEST_ROWS:
        row = None
    column = max(columns, key=lambda v: shape.extents[v], default=None)
    return row, column, max(inner, key=lambda v: shape.extents[v], default=None)


def _used(extent: int) -> tuple[float, int]:
    """The share of the registers' rows that a loop fills, and its extent."""
    count = -(-extent // ROWS)
    return round(extent / (count * ROWS), 1), extent


def _length(extent: int, size: int) -> int | None:
    """Products at a time of factors of so many bytes: the longest that divides the loop."""
    group = GROUP_BYTES // size
    longest = min(extent, ROW_BYTES // size) // group * group
    for n in range(longest, SHORTEST_BYTES // size - 1, -group):
        if extent % n == 0:
            return n
    return None


def _is_inside(kernel: Kernel, r: Read) -> bool:
    """Whether a read never leaves its buffer, or stays within the halo of its own fill."""
    if r.fill is None:
        return True
    loops = {s.var: s for s in walk_stmts(kernel.body) if isinstance(s, Loop)}
    symbols = dict(kernel.symbols)
    layout = kernel.buffer(r.value).layout
    extents = dict(layout.extents)
    for d, c in r.coords:
        ends = _ends(c, loops) if isinstance(c, Index) else None
        if ends is None:
            return False
        before, after = layout.room(d, r.fill)
        first = (ends[0] + before).simplify(symbols).bounds(symbols)
        last = (ends[1] - extents[d] + 1 - after).simplify(symbols).bounds(symbols)
        if first is None or last is None or first[0] < 0 or last[1] > 0:
            return False
    return True


def _ends(c: Index, loops: Mapping[str, Loop]) -> tuple[Index, Index] | None:
    """The least and the greatest value of a coordinate; None where it is not linear in loops."""
    least, greatest = c, c
    for v in c.names() & loops.keys():
        step = c.coefficient(v)
        if step is None:
            return None
        low, high = loops[v].lo, loops[v].hi - 1
        least = least.subs({v: low if step > 0 else high})
        greatest = greatest.subs({v: high if step > 0 else low})
    return least, greatest
