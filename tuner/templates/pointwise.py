"""The schedule of kernels without reductions: they are bound by memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import pairwise

from rutc.base.record import record
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Cut, NotApplicable, Part, Reorder, Split, Step, Tile
from rutc.tuner.access import Shape
from rutc.tuner.across import (
    blocks_of_stores,
    elements_in_turn,
    outer_vectors,
    squares,
    turns_of_short,
)
from rutc.tuner.arms import (
    MOST_ARMS,
    comparisons,
    computed_arms,
    edges_of_reads,
    far_reads_asked_for,
    turns,
)
from rutc.tuner.choice import (
    Choice,
    shared_out,
    shared_text,
)
from rutc.tuner.collapse import fuse_innermost
from rutc.tuner.lengths import affordable
from rutc.tuner.vectors import (
    element_by_element,
    vectorised,
)


class Form(Enum):
    """What becomes of the innermost loops."""

    VECTORS = "vectors"
    """Vectors of the innermost one."""
    PIECES = "pieces"
    """Vectors of each of its pieces, between which comparisons and reads change their course."""
    ARMS = "arms"
    """Each vector, or square, with all values of the loops that decide which arm of a choice is
    computed."""
    ARMS_IN_COLUMNS = "arms in columns"
    """The same of vectors, each for all iterations of the loops around it in turn, and no longer
    than the first cache has room for in the sets to which it stores."""
    SQUARES = "squares"
    """Squares of the last two, of an operand that lies along the other one, sorted in registers."""
    TURNS = "turns"
    """Vectors of the last one, for each iteration of the short one around it in turn."""
    COLUMNS = "columns"
    """Vectors of the last one, each for all iterations of the loops around it in turn."""
    BLOCKS = "blocks"
    """Vectors of the last one, for each iteration in a block of the one around it, as a store's
    memory has them."""
    ELEMENTS = "elements"
    """Single elements of the last one, for as many iterations of the first one in turn as there
    would be vectors: these share a place that data tell."""


@record
class Pointwise:
    """The parameters of a pointwise schedule: any that fit the kernel compute the same.

    Loops are taken in this `order`, the outermost first, and the last ones become what the `form`
    says, with so many `vectors` in an iteration; 0 makes none. Up to `fused` loops around each
    innermost one become one with it before, where no access can tell. The edges of loops in `parts`
    have code of their own. The innermost loop is in so many equal `chunks`, or each block of
    vectors is a chunk with 0. Threads share the first `parallel` loops around and of chunks, or all
    of them. Lanes that lie apart in the operands `singly` have loads and stores of their own;
    elsewhere vectors across memory are sorted in registers. With `prefetch` arms ask for what the
    next ones read.
    """

    form: Form
    order: tuple[str, ...]
    vectors: int = 1
    fused: int = 0
    parts: tuple[str, ...] = ()
    chunks: int = 1
    parallel: int | None = 0
    singly: tuple[str, ...] = ()
    prefetch: bool = True

    def __str__(self) -> str:
        """What it has: `vectors of i j x 4; 1 fused, parts i, all loops shared`."""
        chunks = f"{self.chunks} chunks" if self.chunks else "chunks of vectors"
        said = [
            f"{self.fused} fused" if self.fused else "",
            f"parts {' '.join(self.parts)}" if self.parts else "",
            chunks if self.chunks != 1 else "",
            shared_text(self.parallel),
            f"{' '.join(self.singly)} one by one" if self.singly else "",
            "" if self.prefetch else "nothing asked for",
        ]
        what = ", ".join(filter(None, said))
        form = f"{self.form.value} of {' '.join(self.order)} x {self.vectors}"
        return form + (f"; {what}" if what else "")


def pointwise(kernel: Kernel, shape: Shape, point: Pointwise, machine: Machine) -> Choice:
    """Long vectors in the order of memory, squares where operands cross, arms apart.

    Raises:
        NotApplicable: the parameters do not fit the kernel.
    """
    own = [x.var for x in shape.shared]
    if not own or sorted(point.order) != sorted(own):
        raise NotApplicable(f"the loops are {', '.join(own) or 'none'}")
    symbols, sizes = dict(kernel.symbols), shape.sizes
    vector = point.order[-1]
    match point.form:
        case Form.VECTORS:
            made = [*_reordered(point, own), *_vectors(kernel, shape, point, machine)]
        case Form.PIECES:
            made = [*_reordered(point, own), *_pieces(kernel, shape, point, machine)]
        case Form.ARMS | Form.ARMS_IN_COLUMNS as form:
            width, columns = point.vectors * machine.width, form is Form.ARMS_IN_COLUMNS
            made = computed_arms(
                kernel, shape, point.order, width, machine, point.parallel, columns=columns
            )
            if point.prefetch and not columns:
                made += far_reads_asked_for(kernel, shape, point.order, machine)
        case Form.SQUARES:
            ends = {v: edges_of(kernel, shape, v) for v in point.parts}
            parted = [v for v, points in ends.items() if points]
            if with_edges(parted, ends) != tuple(parted):
                raise NotApplicable(f"{', '.join(parted)} have too many edges")
            made = squares(
                point.order,
                shape.touches,
                sizes,
                symbols,
                machine,
                point.fused,
                point.parallel,
                ends,
            )
        case Form.TURNS:
            made = turns_of_short(
                point.order,
                shape.touches,
                sizes,
                symbols,
                machine,
                point.vectors,
                point.fused,
                point.parallel,
            )
        case Form.COLUMNS:
            made = outer_vectors(
                point.order, sizes, symbols, machine, point.vectors, point.parallel
            )
        case Form.BLOCKS:
            made = _in_blocks(kernel, shape, point, machine)
        case Form.ELEMENTS:
            made = elements_in_turn(
                point.order, shape.touches, sizes, point.vectors, point.fused, point.parallel
            )
    return Choice((*made, *element_by_element(point.singly, shape.touches, vector)))


def _in_blocks(kernel: Kernel, shape: Shape, point: Pointwise, machine: Machine) -> list[Step]:
    """Vectors along the last loop, for each iteration in a block of the one before in turn.

    %y[p/16, c/2, p % 16, c % 2] = %x[c, p]   ->   a vector along p for c and c + 1

    Raises:
        NotApplicable: no store's memory has short blocks of the loop, or vectors do not divide
            the last one.
    """
    if len(point.order) < 2:
        raise NotApplicable("there are no two loops")
    *others, along, vector = point.order
    block = blocks_of_stores(kernel, shape).get(along, 0)
    width = point.vectors * machine.width
    sizes = shape.sizes
    for v, size in ((along, block), (vector, width)):
        if not size or not isinstance(sizes[v], int) or sizes[v] % size:
            raise NotApplicable(f"{v} has no blocks")
    around = [*others, f"{along}.o", f"{vector}.o"]
    inside = (f"{along}.i", f"{vector}.i")
    return [
        *_reordered(point, [x.var for x in shape.shared]),
        Split(along, block),
        Split(vector, width),
        Reorder((*around, *inside)),
        *shared_out(around, point.parallel),
        Tile(inside, (Kind.UNROLL, Kind.VECTOR)),
    ]


def _reordered(point: Pointwise, own: list[str]) -> Iterator[Step]:
    if len(own) > 1 and list(point.order) != own:
        yield Reorder(point.order)


def _vectors(kernel: Kernel, shape: Shape, point: Pointwise, machine: Machine) -> Iterator[Step]:
    """Vectors of the innermost loop, in chunks."""
    long = fuse_innermost(point.order, shape.sizes, shape.touches, point.fused)
    yield from long.steps
    *around, vector = long.loops
    inner, size = vector, long.size
    if point.chunks > 1:
        if not isinstance(size, int) or size % point.chunks:
            raise NotApplicable(f"{vector} has no {point.chunks} equal chunks")
        size //= point.chunks
        yield Split(vector, size)
        inner = f"{vector}.i"
        around.append(f"{vector}.o")
        yield from shared_out(around, point.parallel)
    if point.chunks == 0:
        around.append(f"{vector}.o")
    sharing = shared_out(around, point.parallel) if point.chunks <= 1 else []
    if point.vectors:
        yield from vectorised(inner, size, machine, point.vectors, sharing)
    else:
        yield from sharing
    yield from _parted(kernel, shape, point, around)


def _pieces(kernel: Kernel, shape: Shape, point: Pointwise, machine: Machine) -> Iterator[Step]:
    """Vectors of each piece of the innermost loop."""
    *others, vector = point.order
    cuts = cuts_of(kernel, shape, vector)
    if vector in point.parts:
        cuts = tuple(sorted({*cuts, *edges_of(kernel, shape, vector)}))
    if not cuts:
        raise NotApplicable(f"nothing changes its course along {vector}")
    yield Cut(vector, cuts)
    for number, (start, end) in enumerate(pairwise([0, *cuts, shape.extents[vector]])):
        name = vector if number == 0 else f"{vector}.{number}"
        if point.vectors:
            yield from vectorised(name, end - start, machine, point.vectors)
    yield from shared_out(others, point.parallel)
    yield from _parted(kernel, shape, point, others, but=vector)


def cuts_of(kernel: Kernel, shape: Shape, v: str) -> tuple[int, ...]:
    """Where comparisons and the courses of reads change along a loop."""
    if v in shape.symbolic:
        return ()
    extent = shape.extents[v]
    return tuple(sorted({*comparisons(kernel, v, extent), *turns(kernel, v, extent)}))


def edges_of(kernel: Kernel, shape: Shape, v: str) -> tuple[int, ...]:
    """Where comparisons change along a loop, and reads enter and leave their buffers."""
    return () if v in shape.symbolic else edges_of_reads(kernel, v, shape.extents[v])


def _parted(
    kernel: Kernel, shape: Shape, point: Pointwise, around: list[str], but: str | None = None
) -> Iterator[Step]:
    """Steps that give the ranges between their edges code of their own; `but` one loop has it."""
    arms = 1
    if not {*point.parts} - {but} <= set(around):
        raise NotApplicable(f"the loops around are {', '.join(around) or 'none'}")
    for v in around:
        if v in point.parts:
            edges = edges_of(kernel, shape, v)
            arms *= len(edges) + 1
            if not edges or arms > MOST_ARMS:
                raise NotApplicable(f"{v} has no edges, or there are too many")
            yield Part(v, edges)


def with_edges(loops: list[str], ends: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The loops whose edges have code of their own, while that is little."""
    return tuple(v for v, _ in affordable(((v, ends.get(v, ())) for v in loops), MOST_ARMS))
