"""The schedule of sums of products of narrow numbers for processors with matrix registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations

from rutc.base.record import record
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.facts.matrix_blocks import COLUMNS, GROUP_BYTES, ROWS, products_at_a_time
from rutc.tensor_ir.facts.products import terms_of
from rutc.tensor_ir.indices.affine import ZERO, Index
from rutc.tensor_ir.kernel import Kernel, Kind, Loop
from rutc.tensor_ir.machine import FEWEST_LANES, Machine
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import (
    Balance,
    MatrixTile,
    NotApplicable,
    Pack,
    PrefetchBlock,
    Reorder,
    Split,
    Step,
)
from rutc.tuner.access import Shape, Touch
from rutc.tuner.choice import Choice, shared_counts, shared_out, shared_text, worth_sharing
from rutc.tuner.dot import dot_packing
from rutc.tuner.space import Axis, Default, Template
from rutc.tuner.tiles.blocking import stored_bytes
from rutc.tuner.tiles.packing import dim_of_loop, packed
from rutc.tuner.tiles.tile_prefetch import comes_from_afar

MOST_BLOCKS = 6
"""Registers for sums, of eight: both operands need one."""
ABREAST = (1, 2, 3, 4, 5, 6)
"""Blocks of rows, or of columns, side by side."""
MOST_PERMUTED = 4
HELD = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Steps of rows at a time that are tried."""


@record
class Blocks:
    """The parameters of a matrix schedule: any that fit the kernel compute the same.

    Registers hold `height` sums at most along the loop `row`, and some along `column`, of `length`
    products along `inner` at a time. There are `tall` blocks of rows by `wide` of columns, or by
    the blocks of two iterations of the loop `beside`. The loops around are taken in this `order`,
    the outermost first; threads share the first `parallel` ones, or all. With `held`, all is done
    for so many steps of the loop over rows before the next ones: the second cache holds theirs.
    `results` is the kind of the loop over rows in what follows the sums. The next panels of the
    constants `prefetch` are asked for.
    """

    row: str
    column: str
    inner: str
    length: int
    height: int
    tall: int
    wide: int
    beside: str | None
    order: tuple[str, ...]
    results: Kind
    prefetch: tuple[str, ...] = ()
    parallel: int | None = 0
    held: int = 0

    def __str__(self) -> str:
        """What it has: `m x 16 x 2, n x 16 x 2, k x 64; in n m, results serial`."""
        said = [
            f"beside {self.beside}" if self.beside else "",
            f"in {' '.join(self.order)}",
            f"{self.held} steps of rows at a time" if self.held else "",
            f"results {self.results.value}",
            f"asks for {' '.join(self.prefetch)}" if self.prefetch else "",
            shared_text(self.parallel),
        ]
        return (
            f"{self.row} x {self.height} x {self.tall}, {self.column} x {COLUMNS} x {self.wide}, "
            f"{self.inner} x {self.length}; {', '.join(filter(None, said))}"
        )


@record
class Operands:
    """What is multiplied: `lefts` have the rows, `rights` the columns.

    These are constants, or a value that lies as registers take it.
    """

    lefts: list[Touch]
    rights: list[Touch]
    bytes: int
    """Of a factor."""


def matrix(kernel: Kernel, shape: Shape, point: Blocks, machine: Machine) -> Choice:
    """Blocks of sums in matrix registers.

    Raises:
        NotApplicable: the parameters do not fit the kernel.
    """
    operands = _operands(kernel, shape, machine)
    if operands is None:
        raise NotApplicable("no products of constants that matrix registers take")
    _check(shape, operands, point)
    row, column, inner, beside = point.row, point.column, point.inner, point.beside
    own = [x.var for x in shape.reductions[0].loops]
    outer = {row: f"{row}.o.o", column: f"{column}.o.o"}
    outer |= {} if beside is None else {beside: f"{beside}.o"}
    order = [outer.get(v, v) for v in point.order]
    holding: list[Step] = []
    if point.held:
        holding = [Split(outer[row], point.held)]
        order = [f"{outer[row]}.o", *(f"{v}.i" if v == outer[row] else v for v in order)]
    single = [] if beside is None else [f"{row}.o.i"]
    tiles = (f"{row}.o.i" if beside is None else f"{beside}.i", f"{column}.o.i")
    steps: list[Step] = [
        Balance(row, point.height, point.tall),
        Split(f"{row}.o", point.tall),
        *holding,
        *([Split(beside, 2)] if beside is not None else []),
        Split(column, COLUMNS),
        Split(f"{column}.o", point.wide),
        Reorder((*order, *single, *tiles, f"{row}.i", f"{column}.i")),
    ]
    bound = [*(v for v in own if v != inner), inner]
    if bound != own:
        steps.append(Reorder(tuple(bound)))
    steps.append(Split(inner, point.length))
    steps += shared_out(order, point.parallel)
    steps.append(MatrixTile(tiles, f"{row}.i", f"{column}.i", f"{inner}.i", point.results))
    blocks, group = _blocks_along(shape, column), GROUP_BYTES // operands.bytes
    packs: dict[str, Pack] = {}
    for t in (t for t in operands.rights if t.packed):
        if blocks > point.wide and t.buffer in point.prefetch:
            steps.append(PrefetchBlock(t.buffer, f"{column}.o.o", 0, machine.line_bytes // t.bytes))
        if t.packable:
            of_loop = dim_of_loop(kernel, t.buffer)
            reduced = [of_loop[v] for v in bound if v in of_loop]
            b = kernel.buffer(t.buffer)
            packs[t.buffer] = dot_packing(b, reduced, of_loop[column], COLUMNS, group)
    return packed(packs, steps)


def _check(shape: Shape, operands: Operands, point: Blocks) -> None:
    """Checks that parameters fit a kernel.

    Raises:
        NotApplicable: they do not.
    """
    extents = shape.extents
    row, column, inner, beside = point.row, point.column, point.inner, point.beside
    rows, columns, inners = _loops(shape, operands, [x.var for x in shape.reductions[0].loops])
    if row not in rows or column not in columns or inner not in inners:
        raise NotApplicable(f"no blocks of {row} by {column} by {inner}")
    if extents[inner] % point.length or point.length % (GROUP_BYTES // operands.bytes):
        raise NotApplicable(f"{inner} is no whole number of {point.length} products")
    together = point.tall if beside is None else 2
    if point.wide not in _widths(shape, column) or together * point.wide > MOST_BLOCKS:
        raise NotApplicable(f"no {point.wide} blocks of columns side by side")
    others = [x.var for x in shape.shared if x.var not in (row, column)]
    if sorted(point.order) != sorted((*others, row, column)):
        raise NotApplicable(f"the loops around are {', '.join((*others, row, column))}")
    if beside is not None and (beside not in _pairs(shape, operands, others) or point.tall != 1):
        raise NotApplicable(f"blocks of {beside} do not lie beside each other")
    steps_of_rows = -(-extents[row] // (point.height * point.tall))
    if point.held and (row in shape.symbolic or steps_of_rows % point.held):
        raise NotApplicable(f"{row} is no whole number of {point.held} steps")


def _blocks_along(shape: Shape, column: str) -> int:
    """The blocks of columns, the last of which may be narrower."""
    return -(-shape.extents[column] // COLUMNS)


def _widths(shape: Shape, column: str) -> list[int]:
    """How many blocks of columns may be side by side: as many as fit each run."""
    if column in shape.symbolic:
        return [1]
    blocks = _blocks_along(shape, column)
    return [n for n in range(1, MOST_BLOCKS + 1) if blocks % n == 0]


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Blocks] | None:
    """Two by two blocks of sums where one operand is a constant; None where they do not fit."""
    operands = _operands(kernel, shape, machine)
    if operands is None:
        return None
    extents = shape.extents
    left, right = operands.lefts[0], operands.rights[0]
    rows, columns, inners = _loops(shape, operands, [x.var for x in shape.reductions[0].loops])
    # Of loops that fill them alike, one whose rows lie near each other.
    near = {v for v in rows if any(t.is_store and t.unit(v) for t in shape.touches)}

    def rank(v: str) -> tuple[float, int, int, bool]:
        return (*_used(shape.shared_extents[v]), -abs(left.strides[v] or 0), v in near)

    row = max(rows, key=rank, default=None)
    column = max(columns, key=lambda v: extents[v], default=None)
    inner = max(inners, key=lambda v: extents[v], default=None)
    fewest = FEWEST_LANES
    if row is None or column is None or inner is None or shape.shared_extents[row] < fewest:
        return None
    lengths = products_at_a_time(extents[inner], operands.bytes)
    if not lengths:
        return None
    bounds = Index.of(shape.sizes[row]).bounds(dict(kernel.symbols))
    tall = 2 if bounds is None or bounds[1] > ROWS else 1
    others = [x.var for x in shape.shared if x.var not in (row, column)]
    # What the constant does not depend on passes by each of its panels.
    passing = [v for v in others if not right.depends(v)]
    # Beside a single block of rows lies that of another loop.
    pairs = _pairs(shape, operands, others)
    beside = pairs[0] if pairs and tall == 1 else None
    wide = 2 if tall == 2 or beside is not None else 4
    stores = [t for t in shape.touches if t.is_store]
    results = _kind_of_rows(stores, row, column)
    # Along rows, results of one panel are stored in one piece.
    whole = results is not Kind.UNROLL and _whole_rows(kernel, shape, operands, machine)
    turns = (*passing, row, column) if whole else (column, *passing, row)
    order = (*(v for v in others if v not in passing), *turns)
    open_ = column in shape.symbolic or extents[column] % COLUMNS
    if results is Kind.UNROLL and row in shape.symbolic and open_:
        results = Kind.SERIAL
    widths = _widths(shape, column)
    waiting = [t.buffer for t in operands.rights if not whole and _waits(t, shape, machine)]
    point = Blocks(
        row=row,
        column=column,
        inner=inner,
        length=lengths[0],
        height=ROWS,
        tall=tall,
        wide=next(f for f in (wide, 3, 2, 1) if f in widths),
        beside=beside,
        order=order,
        results=results,
        prefetch=tuple(waiting),
        parallel=None if worth_sharing(shape, machine) else 0,
    )
    return Default(replace(point, held=_held(kernel, shape, operands, point, machine)))


def _whole_rows(kernel: Kernel, shape: Shape, operands: Operands, machine: Machine) -> bool:
    """Whether blocks of columns come before the next rows: the second cache keeps all constants.

    Otherwise each panel of constants goes over all rows, and results are touched in small pieces.
    What takes more, constants or rows and their results, is passed over once.
    """
    panels = sum(t.buffer_bytes for t in operands.rights)
    rows = sum(t.buffer_bytes for t in operands.lefts) + stored_bytes(kernel, shape)
    return panels <= machine.l2 // 4 and rows > panels


def _held(
    kernel: Kernel,
    shape: Shape,
    operands: Operands,
    point: Blocks,
    machine: Machine,
) -> int:
    """How many steps of rows the second cache holds beside panels, where it cannot hold all.

    While a panel of constants goes over them, it is there, as is the next one if it is asked for,
    and so are the results of both.
    """
    if point.row in shape.symbolic or point.order[0] != point.column:
        return 0
    steps = -(-shape.extents[point.row] // (point.height * point.tall))
    panels = -(-_blocks_along(shape, point.column) // point.wide)
    asked = sum(t.buffer_bytes for t in operands.rights if t.buffer in point.prefetch)
    room = machine.l2 - (sum(t.buffer_bytes for t in operands.rights) + asked) / panels
    rows = sum(t.buffer_bytes for t in operands.lefts) + stored_bytes(kernel, shape) / panels
    most = steps * room / rows
    if steps <= most:
        return 0
    return next((n for n in reversed(HELD) if steps % n == 0 and n <= most), 0)


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter."""
    operands = _operands(kernel, shape, machine)
    if operands is None:
        return {"row": ()}
    bound = [x.var for x in shape.reductions[0].loops]
    rows, columns, inners = _loops(shape, operands, bound)
    own = [x.var for x in shape.shared]
    orders = permutations(own) if len(own) <= MOST_PERMUTED else [tuple(own)]
    lengths = (n for v in inners for n in products_at_a_time(shape.extents[v], operands.bytes))
    prefetched = tuple(t.buffer for t in operands.rights if t.packed)
    return {
        "row": tuple(rows),
        "column": tuple(columns),
        "inner": tuple(inners),
        "length": tuple(dict.fromkeys(lengths)),
        "height": (ROWS, ROWS // 2),
        "tall": ABREAST,
        "wide": ABREAST,
        "beside": (None, *_pairs(shape, operands, own)),
        "order": tuple(orders),
        "results": (Kind.SERIAL, Kind.UNROLL, Kind.VECTOR),
        "prefetch": tuple(dict.fromkeys([(), prefetched])),
        "parallel": shared_counts(len(own), machine),
        "held": (0, *HELD),
    }


def _waits(t: Touch, shape: Shape, machine: Machine) -> bool:
    """Whether a constant is so large that products wait for it."""
    return t.packed and comes_from_afar(t, shape, machine)


def _kind_of_rows(stores: list[Touch], row: str, column: str) -> Kind:
    """What the loop over the rows of results becomes, which depends on how near they are."""
    if any(t.unit(row) and not t.unit(column) for t in stores):
        return Kind.UNROLL
    steps = [(t.strides.get(row) or 0, t.strides.get(column) or 0) for t in stores]
    return Kind.VECTOR if all(0 < a < b for a, b in steps) else Kind.SERIAL


def _operands(kernel: Kernel, shape: Shape, machine: Machine) -> Operands | None:
    """The operands of the only reduction, if it sums products that registers take."""
    if len(shape.reductions) != 1:
        return None
    (r,) = shape.reductions
    terms = terms_of(r.update.reducer, r.update.elements)
    if terms is None or any(t.gathered for t in r.reads):
        return None
    if not all(machine.has_matrices(x.dtype) for pair in terms for x in pair):
        return None
    packed = frozenset(t.buffer for t in r.reads if t.packable)
    rights = [t for t in r.reads if t.buffer in packed]
    if not packed and len(terms) == 1:
        rights = [t for x in terms[0] for t in _in_columns(kernel, x, r.reads)]
        packed = frozenset(t.buffer for t in rights)
    lefts = [t for t in r.reads if t.buffer not in packed]
    if not _alike(lefts) or not _alike(rights):
        return None
    if any({p.value in packed, q.value in packed} != {True, False} for p, q in terms):
        return None
    values = {x for pair in terms for x in pair if x.value not in packed}
    if not all(_is_inside(kernel, x) for x in values):
        return None
    return Operands(lefts, rights, terms[0][0].dtype.bytes)


def _in_columns(kernel: Kernel, r: Read, reads: Iterable[Touch]) -> Iterator[Touch]:
    """Yields what reads a value that lies as registers take it, as if it were a constant.

    %b[n/16, k/2, n % 16, k % 2]: its columns and products are those of the innermost blocks.
    """
    layout = kernel.buffer(r.value).layout
    group = GROUP_BYTES // r.dtype.bytes
    inside = tuple((a.extent, a.stride) for a in layout.axes[-2:])
    if r.fill is not None or inside != ((COLUMNS, group), (group, 1)) or layout.axes[-1].whole:
        return
    blocks = {a.dim: Index.of(a.extent).value for a in layout.axes[-2:]}
    strides: dict[str, int | None] = {}
    for d, c in r.coords:
        for v in c.names() if isinstance(c, Index) else ():
            whole = isinstance(c, Index) and d in blocks and (c - Index.of(v)) % blocks[d] == ZERO
            strides[v] = 1 if whole else None
    for t in reads:
        if t.buffer == r.value:
            yield replace(t, strides=strides, packed=False)


def _alike(touches: list[Touch]) -> bool:
    """Whether there are some, and all move alike."""
    return bool(touches) and all(t.strides == touches[0].strides for t in touches)


def _loops(
    shape: Shape, operands: Operands, bound: list[str]
) -> tuple[list[str], list[str], list[str]]:
    """The loops that may be those of (rows, columns, products) of a block."""
    left, right = operands.lefts[0], operands.rights[0]
    shared = [x.var for x in shape.shared]
    rows = [v for v in shared if left.strides.get(v) and not right.depends(v)]
    columns = [v for v in shared if right.strides.get(v) == 1 and not left.depends(v)]
    inners = [v for v in bound if left.unit(v) and right.strides.get(v) == 1]
    return rows, columns, [v for v in inners if v not in shape.symbolic]


def _pairs(shape: Shape, operands: Operands, loops: list[str]) -> list[str]:
    """Those of the loops of which two iterations, of which constants know nothing, are a block."""
    left, right = operands.lefts[0], operands.rights[0]
    even = [v for v in loops if v not in shape.symbolic and shape.extents[v] % 2 == 0]
    return [v for v in even if left.strides.get(v) and not right.depends(v)]


def _used(extent: int) -> tuple[float, int]:
    """The share of the registers' rows that a loop fills, and its extent."""
    count = -(-extent // ROWS)
    return round(extent / (count * ROWS), 1), extent


def _is_inside(kernel: Kernel, r: Read) -> bool:
    """Whether a read never leaves its buffer, or stays within the halo of its own fill."""
    if r.fill is None:
        return True
    loops = {s.var: s for s in walk_loops(kernel.body)}
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


MATRIX = Template("matrix", Blocks, axes, default, matrix)
