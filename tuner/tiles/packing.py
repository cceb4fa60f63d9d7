"""How constant operands of tiles lie in memory: in the order in which the tiles read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Kernel, Update
from rutc.tensor_ir.machine import QUAD
from rutc.tensor_ir.statements import exprs, walk_stmts
from rutc.tensor_ir.steps import Pack, Step
from rutc.tuner.access import Touch
from rutc.tuner.choice import Choice
from rutc.tuner.dot import dot_packing
from rutc.tuner.tiles.register_tile import RegisterTile


def packed(packs: Mapping[str, Pack], steps: Sequence[Step]) -> Choice:
    """A schedule that packs constants, in the order of their names, and then takes steps."""
    return Choice((*(packs[b] for b in sorted(packs)), *steps))


def packing(
    kernel: Kernel,
    t: Touch,
    bound: list[str],
    tile: RegisterTile,
    width: int,
    extents: Mapping[str, int],
    block: tuple[str, int] | None,
    original: Mapping[str, str],
) -> Pack:
    """The packing of a constant operand: in the order in which the tiles read it.

    A `block` (loop, iterations) of the reduction lies together. `original` names the loop that a
    row's loop is a part of. Two elements that share a byte are neighbours of the innermost
    reduction, so that a vector is one half of a vector of bytes.
    """
    dims = [d for d, _ in kernel.buffer(t.buffer).layout.extents]
    of_loop = dim_of_loop(kernel, t.buffer)
    inner = [of_loop[v] for v in bound if v in of_loop]
    lane = of_loop.get(tile.vector)
    blocks: dict[str, int] = {}
    last = of_loop.get(bound[-1])
    parted = None if block is None else of_loop.get(block[0])
    if block is not None and parted is not None and lane is not None:
        inner = [parted, *(d for d in inner if d != parted)]
        blocks[parted] = block[1]
    # What a tile reads at one step of the reduction lies together.
    whole_rows = [(original.get(v, v), f) for v, f in tile.rows]
    rows = [(of_loop[v], f, extents[v]) for v, f in whole_rows if v in of_loop]
    whole = [d for d, f, extent in rows if f == extent and not blocks]
    blocks |= {d: f for d, f, _ in rows if d not in whole}
    front = [d for d in dims if d not in inner and d not in whole and d != lane]
    inner += whole
    pair: dict[str, int] = {}
    if kernel.buffer(t.buffer).layout.nibbles and last is not None and last not in blocks:
        pair = {last: 2}
    if lane is None:
        return _pack(t, (*front, *inner), blocks | pair)
    if width >= extents[tile.vector]:
        if not blocks:
            return _pack(t, (*front, *inner, lane), pair)
        return _pack(t, (*front, lane, *inner), {**blocks, lane: extents[tile.vector], **pair})
    return _pack(t, (*front, lane, *inner), {**blocks, lane: width, **pair})


def grouped_packing(
    kernel: Kernel, t: Touch, bound: list[str], tile: RegisterTile, width: int, group: int
) -> Pack:
    """The packing of a constant operand of which neighbours are multiplied together."""
    b = kernel.buffer(t.buffer)
    of_loop = dim_of_loop(kernel, t.buffer)
    inner = [of_loop[v] for v in bound if v in of_loop]
    if bound[-1] not in of_loop:
        return _pack(t, tuple(d for d, _ in b.layout.extents), {})
    return dot_packing(b, inner, of_loop.get(tile.vector), width, min(group, QUAD))


def _pack(t: Touch, order: tuple[str, ...], blocks: Mapping[str, int]) -> Pack:
    return Pack(t.buffer, order, tuple(blocks.items()))


def dim_of_loop(kernel: Kernel, buffer: str) -> dict[str, str]:
    """The dim of a buffer that each loop variable is a coordinate of, no dim twice.

    What a reduction reads counts before what is read around it.
    """
    found: dict[str, str] = {}
    for s in sorted(walk_stmts(kernel.body), key=lambda s: not isinstance(s, Update)):
        for r in (r for e in exprs(s) for r in reads(e) if r.value == buffer):
            for d, c in r.coords:
                var = c.as_var if isinstance(c, Index) else None
                if var is not None and var not in found and d not in found.values():
                    found[var] = d
    return found
