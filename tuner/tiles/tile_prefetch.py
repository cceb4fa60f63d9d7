"""What the tiles of a contraction ask for before they need it: steps of software prefetch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, prod

from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark, PrefetchLater, PrefetchResult, Split, Step
from rutc.tuner.access import Reduction, Shape, Touch
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cycles import busy_cycles

MOST_LINES = 64
"""What follows a reduction is asked for if it is in so many lines, each by an instruction."""


def comes_from_afar(t: Touch, shape: Shape, machine: Machine) -> bool:
    """Whether an operand is better asked for than waited for.

    One that the second cache could hold may have left it for other kernels' operands since the
    last run. To ask for it costs little if it is used often.
    """
    if t.buffer_bytes > machine.l2 // 2:
        return True
    uses = prod(shape.common_extents[x.var] for x in shape.shared if not t.depends(x.var))
    return t.buffer_bytes > machine.l1 and uses >= machine.coefficients.blocks.reuse


def waits_for_pages(r: Reduction, tile: RegisterTile, machine: Machine) -> bool:
    """Whether waiting shows for an operand that is read once, from one end to the other.

    The hardware asks for it ahead, but not beyond a page. Where arithmetic takes as long as memory
    does, it waits at each. A row or a few wait for memory all the time, and hints delay them.
    """
    step = sum(tile.vectors * machine.width * t.bytes for t in r.reads if t.depends(tile.vector))
    return busy_cycles(r, tile.size, machine) * machine.memory_bytes_per_cycle >= step


def is_converted(t: Touch, r: Reduction) -> bool:
    """Whether tiles make longer numbers of an operand before they multiply them.

    Several operations wait for each of its lines then. The hardware has room for so many that wait,
    and asks for fewer lines ahead: where memory is far, hints bring more (`Machine.hint_gain`).
    """
    return t.bytes < r.update.elements[0].dtype.bytes


def rows_that_wait(r: Reduction, tile: RegisterTile, machine: Machine) -> int:
    """From how many rows of a tile on arithmetic hides most of what memory takes."""
    step = sum(tile.vectors * machine.width * t.bytes for t in r.reads if t.depends(tile.vector))
    row = busy_cycles(r, tile.vectors, machine) * machine.memory_bytes_per_cycle
    return ceil(machine.coefficients.blocks.busy * step / row)


def panel_loop(t: Touch, tile: RegisterTile, order: Sequence[str]) -> str | None:
    """The loop around the rows from one panel of the vector operand to the next."""
    if f"{tile.vector}.o" in order:
        return f"{tile.vector}.o"
    rows = {x for v, _ in tile.rows for x in (v, f"{v}.o")}
    around = (v for v in reversed(order) if v not in rows)
    return next((v for v in around if t.depends(v) and t.strides[v] is not None), None)


def stays_until_used(
    t: Touch,
    over: str,
    order: Sequence[str],
    extents: Mapping[str, int],
    tile: RegisterTile,
    machine: Machine,
) -> bool:
    """Whether what the next iteration of the loop `over` reads may be asked for in this one.

    What every tile uses stays in the second cache beside it. What lies outside of windows for most
    tiles is used now and then, and leaves first: where the cache has no room for both, it comes
    from far away once more for every time.
    """
    if not tile.inside:
        return True
    return 2 * panel_bytes(t, over, order, extents, tile, machine) <= machine.l2


def panel_bytes(
    t: Touch,
    over: str,
    order: Sequence[str],
    extents: Mapping[str, int],
    tile: RegisterTile,
    machine: Machine,
) -> int:
    """The bytes of an operand that an iteration of the loop `over` reads.

    The loops of the `order` and the rows of the tile may be parts of the kernel's own: of chunks
    `m.o` of rows, the rows `m.i` go on in tiles `m.i.o`.
    """
    done = set(order[: order.index(over) + 1])
    sizes = {**dict(tile.rows), tile.vector: tile.vectors * machine.width}
    read = t.bytes
    for v in filter(t.depends, t.loops):
        while f"{v}.o" in done and f"{v}.i" in extents:
            v = f"{v}.i"
        if v not in done:
            read *= sizes.get(v, 1) if f"{v}.o" in done else extents[v]
    return read


def far_rows_asked_for(
    t: Touch,
    tile: RegisterTile,
    order: Sequence[str],
    bound: Sequence[str],
    unrolled: Sequence[Step],
    extents: Mapping[str, int],
    counted: Collection[str],
    machine: Machine,
) -> list[Step]:
    """Steps that ask for the vector operand in time where each step of the reduction reads far off.

    The hardware prefetches along memory; here memory goes on with the next panel, not with the
    next step. Of rows that lie nearer, but of which a panel has less than half, it fetches too
    little in time for the first of the tiles that read them. Those after it read the same from
    near caches; but where only a run tells how many there are, by the loops `counted`, it may be
    the only one.
    """
    last = bound[-1]
    if t.gathered or not t.unit(tile.vector) or not t.depends(last):
        return []
    line, panel = machine.line_bytes // t.bytes, f"{tile.vector}.o"
    step, read = (t.strides[last] or 0) * t.bytes, tile.vectors * machine.width * t.bytes
    far = step >= machine.far_bytes
    turns = [v for v in order if not t.depends(v.removesuffix(".o")) and extents[v] > 1]
    few = any(v.removesuffix(".o") in counted for v in turns)
    if not far and (panel not in order or step <= 2 * read or not few):
        return []
    steps: list[Step] = []
    if far and t.buffer_bytes > machine.l2 // 4 and panel in order:
        inner = [v for v in turns if order.index(v) > order.index(panel)]
        steps.append(PrefetchLater(t.buffer, panel, 1, line, 2, tuple(inner[-1:])))
    rows = prod(extents[v] for v in bound if t.depends(v))
    whole = Mark(last, Kind.UNROLL) in unrolled
    if not whole and rows * read > machine.l1 // 2:
        each = next((s.factor for s in unrolled if isinstance(s, Split) and s.var == last), 1)
        name = f"{last}.o" if each > 1 else last
        ahead = -(-machine.coefficients.blocks.near_steps // each)
        again = () if far else tuple(turns)
        steps.append(PrefetchLater(t.buffer, name, ahead, line, 1, again=again))
    return steps


def results_asked_for(shape: Shape, tile: RegisterTile, machine: Machine) -> list[Step]:
    """Steps that ask for what a tile stores or reads after its reduction, line by line."""
    w = machine.coefficients.blocks
    if min(prod(shape.extents[x.var] for x in r.loops) for r in shape.reductions) < w.near_steps:
        return []
    found: dict[str, Step] = {}
    for t in shape.touches:
        if len(t.loops) != len(shape.shared) or t.packed or t.gathered:
            continue
        inside = [v for v, _ in tile.rows] + [tile.vector]
        along = next((v for v in inside if t.unit(v)), None)
        if along is not None and t.buffer_bytes > machine.l1 // 2:
            rows = prod(f for v, f in tile.rows if v != along and t.depends(v))
            lanes = tile.vectors * machine.width
            far = lanes if along != tile.vector and t.depends(tile.vector) else 1
            lines = -(-lanes * t.bytes // machine.line_bytes) if along == tile.vector else 1
            if rows * far * lines <= MOST_LINES:
                found[t.buffer] = PrefetchResult(t.buffer, machine.line_bytes // t.bytes)
    return list(found.values())
