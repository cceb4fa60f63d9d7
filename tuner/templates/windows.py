"""The schedule of sums over windows: depthwise convolutions, pooling.

A vector along memory, and rows of the output one above the other that share what they read: rows of
a window overlap. A window is written out, but for loops across the tile where a long function
follows, which go over what lies inside, and for a loop over lanes of a long window, each step of
which all rows take together. What else lies outside of the input is told by masks, so
every part of the loops that touches an edge has code of its own, and the inside has none. Rows of
which only the run knows how many there are have memory with a halo, which needs no masks; the tile
at their end has code for several numbers of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import combinations, permutations
from math import ceil

from rutc.base.record import record
from rutc.tensor_ir.expr import has_functions
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Assign, Kernel, Kind
from rutc.tensor_ir.machine import NARROWEST_MASKED, Machine
from rutc.tensor_ir.statements import exprs, walk_stmts
from rutc.tensor_ir.steps import (
    Inside,
    Mark,
    NotApplicable,
    Overlap,
    Part,
    Peel,
    PrefetchBlock,
    Reorder,
    Split,
    Step,
    Tile,
)
from rutc.tuner.access import Shape
from rutc.tuner.choice import Choice, shared_counts, shared_out, shared_text, worth_sharing
from rutc.tuner.dot import products_together
from rutc.tuner.lengths import leaves_rest, never_longer
from rutc.tuner.passes import (
    Pass,
    edge_parts,
    fused_pass_of,
    may_be_looped,
    pass_of,
    places_read,
    vectors_along,
    with_fused_loops,
)
from rutc.tuner.space import Axis, Default, Template
from rutc.tuner.tiles.packing import packed, packing
from rutc.tuner.tiles.register_tile import RegisterTile
from rutc.tuner.tiles.window_tiles import (
    MOST_ROWS,
    MOST_WRITTEN_OUT,
    may_be_rows,
    order_around,
    pairs_of_rows,
    place_of_vectors,
    tile_rows,
    vectors_beside,
    weights_of,
)

MOST_PERMUTED = 4


@record
class Windows:
    """The parameters of a schedule of windows: any that fit the kernel compute the same.

    A tile has `vectors` registers along the loop `vector`, for each of the `rows` (loop, how many)
    or for a single one. Rows are computed `together`, a tap of all before the next, or each by
    itself. Loops over the window are taken in the order `taps`, and written out but for those
    `looped` over what lies inside. The loops around, those of tiles among them, are taken in the
    `order` of all; threads share the first `parallel` ones, or all. The edges of loops in
    `parts` have code of their own. A last vector with idle lanes lies over the one before with
    `overlap`. With `prefetch` the next images' or channels' rows are asked for.
    """

    vector: str
    vectors: int
    rows: tuple[str, int] | None
    together: bool
    taps: tuple[str, ...]
    order: tuple[str, ...]
    looped: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    overlap: bool = False
    prefetch: bool = True
    parallel: int | None = 0

    def __str__(self) -> str:
        """What it has: `x x 2, y x 7 together; taps kx ky, in n c, parts y x, all loops shared`."""
        rows = "" if self.rows is None else f", {self.rows[0]} x {self.rows[1]}"
        said = [
            f"taps {' '.join(self.taps)}",
            f"in {' '.join(self.order)}" if self.order else "",
            f"looped {' '.join(self.looped)}" if self.looped else "",
            f"parts {' '.join(self.parts)}" if self.parts else "",
            "overlapping" if self.overlap else "",
            "" if self.prefetch else "nothing asked for",
            shared_text(self.parallel),
        ]
        tile = f"{self.vector} x {self.vectors}{rows}" + (" together" if self.together else "")
        return f"{tile}; {', '.join(filter(None, said))}"


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Windows] | None:
    """The vector with the fewest idle lanes, and rows that share most of what they read."""
    found = pass_of(kernel, shape)
    if found is None or (vector := _vector(found, machine)) is None:
        return None
    liked = _liked(found, vector, machine)
    found = with_fused_loops(found)
    if found is None or (vector := _vector(found, machine)) is None:
        return None
    kernel, shape = found.kernel, found.shape
    extents = shape.extents
    rows = tile_rows(found, vector, machine)
    vectors = min(machine.vectors_at_once, ceil(extents[vector] / machine.width))
    if rows is not None:
        vectors = vectors_beside(found, vector, rows, machine)
    tiled = {vector, *(rows[:1] if rows is not None else ())}
    order = order_around(found, vector, rows)
    others = [v for v in order if v not in tiled]
    place = place_of_vectors(found, order, (vector, vectors * machine.width), rows, machine)
    factors = _factors(found, vector, vectors, rows, machine)
    looped = _looped(found, tiled) if rows is not None else ()
    # Where rows lie is found once for all of the innermost loop, if that takes the run's sizes.
    around = len(others) + len(factors)
    shared = around - 1 if shape.symbolic and around > 1 else None
    rest = extents[vector] % (vectors * machine.width)
    idle = vector in factors and vector not in shape.symbolic and rest > 0
    point = Windows(
        vector,
        vectors,
        rows,
        rows is not None and not found.strided(vector),
        _taps(found, vector, rows),
        (*order[:place], vector, *order[place:]),
        looped,
        tuple(v for v, _ in edge_parts(found, (*factors, *reversed(others)), factors, looped)),
        idle and _lanes_apart(shape, machine),
        prefetch=not (found.strided(vector) and 2 * vectors * machine.width >= extents[vector]),
        parallel=shared if worth_sharing(shape, machine) else 0,
    )
    liked = liked and _liked(found, vector, machine)
    # Without weights tiles share little, but read, and store, many rows at a time. Of windows that
    # do not overlap they share as much.
    apart = not _overlap(found)
    alike = apart or not weights_of(found, vector)
    weighed = liked and (bool(found.kept) or (alike and (apart or not shape.symbolic)))
    pairs = () if rows is not None else pairs_of_rows(found, vector)
    return Default(point, liked, weighed, tuple(replace(point, rows=(v, 2)) for v in pairs))


def _overlap(found: Pass) -> bool:
    """Whether neighbouring windows have places in common."""

    def places(windows: int, bound: str, v: str) -> int:
        return places_read(found.reads, v, bound, windows, found.shape.extents[bound])

    return any(places(2, b, v) < 2 * places(1, b, v) for b, v in found.partners.items())


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter."""
    found = fused_pass_of(kernel, shape)
    if found is None:
        return {"vector": ()}
    shape = found.shape
    shared = [x.var for x in shape.shared]
    moved = list(dict.fromkeys(found.partners.values()))
    rows = [(v, n) for v in moved for n in range(2, min(shape.extents[v], MOST_ROWS) + 1)]
    looped = (b for b in sorted(found.partners) if may_be_looped(found, b))
    edged = [v for v in moved if v not in shape.symbolic]
    return {
        "vector": tuple(vectors_along(found)),
        "vectors": tuple(range(1, machine.vectors_at_once + 1)),
        "rows": (None, *(x for x in rows if may_be_rows(found, x[0]))),
        "together": (True, False),
        "taps": tuple(permutations(sorted(found.partners))),
        "order": tuple(permutations(shared) if len(shared) <= MOST_PERMUTED else [tuple(shared)]),
        "looped": ((), *((b,) for b in looped)),
        "parts": tuple(p for n in range(len(edged) + 1) for p in combinations(edged, n)),
        "overlap": (False, True),
        "prefetch": (True, False),
        "parallel": shared_counts(len(shared), machine),
    }


def _liked(found: Pass, vector: str, machine: Machine) -> bool:
    """Whether to write windows out, rather than to multiply them as contractions are."""
    shape = found.shape
    # Of neighbouring lanes, pairs of products take what LLVM multiplies one by one. Groups of bytes
    # that lie apart are put side by side by one operation, which takes the place of conversions.
    if products_together(shape, machine) > 1 and found.strided(vector):
        return False
    # What lanes that lie apart share is shared along a window that is written out, and rows share
    # most of what a long one reads.
    if found.kept and (found.strided(vector) or tile_rows(found, vector, machine) is None):
        return False
    fixed = shape.symbolic.isdisjoint(found.partners.values())
    return fixed or tile_rows(found, vector, machine) is not None


def _vector(found: Pass, machine: Machine) -> str | None:
    """The loop along which all memory lies, or nearly; the one of which most lanes are used."""

    def idle(v: str) -> float:
        extent = found.shape.extents[v]
        lanes = machine.lanes(extent)
        return ceil(extent / lanes) * lanes / extent

    return min(vectors_along(found), key=idle, default=None)


def _factors(
    found: Pass, vector: str, vectors: int, rows: tuple[str, int] | None, machine: Machine
) -> dict[str, int]:
    """The loops of a tile that go on around it, and how many iterations a tile has."""
    tile = ((rows,) if rows is not None else ()) + ((vector, vectors * machine.width),)
    sizes, symbols = found.shape.sizes, dict(found.kernel.symbols)

    def is_whole(v: str, f: int) -> bool:
        """Whether a single tile takes the loop, which has an iteration in every run."""
        bounds = Index.of(sizes[v]).bounds(symbols)
        never_empty = bounds is not None and bounds[0] > 0
        return never_empty and never_longer(sizes[v], f, symbols)

    return {v: f for v, f in tile if not is_whole(v, f)}


def windows(kernel: Kernel, shape: Shape, point: Windows, machine: Machine) -> Choice:
    """Rows and a vector of windows, written out.

    Raises:
        NotApplicable: the parameters do not fit the kernel.
    """
    found = fused_pass_of(kernel, shape)
    if found is None:
        raise NotApplicable("it passes no windows")
    shape, vector, rows = found.shape, point.vector, point.rows
    _check(found, point)
    extents = shape.extents
    width = point.vectors * machine.width
    factors = _factors(found, vector, point.vectors, rows, machine)
    tiled = (*(rows[:1] if rows is not None else ()), vector)
    inside = [f"{v}.i" if v in factors else v for v in tiled]
    others = [v for v in point.order if v not in tiled]
    outer = tuple(f"{v}.o" if v in factors else v for v in point.order if v in {*others, *factors})
    steps: list[Step] = [*found.fused, *(Split(v, f) for v, f in factors.items())]
    steps.append(Reorder((*outer, *inside)))
    steps += shared_out(outer, point.parallel)
    if point.overlap:
        if vector not in factors or vector in shape.symbolic or extents[vector] % width == 0:
            raise NotApplicable(f"no vector along {vector} has idle lanes")
        steps.append(Overlap((f"{vector}.o",)))
    edges = dict(edge_parts(found, point.parts, factors, point.looped))
    if edges.keys() != set(point.parts):
        raise NotApplicable("some parts have no edges, or too many")
    steps += (Part(f"{v}.o" if v in factors else v, points) for v, points in edges.items())
    uneven = [v for v in factors if v in shape.symbolic and leaves_rest(shape.sizes[v], factors[v])]
    steps += (Peel(f"{v}.o") for v in uneven)
    if rows is not None and not point.together:
        # One row after the other, each stored at once.
        steps += [Tile((inside[1],), (Kind.VECTOR,)), Mark(inside[0], Kind.UNROLL)]
    else:
        kinds = (*(Kind.UNROLL for _ in inside[1:]), Kind.VECTOR)
        steps.append(Tile(tuple(inside), kinds))
    bound = list(point.taps)
    own = [x.var for x in found.reduction.loops]
    if point.together:
        bound = [*(v for v in own if v not in bound), *bound]
        # Of many taps of a row each would wait for the one before it.
        first = len(bound) if found.kept else len(bound) - 1
        steps.append(Reorder((*bound[:first], inside[0], *bound[first:], inside[-1])))
    elif bound != own:
        steps.append(Reorder((*(v for v in own if v not in bound), *bound)))
    loops = {*point.looped, *found.kept}
    steps += [Mark(v, Kind.UNROLL) for v in own if extents[v] > 1 and v not in loops]
    if point.looped:
        steps.append(Inside(point.looped))
    if point.prefetch:
        steps += _ahead(found, others, machine)
    tile = RegisterTile(vector, point.vectors, (), 0.0)
    packs = {
        t.buffer: packing(found.kernel, t, bound, tile, width, extents, None, {})
        for t in found.reduction.reads
        if t.packable
    }
    return packed(packs, steps)


def _check(found: Pass, point: Windows) -> None:
    """Raises NotApplicable where loops are not those that the parameters name."""
    shape, rows = found.shape, point.rows
    if point.vector not in vectors_along(found):
        raise NotApplicable(f"memory does not lie along {point.vector}")
    tile = {point.vector, *(rows[:1] if rows is not None else ())}
    if rows is not None and (len(tile) == 1 or not may_be_rows(found, rows[0])):
        raise NotApplicable(f"{rows[0]} has no rows")
    if point.together and rows is None:
        raise NotApplicable("a single row is computed together with none")
    if sorted(point.order) != sorted(x.var for x in shape.shared):
        raise NotApplicable("the loops around are others")
    if sorted(point.taps) != sorted(found.partners):
        raise NotApplicable("the loops over the window are others")
    if any(found.partners.get(b) in {*tile, None} for b in point.looped):
        raise NotApplicable("loops over the window that lie along a tile are written out")
    if rows is not None and found.written_out(*rows) > MOST_WRITTEN_OUT:
        raise NotApplicable("a tile takes in too many elements of windows")


def _lanes_apart(shape: Shape, machine: Machine) -> bool:
    """Whether a vector with idle lanes is loaded or stored lane by lane, or in small pieces."""
    narrow = any(t.bytes < NARROWEST_MASKED for t in shape.touches if not t.packed)
    return narrow and not machine.has_masks


def _ahead(found: Pass, others: Sequence[str], machine: Machine) -> Iterator[Step]:
    """Steps that ask for the next images' or channels' rows while those at hand are computed.

    The tiles of one plane read, and store, here and there in it, which no hardware foresees but
    where one row is read after the other, in halves at least.
    """
    ahead, line = machine.page_bytes, machine.line_bytes
    moved, extents = set(found.partners.values()), found.shape.extents
    # A slice of one image has no next one.
    several = [v for v in others if v not in moved and extents[v] > 1]
    for t in (*found.reduction.reads, *(t for t in found.shape.touches if t.is_store)):
        planes = [v for v in several if (t.strides.get(v) or 0) > 0]
        layout = found.kernel.buffer(t.buffer).layout
        apart = all(isinstance(n, int) for _, n in layout.extents) and all(
            axis.whole and axis.div == 1 for axis in layout.axes
        )
        if t.packed or t.gathered or not planes or not apart or t.buffer_bytes < ahead:
            continue
        yield PrefetchBlock(t.buffer, planes[-1], ahead // t.bytes, line // t.bytes, 1)


def _taps(found: Pass, vector: str, rows: tuple[str, int] | None) -> tuple[str, ...]:
    """The loops over a window: that along the rows innermost, so that rows meet what they share.

    Those that stay loops come first. Where neighbouring lanes are apart, the loop along the vector
    comes last: its places lie in the same loads.
    """

    def rank(b: str) -> tuple[int, str]:
        v = found.partners[b]
        if b in found.kept:
            return -1, b
        if v == vector and found.strided(vector):
            return 2, b
        return int(rows is not None and v == rows[0]), b

    return tuple(sorted(found.partners, key=rank))


def _looped(found: Pass, tiled: AbstractSet[str]) -> tuple[str, ...]:
    """Loops over a window that stay loops, over what lies inside: those across a tile's rows.

    A tile needs no code of its own where it touches an edge that lies across its rows. Only where
    what lies outside adds nothing, and where long functions follow the sum: their code is repeated
    for no edge then, and the loop's own time is lost beside theirs.
    """
    after = (e for s in walk_stmts(found.kernel.body) if isinstance(s, Assign) for e in exprs(s))
    if not any(map(has_functions, after)):
        return ()
    across = (b for b, v in sorted(found.partners.items()) if v not in tiled)
    return tuple(b for b in across if may_be_looped(found, b))


WINDOWS = Template("windows", Windows, axes, default, windows)
