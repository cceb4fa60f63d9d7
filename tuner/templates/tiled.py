"""The schedule of contractions: register tiles, blocks that stay in the caches, packed operands.

A shared loop along which memory is contiguous becomes the vector, another one or two the rows of a
register tile [Goto & van de Geijn 2008].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.base.record import record
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import (
    BlockReduction,
    Even,
    Inside,
    Mark,
    NotApplicable,
    Pack,
    Peel,
    PrefetchBlock,
    Prepare,
    Reorder,
    Split,
    Step,
    Tile,
)
from rutc.tuner.access import Reduction, Shape, Touch, moves_evenly
from rutc.tuner.choice import Choice
from rutc.tuner.dot import dot_steps, products_together
from rutc.tuner.lengths import has_even_blocks
from rutc.tuner.tiles.blocking import batch_loops, sole_output, takes_one_more, tiles_at_once
from rutc.tuner.tiles.packing import grouped_packing, packed, packing
from rutc.tuner.tiles.prepare import Prepared, prepared_operands
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.tile_cycles import block_loop, bound_order
from rutc.tuner.tiles.tile_loops import reuse_loops, tile_loops
from rutc.tuner.tiles.tile_prefetch import (
    comes_from_afar,
    far_rows_asked_for,
    is_converted,
    panel_bytes,
    panel_loop,
    results_asked_for,
    rows_that_wait,
    stays_until_used,
    waits_for_pages,
)
from rutc.tuner.tiles.tile_registers import (
    LONGEST_UNROLLED,
    crowded,
    fewest_rows,
    multiplications,
    sums_apart,
)

MOST_WRITTEN_OUT = 160
"""Multiplications of a reduction that is written out as a whole, and of the part of a long sum of
bytes: each part takes addresses and a branch, which its operations do not hide (Zen 3: 1 to 3 % for
twice as many)."""
MOST_OF_LONG = 64
"""Those of the part of any other long sum."""
MOST_BETWEEN = 1 << 14
"""Iterations of a loop of symbolic size whose sums may be kept between blocks of a reduction."""


@record
class Tiling:
    """The parameters of a tiled schedule: any that fit the kernel compute the same.

    Of a reduction's `block_loop`, `block` iterations are done at a time for `reuse` tiles, and sums
    are kept in the buffer `holder` meanwhile; None does all of them for one tile after the other. A
    block of all iterations does so for as many rows as the second cache holds, where a
    run tells how many there are. A `chunk` (loop, iterations) of rows goes around all blocks of the
    vector. What tiles compute of the operand `prepare` is computed once. With `whole_rows`, tiles
    beside each other come before those of the next rows. Threads share the outer loops of one that
    is `parallel`; short reductions are written out where `unroll` is set, and what comes from afar
    is asked for where `prefetch` is.
    """

    tile: RegisterTile
    block: int | None = None
    holder: str = ""
    chunk: tuple[str, int] | None = None
    prepare: str | None = None
    whole_rows: bool = False
    reuse: int = 0
    parallel: bool = True
    unroll: bool = True
    prefetch: bool = True

    def __str__(self) -> str:
        """What it has: `k x 2, m x 6; block 64 for 8 tiles in y, whole rows`."""
        tile = self.tile
        sizes = ((tile.vector, tile.vectors), *tile.rows)
        said = [
            f"block {self.block} for {self.reuse} tiles in {self.holder}" if self.block else "",
            "" if self.chunk is None else f"chunk {self.chunk[0]} x {self.chunk[1]}",
            f"prepare {self.prepare}" if self.prepare else "",
            "whole rows" if self.whole_rows else "",
            "" if self.unroll else "not unrolled",
            "" if self.prefetch else "nothing asked for",
        ]
        what = ", ".join(filter(None, said))
        return ", ".join(f"{v} x {n}" for v, n in sizes) + (f"; {what}" if what else "")


def tiled(kernel: Kernel, shape: Shape, tiling: Tiling, machine: Machine) -> Choice:
    """Parallel blocks of the output; in each, blocks of the reduction; in each, register tiles.

    Raises:
        NotApplicable: the tiling does not fit the kernel.
    """
    making = _Making(kernel, shape, tiling, machine)
    making.go_over_tiles()
    making.take_blocks()
    making.share_and_end()
    making.reduce()
    return packed(making.packs, making.steps)


class _Making:
    """A tiled schedule while it is made: each method adds the steps of one concern, in order.

    Attributes:
        steps: The steps so far.
        apart: The steps after these that give tiles of few rows more sums.
        packs: How constants are packed, by buffer.
        extents: Of all loops after these steps; 0 where parts of one differ in length.
        order: The loops around a tile.
        outer: The first of them, which threads may share.
        inner: The last of them, between a block of the reduction and a tile.
        edges: Those around whose last tile is a smaller one, which nothing has made yet.
        blocked: The reduction loop that is taken in blocks, if there are any.
        block: How many of its iterations are one.
        prepared: What tiles compute of an operand, once for many of them.
    """

    def __init__(self, kernel: Kernel, shape: Shape, tiling: Tiling, machine: Machine) -> None:
        """Begins with the loops of tiles.

        Raises:
            NotApplicable: the tiling does not fit the kernel.
        """
        self.kernel, self.shape, self.tiling, self.machine = kernel, shape, tiling, machine
        self.group = products_together(shape, machine)
        self.loops = tile_loops(kernel, shape, tiling.tile, tiling.chunk, machine)
        self.tile = self.loops.tile
        self.bound = bound_order(shape, self.tile.inside)
        self.batch = batch_loops(shape, tiling.tile)
        self.steps: list[Step] = list(self.loops.steps)
        self.apart: list[Step] = []
        self.packs: dict[str, Pack] = {}
        self.extents = dict(self.loops.extents)
        self.order = list(self.loops.beside if tiling.whole_rows else self.loops.order)
        self.outer, self.inner = self.order, list[str]()
        self.edges = list(self.loops.edges)
        self.blocked = block_loop(shape, self.bound, self.tile.inside)
        self.block = tiling.block
        if self.block is not None:
            grouped = self.group if self.blocked == self.bound[-1] else 1
            _check_block(kernel, shape, tiling, self.blocked, grouped)
        self.prepared = self._prepared()
        if self.prepared is not None:
            self.block = None
        self.whole_sums = self.block is not None and self.block == self.extents[self.blocked]
        one_by_one = self.block is None or self.whole_sums
        self.even = {
            f"{v}.o": Even(
                f"{v}.o", int(one_by_one and takes_one_more(shape, self.tile, v, machine))
            )
            for v, _ in self.tile.rows
            if v in shape.symbolic
        }

    def _prepared(self) -> Prepared | None:
        """What the tiling says is prepared.

        Raises:
            NotApplicable: no such operand can be.
        """
        wanted, loops = self.tiling.prepare, self.loops
        if wanted is None:
            return None
        may_be = prepared_operands(
            self.shape, self.tile, loops.order, loops.extents, self.machine, loops.original
        )
        found = next((p for p in may_be if p.operands[0] == wanted), None)
        if found is None or self.group > 1:
            raise NotApplicable(f"nothing of {wanted} is the same for several tiles")
        return found

    def go_over_tiles(self) -> None:
        """Moves the tile's own loops inside of all others, and prepares an operand between them."""
        moved = [v for v, _ in self.loops.moved]
        self.steps.append(Reorder((*self.order, *moved)))
        if self.prepared is None:
            return
        at, inside = self.prepared.at, (*self.bound, moved[-1])
        operand = self.prepared.operands[0]
        self.steps.append(Prepare(operand, self.order[at], inside, self.prepared.least))
        if self.prepared.turned is not None:
            along = f"{self.prepared.turned}.p"
            self.steps += [Split(along, self.machine.width), Mark(f"{along}.i", Kind.UNROLL)]
        self.outer = self.order[:at]

    def take_blocks(self) -> None:
        """Takes the reduction in blocks, each for several tiles that keep their sums meanwhile."""
        shape, symbols = self.shape, dict(self.kernel.symbols)
        carried = any(b.name == self.tiling.holder for b in self.kernel.args)
        most = (Index.of(shape.sizes[v]).bounds(symbols) for v in shape.symbolic)
        if not carried and any(x is None or x[1] > MOST_BETWEEN for x in most):
            # What is kept between blocks would take memory without a bound.
            self.block = None
        if self.block is None:
            return
        order = self.order
        at = next((i for i, v in enumerate(order) if v in self.even), len(order))
        if carried and at == len(order) - 1:
            # However many rows there are, those of a chunk stay in the second cache.
            v, tiles = order[at], tiles_at_once(shape, self.tile, self.machine)
            self.steps += [*([self.even[v]] if v in self.edges else []), Split(v, tiles)]
            self.extents |= {
                f"{v}.o": -(-self.extents[v] // tiles),
                f"{v}.i": min(tiles, self.extents[v]),
            }
            self.outer = [*self.batch, f"{v}.o", *order[len(self.batch) : at]]
            self.inner, self.edges = [f"{v}.i"], [x for x in self.edges if x != v]
            self.steps.append(Reorder((*self.outer, *self.inner)))
        else:
            # Nor are the blocks of a symbolic loop ever split again.
            whole = {f"{v}.o" for v in shape.symbolic} | shape.symbolic
            first = len(self.loops.blocked)
            self.outer, self.inner, split = reuse_loops(
                order, first, self.extents, whole, self.tiling.reuse
            )
            self.steps += split
        if self.inner and not self.whole_sums:
            inner, holder = self.inner[0], self.tiling.holder
            self.steps.append(BlockReduction(self.blocked, self.block, inner, holder))
        else:
            self.block = None

    @property
    def around(self) -> list[str]:
        """The loops around a tile, once the reduction has its blocks."""
        return self.order if self.prepared is not None else [*self.outer, *self.inner]

    def share_and_end(self) -> None:
        """Shares the outer loops out to threads, and makes the last tiles and the tile itself."""
        if self.tiling.parallel:
            all_of_them = self.block is None and self.whole_sums
            shared = [*self.outer, *self.inner] if all_of_them else self.outer
            self.steps += [Mark(v, Kind.PARALLEL) for v in shared]
        ended = [v for v in reversed(self.around) if v in self.edges]
        self.steps += [self._ended(v) for v in ended]
        own = self.loops.moved
        self.steps.append(Tile(tuple(v for v, _ in own), tuple(k for _, k in own)))
        if self.block is None and self.tiling.prefetch:
            self.steps += results_asked_for(self.shape, self.tiling.tile, self.machine)

    def _ended(self, v: str) -> Step:
        """The step that gives the last ones of the blocks of `v` code of their own."""
        tile, extents = self.tile, self.loops.extents
        for row, factor in tile.rows:
            fewest = fewest_rows(tile.vectors, tile.rows, row, self.machine)
            even = v not in self.even and has_even_blocks(extents[row], factor, fewest)
            if v == f"{row}.o" and even:
                return Even(v, 0)
        if v in self.even:
            return self.even[v]
        # Registers that a run leaves idle in the last tile would compute all the same.
        width = self.machine.width
        idle = v == f"{tile.vector}.o" and tile.vector in self.shape.symbolic
        return Peel(v, tuple(width * n for n in range(1, tile.vectors)) if idle else ())

    def reduce(self) -> None:
        """Orders and unrolls reductions, packs what they read and asks for it."""
        if self.block is not None:
            whole = self.extents[self.blocked] % self.block == 0
            self.extents[self.blocked] = self.block if whole else 0
        for r in self.shape.reductions:
            wanted, unrolled = self._reduction(r)
            for t in r.reads:
                if t.packed:
                    self._packed_operand(r, t, wanted, unrolled)
                elif self.tiling.prefetch:
                    self._plain_operand(r, t, wanted, unrolled)
        self.steps += self.apart
        if self.tile.inside:
            self.steps.append(Inside(self.tile.inside))

    def _reduction(self, r: Reduction) -> tuple[list[str], list[Step]]:
        """(its loops in order, the steps that unroll some of them)."""
        names = [x.var for x in r.loops]
        wanted = [v for v in self.bound if v in names]
        if len(wanted) > 1 and wanted != names:
            self.steps.append(Reorder(tuple(wanted)))
        last, innermost = wanted[-1], wanted[-1]
        if self.group > 1:
            self.steps += dot_steps(last, self.extents, self.group)
            innermost = f"{last}.o"
            whole = self.extents[last] % self.group == 0
            self.extents[innermost] = self.extents[last] // self.group if whole else 0
        unrolled: list[Step] = []
        varying = self.shape.symbolic | set(self.tile.inside)
        if self.tiling.unroll and innermost not in varying:
            fixed = [v for v in (*wanted[:-1], innermost) if v not in varying]
            unrolled = _unrolled(r, fixed, self.tile, self.extents, self.machine)
        self.steps += unrolled
        if self.group == 1 and self.prepared is None and not self.tile.inside:
            columns = self.shape.sizes[self.tile.vector]
            self.apart += sums_apart(r, wanted, unrolled, self.tile, columns, self.machine)
        return wanted, unrolled

    def _plain_operand(
        self, r: Reduction, t: Touch, wanted: list[str], unrolled: Sequence[Step]
    ) -> None:
        """Asks for an operand that lies in memory as it is."""
        tile, machine = self.tile, self.machine
        panel = f"{tile.vector}.o"
        across = panel in self.around and t.across(tile.vector, self.bound[-1])
        if across and t.known(tile.vector) and t.buffer_bytes > machine.l1:
            self.steps += self._panel_asked_for(t, panel)
        if self.group == 1 and len(r.reads) > 1:
            self.steps += far_rows_asked_for(
                t, tile, self.around, wanted, unrolled, self.extents, self.shape.symbolic, machine
            )

    def _panel_asked_for(self, t: Touch, panel: str) -> list[Step]:
        """The step that asks for the next panel of an operand across memory, to the nearest cache.

        The hardware does not foresee lines that are read across memory, and each is waited for. The
        first cache has room if it holds this panel as well, beside as much of what else is used.
        Nothing asks for panels of which others, as of further heads, lie between the rows.
        """
        read = panel_bytes(t, panel, self.around, self.extents, self.tile, self.machine)
        lanes = self.tile.vectors * self.machine.width
        if read < lanes * abs(t.strides[self.tile.vector] or 0) * t.bytes:
            return []
        level = 1 if 4 * read <= self.machine.l1 else 2
        return [PrefetchBlock(t.buffer, panel, 0, t.line(self.machine), level)]

    def _packed_operand(
        self, r: Reduction, t: Touch, wanted: list[str], unrolled: Sequence[Step]
    ) -> None:
        """Packs a constant operand, and asks for it where waiting for it would show."""
        tile, group = self.tile, self.group
        if t.packable:
            width = tile.vectors * self.machine.width
            if group == 1 or not t.depends(wanted[-1]):
                self.packs[t.buffer] = packing(
                    self.kernel,
                    t,
                    wanted,
                    tile,
                    width,
                    self.shape.extents,
                    None if self.block is None else (self.blocked, self.block),
                    self.loops.original,
                )
            else:
                self.packs[t.buffer] = grouped_packing(self.kernel, t, wanted, tile, width, group)
        if t.strides.get(tile.vector) is None or t.gathered:
            return
        # A run of few tiles prepares nothing, and waits for what it converts as it is.
        prepared = self.prepared is not None and t.buffer in self.prepared.operands
        if prepared and not (self.even and self._hints_help(r, t)):
            return
        depends = t.depends(tile.vector) and t.depends(self.bound[-1])
        if self.tiling.prefetch and depends:
            self.steps += self._asked_for(r, t, wanted, unrolled)

    def _hints_help(self, r: Reduction, t: Touch) -> bool:
        """Whether a tile of any number of rows had better ask for an operand."""
        return self.group == 1 and self.machine.hints_help and is_converted(t, r)

    def _asked_for(
        self, r: Reduction, t: Touch, wanted: list[str], unrolled: Sequence[Step]
    ) -> list[Step]:
        """The steps that ask for a packed operand: a block, a panel or some bytes ahead."""
        tile, shape, machine, around = self.tile, self.shape, self.machine, self.around
        line, batch = t.line(machine), self.batch
        if self.block is not None:
            return [PrefetchBlock(t.buffer, f"{self.blocked}.b", 0, line)]
        panel = f"{tile.vector}.o"
        if t.arranged and panel in around:
            whole, columns = self.loops.original.get(tile.vector, tile.vector), tile.vectors
            if not moves_evenly(self.kernel, t.buffer, whole, columns * machine.width):
                # Panels of other widths than its own blocks share lines with the next ones.
                return []
        if batch and (t.strides.get(batch[-1]) or 0) > 0:
            return [PrefetchBlock(t.buffer, panel if panel in around else batch[-1], 0, line)]
        over = panel_loop(t, tile, around)
        if over is not None and comes_from_afar(t, shape, machine):
            again = bool(self.even) or any(self.extents[v] > 1 for v in around if v != over)
            near = stays_until_used(t, over, around, self.extents, tile, machine)
            hints = self._hints_help(r, t)
            asked = near and (again or hints or waits_for_pages(r, tile, machine))
            fewest = 1 if hints else rows_that_wait(r, tile, machine)
            rows = fewest if self.even else 0
            return [PrefetchBlock(t.buffer, over, 0, line, rows=rows)] if asked else []
        first = wanted[0]
        if tile.vectors > 2 or shape.extents.get(first, 0) <= self.group or not t.depends(first):
            return []
        loop = self.loops.original.get(first, first)
        parted = {s.var for s in unrolled if isinstance(s, Split)}
        if self.group > 1:
            parted.add(wanted[-1])
        while first in parted:
            first = f"{first}.o"
        if Mark(first, Kind.UNROLL) in self.steps or t.nibbles:
            return []
        if not moves_evenly(self.kernel, t.buffer, loop):
            return []
        ahead = machine.far_bytes // machine.line_bytes * line
        return [PrefetchBlock(t.buffer, first, ahead, line, 1)]


def _check_block(kernel: Kernel, shape: Shape, tiling: Tiling, blocked: str, group: int) -> None:
    """Raises NotApplicable where the `blocked` loop of the reduction cannot be done in blocks."""
    block = tiling.block
    assert block is not None
    if len(shape.reductions) != 1 or not tiling.tile.rows or blocked in shape.symbolic:
        raise NotApplicable("only one reduction of known length, in tiles of rows, has blocks")
    (reduction,) = shape.reductions
    if len(reduction.update.states) != 1:
        raise NotApplicable("a reduction with several states has no blocks")
    counted = any(v in shape.symbolic for v, _ in tiling.tile.rows)
    extent = shape.extents[blocked]
    most = extent if counted else extent - 1
    if not 0 < block <= most or tiling.reuse < 1:
        raise NotApplicable(f"{blocked} has no blocks of {block} for {tiling.reuse} tiles")
    if parts_groups(block, extent, group):
        raise NotApplicable(f"blocks of {block} part products that are added together")
    partial = f"{reduction.update.states[0].buffer}.partial"
    if tiling.holder not in (partial, sole_output(kernel)):
        raise NotApplicable(f"{tiling.holder!r} cannot hold the sums between blocks")


def parts_groups(block: int, extent: int, group: int) -> bool:
    """Whether blocks of a loop part groups of its iterations, which one instruction adds up."""
    return block % group > 0 or (group > 1 and extent % block > 0)


def _unrolled(
    r: Reduction,
    order: Sequence[str],
    tile: RegisterTile,
    extents: Mapping[str, int],
    machine: Machine,
) -> list[Step]:
    """Steps that unroll short reductions, so that loads are shared and loops cost nothing.

    Only where registers are left: the loads of the next step are moved up among this step's
    arithmetic, and a spill costs more than a loop.
    """
    steps: list[Step] = []
    size = tile.size * multiplications(r, machine)
    for v in reversed(order):
        extent = extents[v]
        if extent == 0 or crowded(r, tile, v, extent, machine):
            break
        if extent * size <= MOST_WRITTEN_OUT and extent <= LONGEST_UNROLLED:
            steps.append(Mark(v, Kind.UNROLL))
            size *= extent
            continue
        most = MOST_WRITTEN_OUT if multiplications(r, machine) > 1 else MOST_OF_LONG
        factor = next((f for f in (8, 4, 2) if f * size <= most and extent % f == 0), 1)
        if extent % machine.width == 0 and any(t.across(tile.vector, v) for t in r.reads):
            # Whole squares are transposed: each part loads a vector for every lane.
            factor = machine.width
        if factor > 1:
            steps += [Split(v, factor), Mark(f"{v}.i", Kind.UNROLL)]
        break
    return steps
