"""The registers that a tile takes: its sums, their products and what is loaded for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from rutc.tensor_ir.indices.affine import Size
from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import QUAD, WORD, Machine
from rutc.tensor_ir.steps import Apart, Mark, Split, Step
from rutc.tuner.access import Reduction
from rutc.tuner.lengths import leaves_rest
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_loads import kept_places, places_of_rows

LONGEST_UNROLLED = 16

Rows = tuple[tuple[str, int], ...]
"""The rows of a tile: (loop, how many of them)."""


def fewest_rows(vectors: int, rows: Rows, var: str, machine: Machine) -> int:
    """How many rows along `var` a tile has at least whose sums do not wait for each other."""
    beside = vectors * prod(f for v, f in rows if v != var)
    return ceil(machine.fma_latency * machine.fma_per_cycle / beside)


def crowded(r: Reduction, tile: RegisterTile, inner: str, extent: int, machine: Machine) -> bool:
    """Whether no registers are left to unroll the reduction's loop `inner`.

    A step's loads are moved up among the arithmetic of the one before; and what a window reads
    again in a later step is kept: its every place until the row before has used it. Of a loop that
    is written out as a whole, nothing is moved up that passes by.
    """
    size = tile.size + product_registers(r, machine)
    passing = extent <= LONGEST_UNROLLED and pass_by(r, tile.vector, tile.rows)
    kept = kept_places(r, tile.rows, inner, extent)
    return is_full(size, 1 if passing else tile.vectors, kept, machine)


def pass_by(r: Reduction, vector: str, rows: Rows) -> bool:
    """Whether a tile's rows read each vector of a sum of products once, where it lies in memory.

    Registers hold none then, of which two rows or several operations would take a part. Of what is
    not multiplied, windows share vectors between rows: that counts as if tiles held them, too.
    """
    count = prod([f for _, f in rows])
    along = [t for t in r.reads if t.depends(vector)]
    shared = len(along) < len(r.reads)
    return shared and all(t.near(vector) and places_of_rows(t, rows) >= count for t in along)


def is_full(size: int, loaded: int, kept: int, machine: Machine) -> bool:
    """Whether registers lack for what a step has loaded, or for what windows read again."""
    return size + loaded + max(kept, 1) > machine.registers


def state_registers(r: Reduction) -> int:
    """Registers that hold one vector of a reduction's states: two for 8 bytes a lane."""
    return sum(max(1, t.bytes // 4) for t in r.update.reducer.state)


def multiplications(r: Reduction, machine: Machine) -> int:
    """Multiplications of a step of a sum: pairs of sums are added up by a second one."""
    return 1 + r.together(machine) // QUAD if r.adds_apart(machine) else 1


def product_registers(r: Reduction, machine: Machine) -> int:
    """Registers that hold sums of products until they are added: as many as a cycle computes.

    Pairs of sums in 16 bits are multiplied by ones, which take another.
    """
    if not r.adds_apart(machine):
        return 0
    return ceil(machine.fma_per_cycle) + r.together(machine) // QUAD


def sums_apart(
    r: Reduction,
    order: Sequence[str],
    unrolled: Sequence[Step],
    tile: RegisterTile,
    columns: Size,
    machine: Machine,
) -> list[Step]:
    """The step that keeps arithmetic busy in tiles of fewer rows than a whole one.

    Their sums are too few to begin the next product of one while the last is not done; but then
    registers are left for sums of every other product. `unrolled` are the steps that write out
    loops of the reduction, whose loops have this order. The last vector of the `columns` beside
    each other has to be full, as sums of a part of one, apart, would lie across vectors.
    """
    (dtype, *others) = r.update.reducer.state
    if r.update.reducer.name != "sum" or others or not dtype.is_float or not tile.rows:
        return []
    written = [s.var for s in unrolled if isinstance(s, Mark) and s.kind is Kind.UNROLL]
    parted = next((s.var for s in unrolled if isinstance(s, Split)), None)
    if parted is not None:
        loop, inner = f"{parted}.o", f"{parted}.i"
    else:
        around = [v for v in order if v not in written]
        if not written or not around:
            return []
        loop, inner = around[-1], written[-1]
    lanes = machine.width * WORD // max(dtype.bytes, WORD)
    if leaves_rest(columns, lanes):
        return []
    least = ceil(machine.fma_latency * machine.fma_per_cycle)
    most = machine.registers - tile.vectors - 1
    return [Apart(loop, inner, least * lanes, most * lanes)] if most >= least else []
