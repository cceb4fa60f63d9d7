"""The schedule of kernels without reductions: they are bound by memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from itertools import combinations, pairwise, permutations

from rutc.base.record import record
from rutc.tensor_ir.expr import IndexValue
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import NEAR_STRIDES, Machine
from rutc.tensor_ir.steps import Cut, NotApplicable, Part, Reorder, Split, Step, Tile
from rutc.tuner.access import Shape, memory_order
from rutc.tuner.across import (
    across,
    along_far_rows,
    along_reads,
    beside_gathers,
    blocks_of_stores,
    crowded,
    gathers_columns,
    of_words,
    outer_vectors,
    short_and_long,
    squares,
    turns_of_short,
)
from rutc.tuner.arms import (
    MOST_ARMS,
    choosing_loops,
    comparisons,
    computed_arms,
    edges_of_reads,
    expressions_of,
    turned_order,
    turns,
)
from rutc.tuner.choice import (
    Choice,
    loops_of_long_tasks,
    pays,
    rough_cycles,
    shared_counts,
    shared_out,
    shared_text,
    worth_sharing,
)
from rutc.tuner.collapse import fuse_innermost
from rutc.tuner.lengths import affordable, never_longer
from rutc.tuner.space import Axis, Default, Template
from rutc.tuner.vectors import (
    best_vector,
    copies_of_body,
    element_by_element,
    element_by_element_axis,
    vectorised,
)

VECTORS = (0, 1, 2, 4, 8)
CHUNKS = (1, 0, 2, 4, 8, 16, 32, 64)
OF_VECTORS, OF_ANY = range(16, 65), range(8, 257)
"""Chunks that threads share: of whole vectors, and of any number of iterations."""
MOST_PERMUTED = 4
MOST_PARTED = 3


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


@record
class Pointwise:
    """The parameters of a pointwise schedule: any that fit the kernel compute the same.

    Loops are taken in this `order`, the outermost first, and the last ones become what the `form`
    says, with so many `vectors` in an iteration; 0 makes none. Up to `fused` loops around each
    innermost one become one with it before, where no access can tell. The edges of loops in `parts`
    have code of their own. The innermost loop is in so many equal `chunks`, or each block of
    vectors is a chunk with 0. Threads share the first `parallel` loops around and of chunks, or all
    of them. Lanes that lie apart in the operands `singly` have loads and stores of their own;
    elsewhere vectors across memory are sorted in registers.
    """

    form: Form
    order: tuple[str, ...]
    vectors: int = 1
    fused: int = 0
    parts: tuple[str, ...] = ()
    chunks: int = 1
    parallel: int | None = 0
    singly: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What it has: `vectors of i j x 4; 1 fused, parts i, all loops shared`."""
        chunks = f"{self.chunks} chunks" if self.chunks else "chunks of vectors"
        said = [
            f"{self.fused} fused" if self.fused else "",
            f"parts {' '.join(self.parts)}" if self.parts else "",
            chunks if self.chunks != 1 else "",
            shared_text(self.parallel),
            f"{' '.join(self.singly)} one by one" if self.singly else "",
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
        case Form.SQUARES:
            ends = {v: _edges(kernel, shape, v) for v in point.parts}
            with_edges = [v for v, points in ends.items() if points]
            if _affordable(with_edges, ends) != tuple(with_edges):
                raise NotApplicable(f"{', '.join(with_edges)} have too many edges")
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
    cuts = _cuts(kernel, shape, vector)
    if not cuts:
        raise NotApplicable(f"nothing changes its course along {vector}")
    yield Cut(vector, cuts)
    for number, (start, end) in enumerate(pairwise([0, *cuts, shape.extents[vector]])):
        name = vector if number == 0 else f"{vector}.{number}"
        if point.vectors:
            yield from vectorised(name, end - start, machine, point.vectors)
    yield from shared_out(others, point.parallel)
    yield from _parted(kernel, shape, point, others)


def _cuts(kernel: Kernel, shape: Shape, v: str) -> tuple[int, ...]:
    """Where comparisons and the courses of reads change along a loop."""
    if v in shape.symbolic:
        return ()
    extent = shape.extents[v]
    return tuple(sorted({*comparisons(kernel, v, extent), *turns(kernel, v, extent)}))


def _edges(kernel: Kernel, shape: Shape, v: str) -> tuple[int, ...]:
    """Where comparisons change along a loop, and reads enter and leave their buffers."""
    return () if v in shape.symbolic else edges_of_reads(kernel, v, shape.extents[v])


def _parted(kernel: Kernel, shape: Shape, point: Pointwise, around: list[str]) -> Iterator[Step]:
    """Steps that give the ranges between their edges code of their own."""
    arms = 1
    if not set(point.parts) <= set(around):
        raise NotApplicable(f"the loops around are {', '.join(around) or 'none'}")
    for v in around:
        if v in point.parts:
            edges = _edges(kernel, shape, v)
            arms *= len(edges) + 1
            if not edges or arms > MOST_ARMS:
                raise NotApplicable(f"{v} has no edges, or there are too many")
            yield Part(v, edges)


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Pointwise] | None:
    """Arms where loops choose them, pieces, squares or long vectors; None without loops."""
    if not shape.shared:
        return None
    touches = shape.touches
    copies = copies_of_body(kernel.body, machine)
    loops = [x.var for x in shape.shared]
    parallel = None if worth_sharing(shape, machine, len(touches)) else 0
    chosen = choosing_loops(kernel, shape.sizes)
    free = [v for v in loops if v not in chosen]
    vector = best_vector(free if chosen and free else loops, shape, machine)
    others = memory_order([v for v in loops if v != vector], shape)
    order = (*others, vector)
    if chosen and free:
        turned = turned_order(kernel, shape, machine)
        arms = Pointwise(Form.ARMS, turned or order, parallel=parallel)
        apart = turned is None and any(not t.unit(vector) for t in touches if t.is_store)
        rivals = _of_arms_apart(kernel, shape, arms, machine) if apart else ()
        return Default(arms, rivals=tuple(rivals))
    ends = {v: _edges(kernel, shape, v) for v in others}
    if _cuts(kernel, shape, vector):
        if found := across(order, touches):
            squared = Pointwise(Form.SQUARES, found, parts=(vector,), parallel=parallel)
            with suppress(NotApplicable):
                pointwise(kernel, shape, squared, machine)
                return Default(squared)
        parts = _affordable(others, ends)
        return Default(Pointwise(Form.PIECES, order, copies, parts=parts, parallel=parallel))
    candidates: list[Pointwise] = []
    for v in blocks_of_stores(kernel, shape):
        last = (*(x for x in loops if x not in (v, vector)), v, vector)
        if v != vector:
            candidates.append(Pointwise(Form.BLOCKS, last, parallel=parallel))
    fused = max(len(loops) - 2, 0)
    if not any(ends.values()) and (found := short_and_long(loops, touches, shape.sizes)):
        candidates.append(Pointwise(Form.TURNS, found, fused=fused, parallel=parallel))
    if found := beside_gathers(order, touches):
        candidates.append(Pointwise(Form.SQUARES, found, fused=fused, parallel=parallel))
    if found := across(order, touches):
        other = along_far_rows(found, touches, shape.sizes, machine, fused) or along_reads(
            found, touches, shape.sizes, dict(kernel.symbols), machine, fused
        )
        orders = [found] if other is None else [other, found]
        candidates += [Pointwise(Form.SQUARES, o, fused=fused, parallel=parallel) for o in orders]
    lanes = copies * machine.width
    if gathers_columns(order, shape, lanes, machine) and not any(b.gradual for b in kernel.args):
        # Threads share columns, or each would find places anew.
        columns = shape.extents[vector] // lanes
        if parallel == 0 or columns >= machine.cores:
            shared = 0 if parallel == 0 else 1
            candidates.append(Pointwise(Form.COLUMNS, order, copies, parallel=shared))
    for point in candidates:
        try:
            pointwise(kernel, shape, point, machine)
        except NotApplicable:
            continue
        return Default(point, rivals=_other_squares(point))
    made = Pointwise(Form.VECTORS, order, copies, parallel=parallel)
    liked = _longest(kernel, shape, made, ends, machine)
    return Default(liked, rivals=tuple(_squares_beside(vector, others, shape, fused, parallel)))


def _of_arms_apart(
    kernel: Kernel, shape: Shape, arms: Pointwise, machine: Machine
) -> Iterator[Pointwise]:
    """What may take less than arms whose lanes are stored apart, each to a line of its own.

    Columns fill these lines before others come to the same sets of the first cache: where they load
    whole lines, or their stores alone take half of the sets. Lanes along rows each choose an arm.
    """
    vector = arms.order[-1]
    loads, stores = ([t for t in shape.touches if t.is_store == x] for x in (False, True))
    whole = not any(machine.width * t.bytes % machine.line_bytes for t in loads if t.unit(vector))
    if whole or any(crowded(t, vector, machine.width, machine) for t in stores):
        yield replace(arms, form=Form.ARMS_IN_COLUMNS)
    loops = [x.var for x in shape.shared]
    along = best_vector(loops, shape, machine)
    others = memory_order([v for v in loops if v != along], shape)
    ends = {v: _edges(kernel, shape, v) for v in others}
    copies = copies_of_body(kernel.body, machine)
    made = Pointwise(Form.VECTORS, (*others, along), copies, parallel=arms.parallel)
    yield _longest(kernel, shape, made, ends, machine)


def _squares_beside(
    vector: str, others: list[str], shape: Shape, fused: int, parallel: int | None
) -> Iterator[Pointwise]:
    """Squares whose vectors lie along another loop, where loads along this one lie apart."""
    loads = (t for t in shape.touches if not t.packed and not t.gathered and not t.is_store)
    if all(t.strides.get(vector) in (None, 0, 1, *NEAR_STRIDES) for t in loads):
        return
    for v in others:
        order = (*(x for x in others if x != v), vector, v)
        found = across(order, shape.touches)
        if found is not None and of_words(found, shape.touches):
            yield Pointwise(Form.SQUARES, found, fused=fused, parallel=parallel)


def _other_squares(point: Pointwise) -> tuple[Pointwise, ...]:
    """The same with squares one after the other along their other side; none of other forms.

    Both take the same parts of lines, whatever their elements.
    """
    if point.form is not Form.SQUARES:
        return ()
    *others, along, vector = point.order
    return (replace(point, order=(*others, vector, along)),)


def _longest(
    kernel: Kernel,
    shape: Shape,
    made: Pointwise,
    ends: Mapping[str, tuple[int, ...]],
    machine: Machine,
) -> Pointwise:
    """The same with the longest vectors; threads share their loop where it is the only one."""
    *others, vector = made.order
    touches = shape.touches
    extent, many = shape.extents[vector], shape.shared_extents[vector]
    alike = len(made.order) - len(fuse_innermost(made.order, shape.sizes, touches).loops)
    fused, asked, last = 0, _asked(kernel), {vector}
    for v in reversed(others[len(others) - alike :]):
        # Each lane would divide, unless those of a vector are one in all but the last loop.
        uneven = not shape.symbolic.isdisjoint(last) or extent % machine.width != 0
        divided = uneven and not asked.isdisjoint({v, *last})
        if extent >= machine.width and (ends.get(v) or divided):
            break
        last.add(v)
        fused += 1
        extent, many = extent * shape.extents[v], many * shape.shared_extents[v]
    around = others[: len(others) - fused]
    size = fuse_innermost(made.order, shape.sizes, touches, fused).size
    made = replace(made, fused=fused)
    if never_longer(size, 1, dict(kernel.symbols)) and not isinstance(size, int):
        return replace(made, vectors=0)
    if not around and pays(many * len(touches) / 2, machine):
        chunks = _chunks(extent, machine) if isinstance(size, int) else 0
        if chunks != 1:
            return replace(made, chunks=chunks, parallel=None)
    made = replace(made, parts=_affordable(around, ends))
    if made.parallel is None:
        cycles = rough_cycles(shape, machine, len(touches))
        long = loops_of_long_tasks([shape.shared_extents[v] for v in around], cycles, machine)
        made = replace(made, parallel=long)
    return made


def _asked(kernel: Kernel) -> frozenset[str]:
    """The loops of which elements ask how far they are."""
    found = expressions_of(kernel)
    return frozenset(n for x in found if isinstance(x, IndexValue) for n in x.index.names())


def axes(kernel: Kernel, shape: Shape, machine: Machine) -> Mapping[str, Axis]:
    """The values of every parameter."""
    own = [x.var for x in shape.shared]
    if not own:
        return {"order": ()}
    orders: Iterable[tuple[str, ...]] = permutations(own)
    if len(own) > MOST_PERMUTED:
        orders = ((*memory_order([v for v in own if v != last], shape), last) for last in own)
    forms = [Form.VECTORS]
    forms += [Form.PIECES] if any(_cuts(kernel, shape, v) for v in own) else []
    forms += [Form.ARMS, Form.ARMS_IN_COLUMNS] if choosing_loops(kernel, shape.sizes) else []
    forms += [Form.SQUARES, Form.TURNS, Form.COLUMNS] if len(own) > 1 else []
    forms += [Form.BLOCKS] if blocks_of_stores(kernel, shape) else []
    parted = [v for v in own if _edges(kernel, shape, v)][:MOST_PARTED]
    return {
        "form": tuple(forms),
        "order": tuple(orders),
        "vectors": VECTORS,
        "fused": tuple(range(len(own))),
        "parts": tuple(p for n in range(len(parted) + 1) for p in combinations(parted, n)),
        "chunks": CHUNKS,
        "parallel": shared_counts(len(own), machine),
        "singly": element_by_element_axis(shape),
    }


def point_of(**values: object) -> Pointwise:
    """The point of these values, less what has no meaning for its form."""
    form = values["form"]
    neutral: dict[str, object] = {}
    if form is Form.SQUARES:
        neutral["vectors"] = 1
    if form not in (Form.VECTORS, Form.SQUARES, Form.TURNS):
        neutral["fused"] = 0
    if form is not Form.VECTORS:
        neutral["chunks"] = 1
    if form not in (Form.VECTORS, Form.PIECES, Form.SQUARES):
        neutral["parts"] = ()
    return Pointwise(**{**values, **neutral})  # type: ignore[arg-type]


def _affordable(loops: list[str], ends: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The loops whose edges have code of their own, while that is little."""
    return tuple(v for v, _ in affordable(((v, ends.get(v, ())) for v in loops), MOST_ARMS))


def _chunks(extent: int, machine: Machine) -> int:
    """Equal parts of a loop, 16 or somewhat more, of whole vectors if that can be; else 1."""
    for parts in OF_VECTORS:
        if extent % (parts * machine.width) == 0:
            return parts
    for parts in OF_ANY:
        if extent % parts == 0:
            return parts
    return 1


POINTWISE = Template("pointwise", point_of, axes, default, pointwise)
