"""Register tiles: how many rows and vectors of an output to compute at once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import ceil, gcd, log2, prod

from rutc.base.record import record
from rutc.tensor_ir.machine import NEAR_STRIDES, PAIR, QUAD, Machine
from rutc.tensor_ir.steps.tile import MOST_EXACT
from rutc.tensor_ir.windows import FEW_STEPS, LEAST_GAIN, share_inside
from rutc.tuner.access import Reduction, Shape, Touch

LOAD_BITS = 512
"""A hidden load of so many bits costs twice what one of an element does."""
SPARE = 10
"""One register in so many is better left to the allocator."""
TIGHT = 0.03
"""Slow-down for every register that it is short of."""
LINE_BYTES = 64
LINES_ANEW = 0.5
"""Share of the rows' lines that the tile before has not left in the first cache."""
EVICTED_CYCLES = 10.0
"""What it costs to get a line from the second cache before it is written to."""
LOOP_CYCLES = 1.0
"""What a short loop costs that is not unrolled."""
TESTED = 2.0
"""Slow-down by tests of where a window is, as there is no halo: about as much work as products."""
LONGEST_UNROLLED = 16
MOST_VECTORS = 8
SHORTEST_ROW = 4
"""Rows of a tile along memory from which on vectors across it are transposed."""
TOGETHER = 5
"""How sharply the longer of the times that hide each other prevails."""
SPILL = 0.25
"""Slow-down for every register that does not exist."""
FAR = 0.008
"""Slow-down for every doubling of the bytes that a tile's rows lie apart."""
UNKNOWN = 0.25
"""Slow-down by rows that are a whole loop of symbolic extent, which may well have fewer."""
APART = 0.35
"""Cycles to find where a row lies whose distance from the one before is known in the run only."""
STREAM_SHARE = 0.2
"""Share of the second cache's transfer time that is not hidden behind arithmetic."""
LANE_LOAD = 1.3
"""Cycles per load, doubled, of reductions over lanes."""
LANE_STREAM_SHARE = 0.35
"""What `STREAM_SHARE` is, of reductions over lanes."""


@record
class RegisterTile:
    """`vectors` registers along the loop `vector`, for every point of the `rows` (loop, factor).

    The loops `inside` go over what lies inside of the values that they read.
    """

    vector: str
    vectors: int
    rows: tuple[tuple[str, int], ...]
    cost: float
    inside: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Registers that accumulate."""
        return self.vectors * prod(f for _, f in self.rows)


def choose_tile(shape: Shape, machine: Machine, *, tiles_only: bool = False) -> RegisterTile | None:
    """The cheapest tile by cycles per element; None where lanes of partial sums are cheaper.

    With `tiles_only` these are not thought of.
    """
    best: RegisterTile | None = None
    for v in _vector_loops(shape):
        for tile in _tiles(shape, v, machine):
            if best is None or tile.cost < best.cost:
                best = tile
    if best is None:
        return None
    return best if tiles_only or best.cost <= _lanes_cost(shape, machine) else None


def even_tile(
    shape: Shape, tile: RegisterTile, var: str, extent: int, machine: Machine
) -> RegisterTile:
    """The cheapest tile of rows along `var` that go evenly into `extent`, no more than now."""
    now = dict(tile.rows).get(var, 1)
    room = _room(shape, machine) // max(tile.size // (tile.vectors * now), 1)
    tiles = [
        _cost(
            shape,
            tile.vector,
            vectors,
            tuple((v, rows if v == var else f) for v, f in tile.rows),
            machine,
        )
        for rows in range(1, now + 1)
        if extent % rows == 0
        for vectors in range(1, max(room // rows, tile.vectors) + 1)
        if vectors <= MOST_VECTORS
    ]
    return min(tiles, key=lambda t: t.cost)


def _room(shape: Shape, machine: Machine) -> int:
    """Vectors of states that a tile may have."""
    held = max(product_registers(r, machine) for r in shape.reductions)
    return (machine.registers - 2 - held) // max(map(state_registers, shape.reductions))


def _vector_loops(shape: Shape) -> Iterator[str]:
    for x in shape.shared:
        if shape.extents[x.var] > 1:
            yield x.var


def _tiles(shape: Shape, vector: str, machine: Machine) -> Iterator[RegisterTile]:
    width = machine.width
    most = min(MOST_VECTORS, ceil(shape.extents[vector] / width))
    others = [
        x.var
        for x in shape.shared
        if x.var != vector and shape.extents[x.var] > 1 and _reuses(shape, x.var)
    ]
    room = _room(shape, machine)
    for vectors in range(1, most + 1):
        yield _cost(shape, vector, vectors, (), machine)
        for v in others:
            # Larger tiles do some rows twice where their number varies, in more code.
            most_rows = min(room // vectors, MOST_EXACT) if v in shape.symbolic else room // vectors
            for f in _factors(shape.extents[v], most_rows):
                yield _cost(shape, vector, vectors, ((v, f),), machine)
                if f != shape.extents[v] or v in shape.symbolic:
                    continue
                for w in others:
                    if w == v:
                        continue
                    for g in _factors(shape.extents[w], room // (vectors * f)):
                        yield _cost(shape, vector, vectors, ((w, g), (v, f)), machine)


def bound_order(shape: Shape, inside: Collection[str] = ()) -> list[str]:
    """Reduction loops, the one along which operands are nearest in memory innermost.

    Those `inside`, whose iterations are few and not known, go around the others.
    """
    names: dict[str, int] = {}
    for r in shape.reductions:
        for x in r.loops:
            strides = [abs(t.strides.get(x.var) or 0) for t in r.reads if not t.packed]
            names[x.var] = max(strides, default=0)
    return sorted(names, key=lambda v: (v not in inside, -names[v]))


def crowded(
    r: Reduction,
    vectors: int,
    rows: tuple[tuple[str, int], ...],
    inner: str,
    extent: int,
    machine: Machine,
) -> bool:
    """Whether no registers are left to unroll the reduction's loop `inner`.

    A step's loads are moved up among the arithmetic of the one before; and what a window reads
    again in a later step is kept: its every place until the row before has used it.
    """
    size = vectors * prod(f for _, f in rows)
    size += product_registers(r, machine)
    if size + vectors + 1 > machine.registers:
        return True
    kept = 0
    for v, f in rows:
        for t in r.reads:
            row, step = t.strides.get(v), t.strides.get(inner)
            if row and step and not t.packed and row % step == 0 and abs(row // step) < extent:
                kept = max(kept, f * abs(row // step))
    return size + vectors + kept > machine.registers


def state_registers(r: Reduction) -> int:
    """Registers that hold one vector of a reduction's states: two for 8 bytes a lane."""
    return sum(max(1, t.bytes // 4) for t in r.update.reducer.state)


def multiplications(r: Reduction, machine: Machine) -> int:
    """Multiplications of a step of a sum: pairs of sums are added up by a second one."""
    return r.together(machine) // PAIR if r.adds_apart(machine) else 1


def product_registers(r: Reduction, machine: Machine) -> int:
    """Registers that hold sums of products until they are added: as many as a cycle computes.

    Pairs of sums in 16 bits are multiplied by ones, which take another.
    """
    if not r.adds_apart(machine):
        return 0
    return ceil(machine.fma_per_cycle) + (r.together(machine) == QUAD)


def _reuses(shape: Shape, var: str) -> bool:
    """Whether rows along `var` share an operand."""
    return any(not t.depends(var) for r in shape.reductions for t in r.reads)


def _factors(extent: int, most: int) -> Iterator[int]:
    yield from range(2, min(extent, most) + 1)


def _cost(
    shape: Shape,
    vector: str,
    vectors: int,
    rows: tuple[tuple[str, int], ...],
    machine: Machine,
) -> RegisterTile:
    """The tile, at its cycles per element wanted, shorter tiles at the edges included."""
    whole = _cost_inside(shape, vector, vectors, rows, {}, machine)
    shares = inside_shares(shape, {**dict(rows), vector: vectors * machine.width})
    if not shares:
        return whole
    inside = _cost_inside(shape, vector, vectors, rows, shares, machine)
    return inside if inside.cost < LEAST_GAIN * whole.cost else whole


def inside_shares(shape: Shape, tile: Mapping[str, int]) -> dict[str, float]:
    """The share of their iterations that loops over windows do for tiles of such sizes.

    Loops that do all of theirs are left out, and so are those inside of no longer one.
    """
    shares: dict[str, float] = {}
    for r in shape.reductions:
        moved = {w.bound for w in r.windows}
        if (
            max((shape.extents[x.var] for x in r.loops if x.var not in moved), default=0)
            < FEW_STEPS
        ):
            continue
        for w in r.windows:
            turns, extent = shape.extents[w.bound], shape.extents[w.free]
            share = share_inside(w, turns, extent, tile.get(w.free, 1))
            if share < shares.get(w.bound, 1.0):
                shares[w.bound] = share
    return shares


def passed_inside(shape: Shape) -> frozenset[str]:
    """The free loops along which windows had better go over what is inside of their values.

    Each has to stay a loop of its own.
    """
    shares = inside_shares(shape, {})
    tested = {b for r in shape.reductions for b in r.tested}
    gain = {b for b, share in shares.items() if b in tested or share < LEAST_GAIN}
    return frozenset(w.free for r in shape.reductions for w in r.windows if w.bound in gain)


def _cost_inside(
    shape: Shape,
    vector: str,
    vectors: int,
    rows: tuple[tuple[str, int], ...],
    shares: Mapping[str, float],
    machine: Machine,
) -> RegisterTile:
    """The tile, its loops over windows doing such shares of their iterations."""
    lanes = machine.width
    pieces: list[tuple[float, int, tuple[tuple[str, int], ...]]] = [
        (count, chunk, ()) for count, chunk in _parts(-(-shape.extents[vector] // lanes), vectors)
    ]
    wanted, unknown = shape.extents[vector], 1.0
    for v, f in rows:
        extent = shape.extents[v]
        wanted *= extent
        if v in shape.symbolic:
            unknown *= 1 + UNKNOWN * f / extent
        parts = _parts(extent, f)
        pieces = [(n * m, k, (*done, (v, g))) for n, k, done in pieces for m, g in parts]
    known = shape.tile_cycles.setdefault(machine, {})
    cycles = 0.0
    for n, k, part in pieces:
        key = vector, k, part, tuple(shares.items())
        if key not in known:
            known[key] = _tile_cycles(shape, vector, k, part, shares, machine)
        cycles += n * known[key]
    if any(r.tested - shares.keys() for r in shape.reductions):
        cycles *= TESTED
    return RegisterTile(vector, vectors, rows, cycles * unknown / wanted, tuple(shares))


def _parts(extent: int, factor: int) -> list[tuple[int, int]]:
    """(number, size) of the tiles along a loop: whole ones, and a shorter one at the end.

    _parts(14, 4) == [(3, 4), (1, 2)]
    """
    whole, rest = divmod(extent, factor)
    return [(n, size) for n, size in ((whole, factor), (1, rest)) if n and size]


def _tile_cycles(
    shape: Shape,
    vector: str,
    vectors: int,
    rows: tuple[tuple[str, int], ...],
    shares: Mapping[str, float],
    machine: Machine,
) -> float:
    """Cycles of one tile: its reductions and what follows them.

    Loops do such `shares` of their iterations, or all.
    """
    width = machine.width
    size = vectors * prod(f for _, f in rows)
    cycles = 0.0
    length = 0.0
    order = bound_order(shape, shares)
    inner = order[-1:]
    for r in shape.reductions:
        steps = prod(shape.extents[x.var] * shares.get(x.var, 1.0) for x in r.loops)
        apart = r.adds_apart(machine)
        if apart:
            steps = ceil(steps / r.together(machine))
        unrolled = {
            v: shape.extents[v]
            for v in inner
            if shape.extents[v] <= LONGEST_UNROLLED
            and v not in shape.symbolic
            and not crowded(r, vectors, rows, v, shape.extents[v], machine)
        }
        scalar_loads = sum(
            _loads(t, vector, vectors, rows, width, unrolled)
            for t in r.reads
            if not t.depends(vector)
        )
        vector_loads = sum(
            _loads(t, vector, vectors, rows, width, unrolled) for t in r.reads if t.depends(vector)
        )
        width_each = state_registers(r)
        wide = width_each / len(r.update.states)
        # Sums of pairs wait for an addition of integers only, which takes a cycle.
        latency = 1 if apart else machine.fma_latency
        work = max(
            _both(size * wide * multiplications(r, machine) / machine.fma_per_cycle, latency),
            vector_loads * wide / machine.loads_per_cycle
            + scalar_loads * wide / machine.scalar_loads_per_cycle,
        )
        work += machine.sort_cycles * _sorted(r, vector, vectors, rows) * wide
        loads = scalar_loads + (1 + machine.vector_bits / LOAD_BITS) * vector_loads
        work += machine.load_cycles * loads * wide
        work += _widened(r, vector, vectors, rows, machine)
        work += APART * sum(
            f
            for t in r.reads
            if not t.packed
            for v, f in rows
            if t.depends(v) and not isinstance(t.exact.get(v, 0), int)
        )
        # The vector operand streams past for every tile: from the second cache, unless it fits
        # the first beside the rows.
        panel = sum(
            _loads(t, vector, 1, rows, 1) * vectors * width * t.bytes
            for t in r.reads
            if t.depends(vector)
        )
        spread = max((_spread(t, r, machine) for t in r.reads if t.depends(vector)), default=1)
        if max(panel, spread) * steps > machine.l1 // 2:
            work += STREAM_SHARE * panel / machine.l2_bytes_per_cycle
        # So do the rows' lines, one after the other where the first cache does not hold them.
        lines = sum(
            _lines(t, r, shape, rows, order, machine) for t in r.reads if not t.depends(vector)
        )
        work += STREAM_SHARE * lines * LINE_BYTES / machine.l2_bytes_per_cycle
        # One operand's part of a step is held, the others pass by one at a time.
        held = min((_loads(t, vector, vectors, rows, width) for t in r.reads), default=0.0)
        registers = size * width_each + max(held, vectors) * wide + 1
        registers += product_registers(r, machine)
        spare = machine.registers - registers
        wanted = machine.registers // SPARE
        if spare < wanted:
            work *= 1 + TIGHT * (wanted - max(spare, 0))
        if spare < 0:
            work *= 1 - SPILL * spare
        for v in inner:
            turns = shape.extents[v]
            if turns <= LONGEST_UNROLLED and crowded(r, vectors, rows, v, turns, machine):
                work += LOOP_CYCLES / turns
        cycles += steps * work
        length += steps
    epilogue = [t for t in shape.touches if len(t.loops) == len(shape.shared)]
    for t in epilogue:
        stride = t.strides.get(vector, 0)
        each = 0.0 if stride == 0 else 1.0 if stride == 1 or t.packed else float(width)
        row = max((f for v, f in rows if t.unit(v)), default=1)
        if each > 1.0 and row >= SHORTEST_ROW:
            # Vectors across memory are transposed in squares, and stored row by row.
            each = 2.0 * width * ceil(row / width) / row
        cycles += each * size
        if not t.gathered:
            # Lines may be gone before they are written.
            along = () if stride == 1 else ((vector, vectors * width),)
            cycles += EVICTED_CYCLES * _evicted(t, (*rows, *along), machine, 1)
    cycles += 4.0 + 2 * len(rows)
    # Rows that lie far apart share cache sets and take more pages.
    far = [
        abs(t.strides.get(v) or 0) * t.bytes * (f - 1)
        for r in shape.reductions
        for t in r.reads
        if not t.packed
        for v, f in rows
    ]
    cycles *= 1 + FAR * log2(1 + max(far, default=0))
    return cycles


def _both(busy: float, latency: float) -> float:
    """Cycles of multiply-adds that keep their units busy for some, and wait for each other.

    A little more than the larger of the two: where they are about equal, neither hides the other.
    """
    return float((busy**TOGETHER + latency**TOGETHER) ** (1 / TOGETHER))


def _spread(t: Touch, r: Reduction, machine: Machine) -> int:
    """Bytes of the first cache that a step of the reduction takes, as its sets are not all used."""
    longest = max(r.loops, key=lambda x: abs(t.strides.get(x.var) or 0), default=None)
    stride = 0 if longest is None or t.packed else t.strides.get(longest.var) or 0
    return gcd(stride * t.bytes, machine.l1_way_bytes) if stride else 1


def _lines(
    t: Touch,
    r: Reduction,
    shape: Shape,
    rows: tuple[tuple[str, int], ...],
    order: list[str],
    machine: Machine,
) -> float:
    """Lines that the rows take from the second cache, a step of the reduction."""
    lost = _evicted(t, rows, machine)
    if lost or t.packed or t.buffer_bytes <= machine.l1 // 2:
        return lost
    lines = 1.0
    for v, f in rows:
        step = abs(t.strides.get(v) or 0) * t.bytes
        lines *= f if step >= LINE_BYTES else 1 + (f - 1) * step / LINE_BYTES
    own = {x.var for x in r.loops}
    for v in reversed([v for v in order if v in own]):
        # A line serves all steps that stay in it.
        step, extent = abs(t.strides.get(v) or 0) * t.bytes, shape.extents[v]
        lines /= min(extent, max(1.0, LINE_BYTES / step)) if step else extent
        if step * extent >= LINE_BYTES:
            break
    return lines * LINES_ANEW


def _evicted(t: Touch, rows: tuple[tuple[str, int], ...], machine: Machine, others: int = 0) -> int:
    """How many of the rows lie in sets of the first cache that cannot hold all of theirs.

    They hold `others` lines of something else, too.
    """
    if t.packed:
        return 0
    steps = ((f, (t.strides.get(v) or 0) * t.bytes) for v, f in rows)
    moving = tuple((f, step) for f, step in steps if step)
    return _crammed(moving, machine.l1 // machine.l1_way_bytes, machine.l1_way_bytes, others)


@functools.lru_cache(maxsize=4096)
def _crammed(steps: tuple[tuple[int, int], ...], ways: int, way_bytes: int, others: int) -> int:
    """Lines at all multiples of the steps, fewer than each one's count, in sets that overflow."""
    if prod(f for f, _ in steps) + others <= ways:
        return 0
    places = {0}
    for f, step in steps:
        places = {p + i * step for p in places for i in range(f)}
    lines = {p // LINE_BYTES for p in places}
    sets = Counter(line % (way_bytes // LINE_BYTES) for line in lines)
    return sum(n for n in sets.values() if n + others > ways)


def _loads(
    t: Touch,
    vector: str,
    vectors: int,
    rows: tuple[tuple[str, int], ...],
    width: int,
    unrolled: Mapping[str, int] | None = None,
) -> float:
    """Loads of a step of the reduction; of `unrolled` loops of it, windows are loaded once."""
    count = 1.0
    for v, f in rows:
        if t.depends(v):
            count *= _window(t, v, f, unrolled or {})
    stride = t.strides.get(vector, 0)
    if stride == 0:
        return count
    if t.near(vector):
        return count * vectors
    return count * vectors * _far_load(stride, width)


def _sorted(r: Reduction, vector: str, vectors: int, rows: tuple[tuple[str, int], ...]) -> float:
    """Vectors that are loaded with what lies between their elements, a step of the reduction."""
    return sum(
        vectors * prod(f for v, f in rows if t.depends(v))
        for t in r.reads
        if not t.packed and t.strides.get(vector) in NEAR_STRIDES
    )


def _widened(
    r: Reduction, vector: str, vectors: int, rows: tuple[tuple[str, int], ...], machine: Machine
) -> float:
    """Cycles to make i16 of vectors of bytes, a step of a sum of pairs."""
    if r.together(machine) != PAIR:
        return 0.0
    bytes_ = (t for t in r.reads if t.bytes == 1 and t.depends(vector))
    return sum(_loads(t, vector, vectors, rows, machine.width) for t in bytes_) / 2


def _window(t: Touch, row: str, rows: int, unrolled: Mapping[str, int]) -> float:
    """Places along a row loop per step of the reduction, those of neighbours' windows once."""
    stride = t.strides.get(row)
    for v, turns in unrolled.items():
        step = t.strides.get(v)
        if (
            stride
            and step
            and not t.packed
            and stride % step == 0
            and stride // step in range(turns)
        ):
            return ((rows - 1) * (stride // step) + turns) / turns
    return rows


def _lanes_cost(shape: Shape, machine: Machine) -> float:
    """Cycles per element when every reduction runs over lanes of its own innermost memory."""
    total = 0.0
    for r in shape.reductions:
        bound = [x.var for x in r.loops]
        best = float("inf")
        for v in bound:
            n = shape.extents[v]
            if n == 1:
                continue
            steps = prod(shape.extents[x] for x in bound)
            vectors = ceil(n / machine.width) * steps / n
            loads = sum(
                LANE_LOAD if t.near(v) else _far_load(t.strides.get(v), machine.width)
                for t in r.reads
            )
            merge = 12.0 * len(r.update.states) + 10
            streamed = sum(t.bytes * machine.width for t in r.reads if t.packed)
            wait = LANE_STREAM_SHARE * streamed / machine.l2_bytes_per_cycle
            best = min(best, vectors * (max(loads / 2, 1.0) + wait) + merge)
        total += best
    return total


def _far_load(stride: int | None, width: int) -> float:
    """Loads that take as long as one of elements that are no neighbours."""
    near = stride is not None and stride in NEAR_STRIDES
    return 1.5 * stride if near and stride is not None else 1.5 * width
