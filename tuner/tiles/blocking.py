"""How long the blocks of loops are: rows for the second cache, and parts of the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, gcd, inf, prod

from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Assign, Init, Kernel, Space
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_stmts
from rutc.tensor_ir.steps.tile import MOST_EXACT
from rutc.tuner.access import Reduction, Shape, Touch
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cost import inside_shares
from rutc.tuner.tiles.tile_cycles import block_loop, busy_cycles
from rutc.tuner.tiles.tile_loads import evicted_rows
from rutc.tuner.tiles.tile_registers import state_registers
from rutc.tuner.tiles.tiles import even_tile


def goes_over_panels(shape: Shape, tile: RegisterTile, var: str) -> bool:
    """Whether a loop leads from panels of a packed vector operand to others.

    It goes around the loop over the blocks of the vector: panels are then read in the order in
    which they lie in memory, and what is asked for ahead is what is read next.
    """
    reads = [t for r in shape.reductions for t in r.reads]
    return any(t.packed and t.depends(tile.vector) and t.depends(var) for t in reads)


def whole_rows(kernel: Kernel, shape: Shape, tile: RegisterTile, machine: Machine) -> bool:
    """Whether tiles beside each other come before those of the next rows.

    Otherwise each panel, or what is stored beside a vector that is whole, goes over all rows, and
    stores a piece of every row after the lines that the piece begins in have left the cache, to
    more rows than any hardware foresees; or, where the vector is whole, to more than the sets of
    the first cache keep. It is worth while to read all panels from the second cache again for each
    tile, if arithmetic hides that; or from the last one, where tiles store no less than they read.
    """
    w, width = machine.coefficients.blocks, tile.vectors * machine.width
    panels = [t for r in shape.reductions for t in r.reads if t.depends(tile.vector)]
    step = sum(width * t.bytes for t in panels)
    busy = max(busy_cycles(r, tile.size, machine) for r in shape.reductions)
    read, stored = sum(t.buffer_bytes for t in panels), stored_bytes(kernel, shape)
    near, again = read <= machine.l2 // 2, _tiles_across(shape, tile, panels)
    rate = machine.bytes_again(read)
    if (
        any(t.gathered and not t.unit(tile.vector) for t in panels)
        or (again > 1 and step > w.busy * busy * rate)
        or (not near and (read > machine.l3 // 2 or read * again > stored))
    ):
        return False
    stores = [t for t in shape.touches if t.is_store]
    piece = w.few_lines * machine.line_bytes
    if any(not t.unit(tile.vector) or width * t.bytes > piece for t in stores):
        return False
    if stored > machine.l2 // 2 or width < shape.extents[tile.vector]:
        return stored > machine.l2 // 2
    rows = {v for v, _ in tile.rows}
    loops = (x.var for x in shape.shared if not rows.isdisjoint((x.var, f"{x.var}.i")))
    every = tuple((v, shape.extents[v]) for v in loops)
    return any(evicted_rows(t, every, machine) for t in stores)


def _tiles_across(shape: Shape, tile: RegisterTile, panels: Sequence[Touch]) -> int:
    """How many tiles read the same panel."""
    rows = dict(tile.rows)
    across = (x.var for x in shape.shared if not any(t.depends(x.var) for t in panels))
    return prod(-(-shape.extents[v] // rows.get(v, 1)) for v in across)


def stored_bytes(kernel: Kernel, shape: Shape) -> float:
    """The bytes that a kernel stores, at most; infinite where no bound is known."""
    symbols = dict(kernel.symbols)
    stored = 0.0
    for t in (t for t in shape.touches if t.is_store):
        most = (Index.of(shape.sizes[x.var]).bounds(symbols) for x in shape.shared)
        stored += t.bytes * prod(inf if m is None else m[1] for m in most)
    return stored


def batch_loops(shape: Shape, tile: RegisterTile) -> list[str]:
    """The loops between whose iterations no operand is used again: they go around all others."""
    tiled = {v for v, _ in tile.rows} | {tile.vector}
    reads = [t for r in shape.reductions for t in r.reads]
    return [
        x.var
        for x in shape.shared
        if x.var not in tiled and shape.extents[x.var] > 1 and all(t.depends(x.var) for t in reads)
    ]


def row_chunk(
    shape: Shape,
    tile: RegisterTile,
    batch: list[str],
    made: int,
    machine: Machine,
    part: float = 1.0,
) -> tuple[str, int] | None:
    """(loop, factor) by which to split rows; None where their operand is small as a whole.

    The part of the operand that goes with one factor stays in the second cache while all blocks
    of the vector pass by. All of it goes by anew for each iteration of the `batch` loops, and as
    many operations as are `made` of each element are done again. Where the reduction has blocks,
    `part` of each row is read at a time.
    """
    runs = prod(shape.extents[v] for v in batch)
    vector_blocks = -(-shape.extents[tile.vector] // (tile.vectors * machine.width))
    reads = [t for r in shape.reductions for t in r.reads if not t.depends(tile.vector)]
    size = sum(_bytes_read(t, shape) for t in reads) // runs
    if vector_blocks < 2 or size <= machine.l2 // 2:
        return None
    chunks = ceil(size * part / (machine.l2 // 2))
    passing = [
        (t.bytes, prod(shape.extents[v] for v in t.loops if t.depends(v) and v not in batch))
        for r in shape.reductions
        for t in r.reads
        if t.depends(tile.vector)
    ]
    # Operations count as what the second cache gives meanwhile.
    each = made / machine.fma_per_cycle / machine.width * machine.l2_bytes_per_cycle
    streamed = sum(b * n for b, n in passing) + each * max((n for _, n in passing), default=0)
    # Every chunk reads the vector operand anew; without chunks every block reads the rows anew.
    if chunks * streamed >= vector_blocks * size or (made and _hides_rows(shape, tile, machine)):
        return None
    rows = [x.var for x in shape.shared if x.var != tile.vector]
    rows = [v for v in rows if all(t.depends(v) for t in reads) and shape.extents[v] > 1]
    rows = [v for v in rows if v not in shape.symbolic and v not in batch]
    if not rows:
        return None
    factors = dict(tile.rows)
    v = max(rows, key=lambda x: max(abs(t.strides.get(x) or 0) for t in reads))
    extent = shape.extents[v]
    most = max(extent // chunks, factors.get(v, 1))
    for f in range(most, most // 2, -1):
        if extent % f == 0 and f < extent:
            return v, f
    return None


def _hides_rows(shape: Shape, tile: RegisterTile, machine: Machine) -> bool:
    """Whether arithmetic hides that rows come from the last cache for each block of the vector.

    What is made of that block stays in the second one beside the rows of a tile.
    """
    (r,) = shape.reductions
    rows = [t for t in r.reads if not t.depends(tile.vector)]
    step = sum(t.bytes * prod(f for v, f in tile.rows if t.depends(v)) for t in rows)
    made = sum(t.bytes for t in r.update.reducer.state) * tile.vectors * machine.width
    kept = (step + made) * prod(shape.extents[x.var] for x in r.loops)
    if kept > machine.l2 // 2 or sum(t.buffer_bytes for t in rows) > machine.l3 // 2:
        return False
    rate = machine.coefficients.blocks.busy * machine.l3_bytes_per_cycle
    return step <= rate * busy_cycles(r, tile.size, machine)


def _bytes_read(t: Touch, shape: Shape) -> int:
    """The bytes that a kernel reads of a buffer: of every second pixel, half."""
    return min(t.buffer_bytes, t.bytes * prod(shape.extents[v] for v in t.loops if t.depends(v)))


def with_even_rows(
    shape: Shape, tile: RegisterTile, var: str, chunk: int, machine: Machine
) -> RegisterTile | None:
    """The tile, its rows along `var` so many that chunks of that loop consist of whole tiles.

    Blocks of a packed operand must not begin in one chunk and end in the next. Fewer rows may take
    more vectors. None where that costs far more.
    """
    if not any(t.packed and t.depends(var) for r in shape.reductions for t in r.reads):
        return tile
    even = even_tile(shape, tile, var, chunk, machine)
    return even if even.cost <= machine.coefficients.tiles.uneven * tile.cost else None


def takes_one_more(shape: Shape, tile: RegisterTile, var: str, machine: Machine) -> bool:
    """Whether the registers hold a tile of one more row along `var`, which has code of its own.

    The last block may then take the only row of a block that is saved, and with it one more pass
    over the vector operand. That one comes from the first cache where the reduction has blocks. No
    block has a single row where all numbers of rows, and those of blocks, are even, or in threes.
    """
    total, factor = Index.of(shape.sizes[var]), dict(tile.rows)[var]
    if gcd(factor, total.const, *(c for _, c in total.terms)) > 1:
        return False
    more = factor + 1
    rows = tuple((v, more if v == var else f) for v, f in tile.rows)
    size = tile.vectors * prod(f for _, f in rows) * max(map(state_registers, shape.reductions))
    return more <= MOST_EXACT and size + tile.vectors + 1 <= machine.registers


def reduction_block(
    kernel: Kernel, shape: Shape, tile: RegisterTile, bound: list[str], machine: Machine
) -> tuple[int, str] | None:
    """(length, holder of the sums): how much of the reduction's `block_loop` to do at a time.

    The vector operand's part then stays in the first cache while tiles use it again, and so do the
    lines of which each tile uses a part only. None where all of it fits, or where so many tiles
    use it that waiting for it does not show. With rows that a run counts, which may be many, it
    stays in the second cache if arithmetic hides that: sums are then kept between few blocks.
    """
    if not _has_blocks(shape, tile, bound):
        return None
    reduction = shape.reductions[0]
    partial = _partial(shape)
    blocked = block_loop(shape, bound, tile.inside)
    turn, around = _panel_turn(shape, tile, blocked, machine)
    step, w, extent = turn / around, machine.coefficients.blocks, shape.extents[blocked]
    lines = _shared_lines(reduction, tile, blocked, machine.line_bytes)
    busy = busy_cycles(reduction, tile.size, machine)
    if lines and step + lines > w.busy * busy * machine.l2_bytes_per_cycle:
        length = _even_block(extent, int(machine.l1 * w.panel / (turn + lines * around)))
        return None if length is None else (length, partial)
    output = sole_output(kernel)
    if output is None:
        return None
    tiles = _tiles(shape, tile, {})
    if turn * extent < machine.l2 // 8 or tiles > w.few_tiles:
        return None
    near = step <= w.busy * busy * machine.l2_bytes_per_cycle
    if near and any(shape.may_exceed(v, f) for v, f in tile.rows):
        length = _even_block(extent, int(machine.l2 * w.second / max(turn, 1))) or extent
    else:
        length = _panel_block(shape, tile, blocked, machine)
    # Lanes that lie apart in the output are put there once, not after each block.
    apart = any(t.is_store and not t.unit(tile.vector) for t in shape.touches)
    return None if length is None else (length, partial if apart else output)


def chunk_block(
    shape: Shape, tile: RegisterTile, bound: list[str], chunk: tuple[str, int], machine: Machine
) -> tuple[int, str] | None:
    """(length, holder of the sums): the block of a reduction so long that chunks of rows are short.

    A panel of the vector operand is then read from far away for a few tiles only. With blocks, the
    first cache keeps a part of it and the second one a part of more rows. None for longer chunks,
    for sums over windows, whose elements are read again and again anyway, and where the vectors of
    a panel do not lie together.
    """
    tiles = _tiles(shape, tile, dict([chunk]))
    if tiles >= machine.coefficients.blocks.reuse or not _has_blocks(shape, tile, bound):
        return None
    vectors = [t for t in shape.reductions[0].reads if t.depends(tile.vector)]
    if any(shape.extents[v] > 1 for v in bound[:-1]) or not all(t.packed for t in vectors):
        return None
    length = _panel_block(shape, tile, bound[-1], machine)
    return None if length is None else (length, _partial(shape))


def _tiles(shape: Shape, tile: RegisterTile, chunk: Mapping[str, int]) -> int:
    """The tiles that use the same vectors, of as many iterations as the loops in `chunk` have.

    Tiles along rows that a run counts are taken a few at a time, and may be few.
    """
    rows, extents = dict(tile.rows), {**shape.extents, **chunk}
    others = [x.var for x in shape.shared if x.var != tile.vector]
    counted = [v for v in others if v not in rows or not shape.may_exceed(v, rows[v])]
    return prod(-(-extents[v] // rows.get(v, 1)) for v in counted)


def _has_blocks(shape: Shape, tile: RegisterTile, bound: list[str]) -> bool:
    """Whether sums may be kept between blocks of the only reduction."""
    if len(shape.reductions) != 1 or not tile.rows:
        return False
    if block_loop(shape, bound, tile.inside) in shape.symbolic:
        return False
    return len(shape.reductions[0].update.states) == 1


def _partial(shape: Shape) -> str:
    """The name of the buffer that keeps sums between blocks."""
    return f"{shape.reductions[0].update.states[0].buffer}.partial"


def _panel_turn(
    shape: Shape, tile: RegisterTile, blocked: str, machine: Machine
) -> tuple[float, int]:
    """(bytes of the vector operand that an iteration of the `blocked` loop reads, turns in it).

    What is the same for all turns of a loop, as the scale of some weights, is read once for them.
    """
    (reduction,) = shape.reductions
    width = tile.vectors * machine.width
    sizes = {**dict(tile.rows), tile.vector: width}
    shares = inside_shares(shape, sizes) if tile.inside else {}
    turns = {x.var: shape.extents[x.var] * shares.get(x.var, 1.0) for x in reduction.loops}
    turns[blocked] = 1.0
    read = 0.0
    for t in (t for t in reduction.reads if t.depends(tile.vector)):
        own = ceil(prod(n for v, n in turns.items() if t.depends(v)))
        once = 1 if t.depends(blocked) else shape.extents[blocked]
        read += width * t.bytes / (2 if t.nibbles else 1) * own / once
    return read, ceil(prod(turns.values()))


def _panel_block(shape: Shape, tile: RegisterTile, blocked: str, machine: Machine) -> int | None:
    """How much of a reduction's vector operand the first cache holds; None where it holds all.

    More where the other operand is read in pieces of rows: the hardware asks ahead for long ones.
    """
    w = machine.coefficients.blocks
    turn, around = _panel_turn(shape, tile, blocked, machine)
    most = int(machine.l1 * w.panel / max(turn, 1))
    if around > 1:
        rows = [t for t in shape.reductions[0].reads if not t.depends(tile.vector)]
        pieces = (t.bytes for t in rows if t.strides.get(blocked) == 1)
        most = max(most, w.piece_lines * machine.line_bytes // max(pieces, default=machine.l1))
    return _even_block(shape.extents[blocked], most)


def counted_rows(shape: Shape, tile: RegisterTile, bound: list[str]) -> bool:
    """Whether a run counts the rows of tiles, which it may then take a few tiles at a time."""
    counted = any(v in shape.symbolic for v, _ in tile.rows)
    return counted and _has_blocks(shape, tile, bound)


def tiles_at_once(shape: Shape, tile: RegisterTile, machine: Machine) -> int:
    """The tiles, one below the other, of whose rows the second cache holds all that is moved.

    They are no fewer than hide what it takes to load the vector operand once more for others.
    """
    rows = dict(tile.rows)
    taken = sum(
        prod(rows.get(v, shape.extents[v]) for v in t.strides if t.depends(v)) * t.bytes
        for r in shape.reductions
        for t in r.reads
        if not t.depends(tile.vector)
    )
    taken += sum(
        t.bytes
        * prod(rows.get(x.var, shape.extents[x.var]) for x in shape.shared if t.depends(x.var))
        for t in shape.touches
        if t.is_store
    )
    return max(machine.l2 // 2 // max(taken, 1), machine.coefficients.blocks.few_tiles)


def _even_block(extent: int, most: int) -> int | None:
    """The longest of about equal blocks of a loop; None for one block, or very short ones."""
    if most >= extent or most < 4:
        return None
    even = -(-extent // -(-extent // most))
    for b in range(even, max(even // 2, 4), -1):
        if extent % b == 0:
            return b
    return even


def _shared_lines(r: Reduction, tile: RegisterTile, inner: str, line: int) -> int:
    """Bytes of lines that a step reads of rows, while the tiles beside read the rest of them.

    They are those of rows near each other, where every step goes on to other lines. A line has so
    many bytes.
    """
    found = 0
    for t in r.reads:
        if t.packed or t.gathered or t.depends(tile.vector):
            continue
        if abs(t.strides.get(inner) or 0) * t.bytes < line:
            continue
        for v, f in tile.rows:
            step = abs(t.strides.get(v) or 0) * t.bytes
            if 0 < step < line:
                found += line + (f - 1) * step
    return found


def sole_output(kernel: Kernel) -> str | None:
    """The only buffer that the kernel stores to, if it can hold the only reduction's state."""
    stored = [
        kernel.buffer(s.target.buffer)
        for s in walk_stmts(kernel.body)
        if isinstance(s, Assign) and kernel.buffer(s.target.buffer).space is Space.MEMORY
    ]
    states = [s.reducer.state for s in walk_stmts(kernel.body) if isinstance(s, Init)]
    if len(stored) != 1 or states != [(stored[0].dtype,)]:
        return None
    return stored[0].name
