"""The cycles of a register tile: what is loaded, computed and stored for it, in what order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import ceil, log2, prod

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Apply, Expr, Read, factors, index_names, operations, walk
from rutc.tensor_ir.machine import PAIR, QUAD, Machine
from rutc.tensor_ir.windows import share_inside
from rutc.tuner.access import Reduction, Shape, Touch
from rutc.tuner.register_tile import RegisterTile
from rutc.tuner.tile_loads import (
    evicted_rows,
    far_load,
    is_sorted,
    lines_loaded,
    loads_of_step,
    sorted_vectors,
    spread_bytes,
    widening_cycles,
)

LONGEST_UNROLLED = 16


def bound_order(shape: Shape, inside: Collection[str] = ()) -> list[str]:
    """Reduction loops, the one along which operands are nearest in memory innermost.

    Those `inside`, whose iterations are few and not known, go around the others; and so do those
    along which all constants change around those along which one does not, such as a block's scale.
    """
    names: dict[str, int] = {}
    same: dict[str, int] = {}
    for r in shape.reductions:
        for x in r.loops:
            names[x.var] = r.stride(x.var)
            same[x.var] = sum(t.packed and not t.depends(x.var) for t in r.reads)
    return sorted(names, key=lambda v: (v not in inside, same[v], -names[v]))


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
    return 1 + r.together(machine) // QUAD if r.adds_apart(machine) else 1


def busy_cycles(r: Reduction, vectors: float, machine: Machine) -> float:
    """Cycles that multiply so many vectors and add them to states, a product in each lane."""
    if r.pairs_bf16(machine):
        return vectors / (PAIR * machine.bf16_pairs_per_cycle)
    return vectors / machine.fma_per_cycle


def product_registers(r: Reduction, machine: Machine) -> int:
    """Registers that hold sums of products until they are added: as many as a cycle computes.

    Pairs of sums in 16 bits are multiplied by ones, which take another.
    """
    if not r.adds_apart(machine):
        return 0
    return ceil(machine.fma_per_cycle) + r.together(machine) // QUAD


def row_factors(extent: int, most: int) -> Iterator[int]:
    """The numbers of rows that a tile may have along a loop."""
    yield from range(2, min(extent, most) + 1)


def costed(
    shape: Shape,
    vector: str,
    vectors: int,
    rows: tuple[tuple[str, int], ...],
    machine: Machine,
) -> RegisterTile:
    """The tile, at its cycles per element wanted, shorter tiles at the edges included."""
    whole = _cost_inside(shape, vector, vectors, rows, {}, machine)
    shares = inside_shares(shape, {**dict(rows), vector: vectors * machine.width}, machine)
    if not shares:
        return whole
    inside = _cost_inside(shape, vector, vectors, rows, shares, machine)
    return inside if inside.cost < machine.coefficients.windows.least_gain * whole.cost else whole


def inside_shares(shape: Shape, tile: Mapping[str, int], machine: Machine) -> dict[str, float]:
    """The share of their iterations that loops over windows do for tiles of such sizes.

    Loops that do all of theirs are left out, and so are those inside of no longer one.
    """
    shares: dict[str, float] = {}
    for r in shape.reductions:
        moved = {w.bound for w in r.windows}
        still = (shape.extents[x.var] for x in r.loops if x.var not in moved)
        # Where nothing but windows is summed, loops whose ends are not known do not pay.
        if max(still, default=1) == 1:
            continue
        for w in r.windows:
            turns, extent = shape.extents[w.bound], shape.extents[w.free]
            share = share_inside(w, turns, extent, tile.get(w.free, 1))
            if share < shares.get(w.bound, 1.0):
                shares[w.bound] = share
    return shares


def passed_inside(shape: Shape, machine: Machine) -> frozenset[str]:
    """The free loops along which windows had better go over what is inside of their values.

    Each has to stay a loop of its own.
    """
    shares, least_gain = inside_shares(shape, {}, machine), machine.coefficients.windows.least_gain
    tested = {b for r in shape.reductions for b in r.tested}
    gain = {b for b, share in shares.items() if b in tested or share < least_gain}
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
    w, lanes = machine.coefficients.tiles, machine.width
    pieces: list[tuple[float, int, tuple[tuple[str, int], ...]]] = [
        (count, chunk, ()) for count, chunk in _parts(-(-shape.extents[vector] // lanes), vectors)
    ]
    wanted, unknown = shape.extents[vector], 1.0
    if vector in shape.symbolic:
        unknown *= 1 + w.unknown * vectors * lanes / shape.extents[vector]
    for v, f in rows:
        extent = shape.extents[v]
        if shape.varies(v, f):
            unknown *= 1 + w.unknown * f / extent
        wanted *= extent
        parts = _parts(extent, f)
        pieces = [(n * m, k, (*done, (v, g))) for n, k, done in pieces for m, g in parts]
    key = machine, vector, tuple(shares.items())
    cycles_of = shape.tile_cycles.get(key)
    if cycles_of is None:
        cycles_of = shape.tile_cycles[key] = TileCosts(shape, vector, shares, machine).cycles
    cycles = 0.0
    for n, k, part in pieces:
        cycles += n * cycles_of(k, part)
    return RegisterTile(vector, vectors, rows, cycles * unknown / wanted, tuple(shares))


def _parts(extent: int, factor: int) -> list[tuple[int, int]]:
    """(number, size) of the tiles along a loop: whole ones, and a shorter one at the end.

    _parts(14, 4) == [(3, 4), (1, 2)]
    """
    whole, rest = divmod(extent, factor)
    return [(n, size) for n, size in ((whole, factor), (1, rest)) if n and size]


@record
class _Operands:
    """What the cost of a tile asks of a reduction, whatever vectors and rows the tile has."""

    reduction: Reduction
    steps: float
    """Iterations of its loops, products that are added up together as one."""
    pair: int
    """Products of bf16 that are one."""
    loaded: int
    """Vectors of an operand that are loaded for one in a step: two for pairs of sums of bytes."""
    across: tuple[Touch, ...]
    """What it reads that is the same for all lanes."""
    along: tuple[Touch, ...]
    """What differs between the lanes."""
    spread: int
    """Bytes of the first cache that a step takes of what differs."""
    width_each: int
    """Registers that hold a vector of its states."""
    multiplications: int
    products: int
    """Registers of sums of products."""
    converting: int
    """Operations that make numbers of a vector of the only operand that differs between lanes."""
    scalars: int
    """Operations whose results are the same for all lanes."""
    chooses: bool
    """Whether it sums no product, but what products are chosen from."""
    grouped: float
    """Steps that one instruction does, whose elements are loaded and sorted at once if near."""

    @staticmethod
    def of(
        r: Reduction, shape: Shape, vector: str, shares: Mapping[str, float], machine: Machine
    ) -> _Operands:
        """What is asked of a reduction whose loops do such `shares` of their iterations, or all."""
        steps = prod(shape.extents[x.var] * shares.get(x.var, 1.0) for x in r.loops)
        pair = PAIR if r.pairs_bf16(machine) else 1
        grouped = 1.0
        if r.adds_apart(machine) or pair > 1:
            steps = ceil(steps / r.together(machine))
        elif r.nearest is not None:
            neighbours = shape.extents[r.nearest]
            grouped = neighbours / ceil(neighbours / r.together(machine))
        along = tuple(t for t in r.reads if t.depends(vector))
        return _Operands(
            r,
            steps,
            pair,
            max(r.together(machine) // QUAD, 1) if r.adds_apart(machine) else 1,
            tuple(t for t in r.reads if not t.depends(vector)),
            along,
            max((spread_bytes(t, r, machine) for t in along), default=1),
            state_registers(r),
            multiplications(r, machine),
            product_registers(r, machine),
            _converting(r, along, vector, machine),
            sum(_is_scalar(x, vector) for e in r.update.elements for x in walk(e)),
            all(len(factors(e)) == 1 for e in r.update.elements),
            grouped,
        )


def _is_scalar(x: Expr, vector: str) -> bool:
    """Whether an operation on what is read has one result for all lanes."""
    if not isinstance(x, Apply) or vector in index_names(x):
        return False
    return any(isinstance(y, Read) for y in walk(x))


def _converting(r: Reduction, along: tuple[Touch, ...], vector: str, machine: Machine) -> int:
    """The operations on a vector before it is multiplied, where that is all that is read.

    What is made of several operands may be computed once for all tiles, or summed without scales.
    """
    if len(along) != 1 or r.together(machine) > 1 or len(r.update.elements) != 1:
        return 0
    parts = [f for f in factors(r.update.elements[0]) if vector in index_names(f)]
    return sum(map(operations, parts))


@record
class _RowCosts:
    """What of the cost of a tile its rows alone decide."""

    size: int
    """How many there are."""
    far: float
    """By what their distances in memory multiply all."""
    apart: tuple[float, ...]
    """Of every reduction, rows whose steps in memory only a run tells."""
    lines: tuple[float, ...]
    """Of every reduction, lines that they take from the second cache."""


class TileCosts:
    """Cycles of tiles with lanes along one loop of a kernel: its reductions and what follows them.

    Loops do such `shares` of their iterations, or all.
    """

    def __init__(
        self, shape: Shape, vector: str, shares: Mapping[str, float], machine: Machine
    ) -> None:
        """No tile was asked about yet."""
        self.shape = shape
        self.vector = vector
        self.machine = machine
        self.order = bound_order(shape, shares)
        self.operands = [_Operands.of(r, shape, vector, shares, machine) for r in shape.reductions]
        self._known: dict[object, float] = {}
        self._rows: dict[tuple[tuple[str, int], ...], _RowCosts] = {}

    def cycles(self, vectors: int, rows: tuple[tuple[str, int], ...]) -> float:
        """The cycles of a tile of so many vectors and rows: parts of many tiles are the same."""
        found = self._known.get((vectors, rows))
        if found is None:
            found = self._known[vectors, rows] = self._cycles(vectors, rows)
        return found

    def _cycles(self, vectors: int, rows: tuple[tuple[str, int], ...]) -> float:
        shape, vector, machine = self.shape, self.vector, self.machine
        w, width = machine.coefficients.tiles, machine.width
        costs = self._rows.get(rows)
        if costs is None:
            costs = self._rows[rows] = self._row_costs(rows)
        size = vectors * costs.size
        cycles = 0.0
        for number, each in enumerate(self.operands):
            apart, lines = costs.apart[number], costs.lines[number]
            cycles += each.steps * self._step(each, vectors, rows, size, apart, lines)
        epilogue = [t for t in shape.touches if len(t.loops) == len(shape.shared)]
        for t in epilogue:
            stride = t.strides.get(vector, 0)
            per_vector = 0.0 if stride == 0 else 1.0 if stride == 1 or t.packed else float(width)
            row = max((f for v, f in rows if t.unit(v)), default=1)
            if per_vector > 1.0 and row >= w.shortest_row:
                # Vectors across memory are transposed in squares, and stored row by row.
                per_vector = 2.0 * width * ceil(row / width) / row
            cycles += per_vector * size
            if not t.gathered:
                # Lines may be gone before they are written.
                along = () if stride == 1 else ((vector, vectors * width),)
                cycles += w.evicted * evicted_rows(t, (*rows, *along), machine, 1)
        lane = DType.F32.bytes
        stored = size * sum(t.bytes / lane for t in epilogue if t.is_store and t.unit(vector))
        cycles += machine.store_cycles * max(stored - w.stores, 0)
        cycles += 4.0 + 2 * len(rows)
        return cycles * costs.far

    def _row_costs(self, rows: tuple[tuple[str, int], ...]) -> _RowCosts:
        """What rows cost, however many vectors the tile has."""
        shape, machine = self.shape, self.machine
        # Rows that lie far apart share cache sets and take more pages.
        far = [
            abs(t.strides.get(v) or 0) * t.bytes * (f - 1)
            for r in shape.reductions
            for t in r.reads
            if not t.packed
            for v, f in rows
        ]
        apart = [
            sum(
                f
                for t in r.reads
                if not t.packed
                for v, f in rows
                if t.depends(v) and not isinstance(t.exact.get(v, 0), int)
            )
            for r in shape.reductions
        ]
        lines = [
            sum(
                lines_loaded(t, each.reduction, shape, rows, self.order, machine)
                for t in each.across
            )
            for each in self.operands
        ]
        return _RowCosts(
            prod(f for _, f in rows),
            1 + machine.coefficients.tiles.far * log2(1 + max(far, default=0)),
            tuple(apart),
            tuple(lines),
        )

    def _step(
        self,
        each: _Operands,
        vectors: int,
        rows: tuple[tuple[str, int], ...],
        size: int,
        apart: float,
        lines: float,
    ) -> float:
        """Cycles of a step of a reduction, for a tile of `size` vectors."""
        shape, vector, machine = self.shape, self.vector, self.machine
        w, width, r = machine.coefficients.tiles, machine.width, each.reduction
        inner = [v for v in self.order[-1:] if shape.extents[v] <= LONGEST_UNROLLED]
        full = {v for v in inner if crowded(r, vectors, rows, v, shape.extents[v], machine)}
        unrolled = {v: shape.extents[v] for v in inner if v not in shape.symbolic and v not in full}
        along, across = (
            [loads_of_step(t, vector, vectors, rows, width) for t in part]
            for part in (each.along, each.across)
        )
        along_once, across_once = along, across
        if unrolled:
            along_once, across_once = (
                [loads_of_step(t, vector, vectors, rows, width, unrolled) for t in part]
                for part in (each.along, each.across)
            )
        scalar_loads = each.loaded * sum(across_once)
        vector_loads = each.loaded * sum(
            loads / (each.grouped if is_sorted(t, vector) else 1.0)
            for t, loads in zip(each.along, along_once, strict=True)
        )
        wide = each.width_each / len(r.update.states)
        # Sums of pairs wait for an addition of integers only, which takes a cycle.
        latency = 1 if r.adds_apart(machine) else machine.fma_latency
        converted: float = 0
        if each.converting:
            converted = each.converting * sum(
                loads_of_step(t, vector, vectors, rows, 1) for t in each.along
            )
        products = size * wide * each.multiplications * each.pair
        work = max(
            _both(
                busy_cycles(r, products + converted, machine),
                latency,
                w.together,
            ),
            vector_loads * wide / machine.loads_per_cycle
            + scalar_loads * wide / machine.scalar_loads_per_cycle,
        )
        moved = sorted_vectors(r, vector, vectors, rows) / each.grouped
        work += machine.sort_cycles * moved * wide
        loads = scalar_loads + (1 + machine.vector_bits / w.load_bits) * vector_loads
        work += machine.load_cycles * loads * wide
        work += widening_cycles(r, vector, vectors, rows, machine)
        work += w.apart * apart
        work += each.scalars * size / vectors / machine.scalar_loads_per_cycle
        if converted and any(v in shape.symbolic for v, _ in rows):
            # A run may have one row, whose few sums wait for each other.
            wait = latency - busy_cycles(r, vectors * wide + converted, machine)
            work += w.unknown * size / vectors * max(wait, 0)
        # The vector operand streams past for every tile: from the second cache, unless it fits
        # the first beside the rows.
        panel = sum(
            loads_of_step(t, vector, 1, rows, 1) * vectors * width * t.bytes * each.pair
            for t in each.along
        )
        panel, lines = (each.loaded * x for x in (panel, lines))
        if max(panel, each.spread) * each.steps > machine.l1 // 2:
            work += w.stream * panel / machine.l2_bytes_per_cycle
        # So do the rows' lines, one after the other where the first cache does not hold them.
        work += w.stream * lines * each.pair * machine.line_bytes / machine.l2_bytes_per_cycle
        # One operand's part of a step is held, the others pass by one at a time: of choices between
        # products, all of one side.
        held = min((*along, *across), default=0.0)
        if across and each.chooses:
            held = max(held, min(sum(along), sum(across)))
        registers = size * each.width_each + max(held, vectors) * wide + 1
        registers += each.products
        # The other half of bytes waits for the next step.
        registers += sum(
            loads
            for t, loads in zip(each.along, along, strict=True)
            if t.nibbles and t.depends(self.order[-1])
        )
        spare = machine.registers - registers
        wanted = machine.registers // w.spare
        if spare < wanted:
            work *= 1 + w.tight * (wanted - max(spare, 0))
        if spare < 0:
            work *= 1 - w.spill * spare
        for v in full:
            work += w.loop / shape.extents[v]
        return work


def _both(busy: float, latency: float, sharpness: float) -> float:
    """Cycles of multiply-adds that keep their units busy for some, and wait for each other.

    A little more than the larger of the two: where they are about equal, neither hides the other.
    """
    return float((busy**sharpness + latency**sharpness) ** (1 / sharpness))


def lanes_cost(shape: Shape, machine: Machine) -> float:
    """Cycles per element when every reduction runs over lanes of its own innermost memory."""
    w, total = machine.coefficients.tiles, 0.0
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
                1.0 if t.near(v) else far_load(t.strides.get(v), machine.width) for t in r.reads
            )
            merge = 12.0 * len(r.update.states) + 10
            streamed = sum(t.bytes * machine.width for t in r.reads if t.packed)
            wait = w.stream * streamed / machine.l2_bytes_per_cycle
            best = min(best, vectors * (max(loads / machine.loads_per_cycle, 1.0) + wait) + merge)
        total += best
    return total
