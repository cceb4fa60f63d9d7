"""The cost of register tiles: the cycles of whole ones and of shorter ones at the edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, log2, prod

from rutc.tensor_ir.facts.windows import share_inside
from rutc.tensor_ir.machine import Machine
from rutc.tuner.access import Shape
from rutc.tuner.lengths import even_blocks, whole_blocks
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cycles import TileCosts
from rutc.tuner.tiles.tile_loads import vector_load
from rutc.tuner.tiles.tile_registers import LONGEST_UNROLLED, Rows, fewest_rows

Blocks = tuple[str, int, Rows]
"""What makes a tile: the loop of its vectors, how many these are, and its rows."""


def row_factors(extent: int, most: int) -> Iterator[int]:
    """The numbers of rows that a tile may have along a loop."""
    yield from range(2, min(extent, most) + 1)


def cheapest(shape: Shape, tiles: Iterable[Blocks], machine: Machine) -> RegisterTile | None:
    """The tile that costs least, of equal ones the first; None where there is none.

    Of rows along a loop of symbolic size there may be one, as of tokens that follow one another:
    where others can be rows that share vectors, too, tiles are weighed by what they cost then as
    well. Rows that do not would have each row of a run read all vectors again.
    """
    given = list(tiles)
    best = _cheapest(shape, given, machine)
    if best is None or shape.single.isdisjoint(v for v, _ in best.rows):
        return best
    one = {x.var: 1 for x in shape.shared if x.var in shape.single}
    few = replace(shape, extents={**shape.extents, **one}, symbolic=frozenset())
    most = machine.coefficients.tiles.uneven * best.cost
    weighed = [best]
    for vector, vectors, rows in given:
        others = [v for v, _ in rows if v not in shape.symbolic]
        if any(_share_vectors(shape, vector, v) for v in others):
            found = _costed(shape, vector, vectors, rows, machine, most)
            weighed += [found] if found is not None else []
    return min(
        weighed, key=lambda t: t.cost * costed(few, t.vector, t.vectors, t.rows, machine).cost
    )


def _share_vectors(shape: Shape, vector: str, row: str) -> bool:
    """Whether rows along a loop share what vectors read, in every reduction."""
    return all(
        any(t.depends(vector) and not t.depends(row) for t in r.reads) for r in shape.reductions
    )


def _cheapest(shape: Shape, tiles: Sequence[Blocks], machine: Machine) -> RegisterTile | None:
    """The tile that costs least at the extents that loops commonly have.

    Those are counted first that load least for each product: a tile is left as soon as it is seen
    to cost more than the best one.
    """
    best: RegisterTile | None = None
    first = 0
    ordered = sorted(enumerate(tiles), key=lambda x: 1 / x[1][1] + 1 / prod(f for _, f in x[1][2]))
    for number, (vector, vectors, rows) in ordered:
        most = inf if best is None else best.cost
        found = _costed(shape, vector, vectors, rows, machine, most)
        if found is None:
            continue
        if best is None or (found.cost, number) < (best.cost, first):
            best, first = found, number
    return best


def costed(shape: Shape, vector: str, vectors: int, rows: Rows, machine: Machine) -> RegisterTile:
    """The tile, at its cycles per element wanted, shorter tiles at the edges included."""
    found = _costed(shape, vector, vectors, rows, machine, inf)
    assert found is not None, "nothing costs more than that"
    return found


def _costed(
    shape: Shape, vector: str, vectors: int, rows: Rows, machine: Machine, most: float
) -> RegisterTile | None:
    """The tile with its cost; None where that is more than `most`.

    A tile of more rows than a run commonly has is weighed whole: what others share along the
    windows is worth more to a single row than what lies outside of these.
    """
    shares = inside_shares(shape, {**dict(rows), vector: vectors * machine.width})
    if not shares or any(v in shape.symbolic and shape.common_extents[v] < f for v, f in rows):
        return _cost_inside(shape, vector, vectors, rows, {}, machine, most)
    inside = _cost_inside(shape, vector, vectors, rows, shares, machine, most)
    whole = _cost_inside(shape, vector, vectors, rows, {}, machine, most if inside is None else inf)
    if inside is None or whole is None:
        return whole
    return inside if inside.cost < machine.coefficients.windows.least_gain * whole.cost else whole


def inside_shares(shape: Shape, tile: Mapping[str, int]) -> dict[str, float]:
    """The share of their iterations that loops over windows do for tiles of such sizes.

    Loops that do all of theirs are left out, and so are those inside of no longer one.
    """
    shares: dict[str, float] = {}
    for r in shape.reductions:
        own: dict[str, float] = {}
        for w in r.windows:
            turns, extent = shape.extents[w.bound], shape.extents[w.free]
            share = share_inside(w, turns, extent, tile.get(w.free, 1))
            if share < shares.get(w.bound, 1.0):
                own[w.bound] = min(share, own.get(w.bound, 1.0))
        moved = {w.bound for w in r.windows}
        still = [shape.extents[x.var] for x in r.loops if x.var not in moved]
        # Where nothing but windows is summed, loops whose ends are not known do not pay, but
        # around one that is too long to be written out and does all of its iterations.
        long = [shape.extents[x.var] for x in r.loops if x.var not in own]
        if max(still, default=1) > 1 or max(long, default=1) > LONGEST_UNROLLED:
            shares |= own
    return shares


def passed_inside(shape: Shape, machine: Machine) -> frozenset[str]:
    """The free loops along which windows had better go over what is inside of their values.

    Each has to stay a loop of its own.
    """
    shares, least_gain = inside_shares(shape, {}), machine.coefficients.windows.least_gain
    tested = {b for r in shape.reductions for b in r.tested}
    gain = {b for b, share in shares.items() if b in tested or share < least_gain}
    return frozenset(w.free for r in shape.reductions for w in r.windows if w.bound in gain)


def _cost_inside(
    shape: Shape,
    vector: str,
    vectors: int,
    rows: Rows,
    shares: Mapping[str, float],
    machine: Machine,
    most: float,
) -> RegisterTile | None:
    """The tile, its loops over windows doing such shares of their iterations.

    None where it costs more than `most`: its reductions tell soon.
    """
    w, lanes = machine.coefficients.tiles, machine.width
    pieces: list[tuple[float, int, Rows]] = [
        (count, chunk, ())
        for count, chunk in whole_blocks(-(-shape.extents[vector] // lanes), vectors)
    ]
    wanted, unknown = shape.extents[vector], 1.0
    if vector in shape.symbolic:
        unknown *= 1 + w.unknown * vectors * lanes / shape.extents[vector]
    for v, f in rows:
        extent = shape.extents[v]
        if shape.varies(v, f):
            unknown *= 1 + w.unknown * f / extent
        wanted *= extent
        fewest = 0 if v in shape.symbolic else fewest_rows(vectors, rows, v, machine)
        parts = even_blocks(extent, f, fewest)
        pieces = [(n * m, k, (*done, (v, g))) for n, k, done in pieces for m, g in parts]
    key = machine, vector, tuple(shares.items())
    costs = shape.tile_costs.get(key)
    if not isinstance(costs, TileCosts):
        costs = shape.tile_costs[key] = TileCosts(shape, vector, shares, machine)
    cycles = 0.0
    for n, k, part in pieces:
        if (cycles + n * costs.least(k, part)) * unknown / wanted > most:
            return None
        cycles += n * costs.cycles(k, part)
        if k < vectors:
            cycles += n * costs.passed(vectors - k, part)
    return RegisterTile(vector, vectors, rows, cycles * unknown / wanted, tuple(shares))


def lanes_cost(shape: Shape, machine: Machine) -> float:
    """Cycles per element when every reduction runs over lanes of its own innermost memory."""
    w, total = machine.coefficients.tiles, 0.0
    join = machine.coefficients.layouts.merge * log2(machine.width)
    for r in shape.reductions:
        bound = [x.var for x in r.loops]
        best = float("inf")
        for v in bound:
            n = shape.extents[v]
            if n == 1:
                continue
            steps = prod(shape.extents[x] for x in bound)
            vectors = ceil(n / machine.width) * steps / n
            loads = sum(vector_load(t, v, machine) for t in r.reads)
            merge = join * len(r.update.states)
            streamed = sum(t.bytes * machine.width for t in r.reads if t.packed)
            wait = w.stream * streamed / machine.l2_bytes_per_cycle
            best = min(best, vectors * (max(loads / machine.loads_per_cycle, 1.0) + wait) + merge)
        total += best
    return total
