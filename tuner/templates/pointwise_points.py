"""The points of pointwise schedules: which a kernel may have, and which one the model prefers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, permutations

from rutc.tensor_ir.expr import IndexValue
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import NEAR_STRIDES, Machine
from rutc.tensor_ir.steps import NotApplicable
from rutc.tuner.access import Shape, memory_order
from rutc.tuner.across import (
    across,
    along_far_rows,
    along_reads,
    beside_gathers,
    blocks_of_stores,
    crowded,
    gathers_columns,
    loops_of_one_place,
    of_words,
    short_and_long,
)
from rutc.tuner.arms import choosing_loops, expressions_of, turned_order
from rutc.tuner.choice import (
    loops_of_long_tasks,
    pays,
    rough_cycles,
    shared_counts,
    worth_sharing,
)
from rutc.tuner.collapse import fuse_innermost
from rutc.tuner.lengths import never_longer
from rutc.tuner.space import Axis, Default, Template
from rutc.tuner.templates.pointwise import Form, Pointwise, cuts_of, edges_of, pointwise, with_edges
from rutc.tuner.vectors import best_vector, copies_of_body, element_by_element_axis

VECTORS = (0, 1, 2, 4, 8)
CHUNKS = (1, 0, 2, 4, 8, 16, 32, 64)
OF_VECTORS, OF_ANY = range(16, 65), range(8, 257)
"""Chunks that threads share: of whole vectors, and of any number of iterations."""
MOST_PERMUTED = 4
MOST_PARTED = 3


def default(kernel: Kernel, shape: Shape, machine: Machine) -> Default[Pointwise] | None:
    """Arms where loops choose them, pieces, squares or long vectors; None without loops."""
    if not shape.shared:
        return None
    loops = [x.var for x in shape.shared]
    parallel = None if worth_sharing(shape, machine, len(shape.touches)) else 0
    chosen = choosing_loops(kernel, shape.sizes)
    free = [v for v in loops if v not in chosen]
    vector = best_vector(free if chosen and free else loops, shape, machine)
    others = memory_order([v for v in loops if v != vector], shape)
    order = (*others, vector)
    if chosen and free:
        return _in_arms(kernel, shape, order, parallel, machine)
    if cuts_of(kernel, shape, vector):
        return _in_pieces(kernel, shape, order, parallel, machine)
    ends = {v: edges_of(kernel, shape, v) for v in others}
    for point in _before_vectors(kernel, shape, order, parallel, machine):
        try:
            pointwise(kernel, shape, point, machine)
        except NotApplicable:
            continue
        return Default(point, rivals=_other_squares(point))
    copies = copies_of_body(kernel.body, machine)
    made = Pointwise(Form.VECTORS, order, copies, parallel=parallel)
    liked = _longest(kernel, shape, made, ends, machine)
    rivals = [*_squares_beside(order, shape, parallel), *_in_turn(order, shape, parallel)]
    for v in _loops_of_stores(shape, vector):
        rest = memory_order([x for x in loops if x != v], shape)
        along = replace(made, order=(*rest, v))
        rest_ends = {x: edges_of(kernel, shape, x) for x in rest}
        rivals.append(_longest(kernel, shape, along, rest_ends, machine))
    if edges_of(kernel, shape, vector):
        # Between its edges no vector has masks.
        around = with_edges(others, ends)
        parts = (*around, vector)
        rivals.append(Pointwise(Form.PIECES, order, copies, parts=parts, parallel=liked.parallel))
    return Default(liked, rivals=tuple(rivals))


def _in_arms(
    kernel: Kernel, shape: Shape, order: tuple[str, ...], parallel: int | None, machine: Machine
) -> Default[Pointwise]:
    """Arms of choices, of vectors along the last loop or of squares."""
    turned = turned_order(kernel, shape, machine)
    arms = Pointwise(Form.ARMS, turned or order, parallel=parallel)
    stores = (t for t in shape.touches if t.is_store)
    apart = turned is None and any(not t.unit(order[-1]) for t in stores)
    rivals = _of_arms_apart(kernel, shape, arms, machine) if apart else ()
    return Default(arms, rivals=tuple(rivals))


def _in_pieces(
    kernel: Kernel, shape: Shape, order: tuple[str, ...], parallel: int | None, machine: Machine
) -> Default[Pointwise]:
    """Pieces of the last loop between its cuts; squares if these fit them.

    Vectors may lie along the loop beside instead, of each piece in turn:

    %y[p, c] = %a[p] if c < 1 else %b[p]   ->   a vector along p of %a, and one of %b, interleaved
    """
    *others, vector = order
    if found := across(order, shape.touches):
        squared = Pointwise(Form.SQUARES, found, parts=(vector,), parallel=parallel)
        with suppress(NotApplicable):
            pointwise(kernel, shape, squared, machine)
            return Default(squared)
    parts = with_edges(others, {v: edges_of(kernel, shape, v) for v in others})
    copies = copies_of_body(kernel.body, machine)
    pieces = Pointwise(Form.PIECES, order, copies, parts=parts, parallel=parallel)
    rivals = (*_turns(shape, parallel), *_squares_along(order, shape, parallel))
    return Default(pieces, rivals=rivals)


def _before_vectors(
    kernel: Kernel, shape: Shape, order: tuple[str, ...], parallel: int | None, machine: Machine
) -> Iterator[Pointwise]:
    """What is better than long vectors where it applies, the best first."""
    *others, vector = order
    touches, loops = shape.touches, [x.var for x in shape.shared]
    for v in blocks_of_stores(kernel, shape):
        last = (*(x for x in loops if x not in (v, vector)), v, vector)
        if v != vector:
            yield Pointwise(Form.BLOCKS, last, parallel=parallel)
    fused = _most_fused(shape)
    if not any(edges_of(kernel, shape, v) for v in others):
        yield from _turns(shape, parallel)
    if found := beside_gathers(order, touches):
        yield Pointwise(Form.SQUARES, found, fused=fused, parallel=parallel)
    if found := across(order, touches):
        other = along_far_rows(found, touches, shape.sizes, machine, fused) or along_reads(
            found, touches, shape.sizes, dict(kernel.symbols), machine, fused
        )
        for o in [found] if other is None else [other, found]:
            yield Pointwise(Form.SQUARES, o, fused=fused, parallel=parallel)
    copies = copies_of_body(kernel.body, machine)
    lanes = copies * machine.width
    if gathers_columns(order, shape, lanes, machine) and not any(b.gradual for b in kernel.args):
        # Threads share columns, or each would find places anew.
        columns = shape.extents[vector] // lanes
        if parallel == 0 or columns >= machine.cores:
            shared = 0 if parallel == 0 else 1
            yield Pointwise(Form.COLUMNS, order, copies, parallel=shared)


def _turns(shape: Shape, parallel: int | None) -> Iterator[Pointwise]:
    """Vectors for each iteration of a short loop in turn, where there are such loops."""
    loops = [x.var for x in shape.shared]
    if found := short_and_long(loops, shape.touches, shape.sizes):
        yield Pointwise(Form.TURNS, found, fused=_most_fused(shape), parallel=parallel)


def _most_fused(shape: Shape) -> int:
    """How many loops become one with a square's or with short vectors', at most."""
    return max(len(shape.shared) - 2, 0)


def _of_arms_apart(
    kernel: Kernel, shape: Shape, arms: Pointwise, machine: Machine
) -> Iterator[Pointwise]:
    """What may take less than arms whose lanes are stored apart, each to a line of its own.

    Columns fill these lines before others come to the same sets of the first cache: where they load
    whole lines, or their stores alone take half of the sets. Lanes along rows each choose an arm;
    so do squares, which load along channels and store along rows.
    """
    vector = arms.order[-1]
    loads, stores = ([t for t in shape.touches if t.is_store == x] for x in (False, True))
    whole = not any(machine.width * t.bytes % machine.line_bytes for t in loads if t.unit(vector))
    if whole or any(crowded(t, vector, machine.width, machine) for t in stores):
        yield replace(arms, form=Form.ARMS_IN_COLUMNS)
    loops = [x.var for x in shape.shared]
    along = best_vector(loops, shape, machine)
    others = memory_order([v for v in loops if v != along], shape)
    ends = {v: edges_of(kernel, shape, v) for v in others}
    copies = copies_of_body(kernel.body, machine)
    made = Pointwise(Form.VECTORS, (*others, along), copies, parallel=arms.parallel)
    yield _longest(kernel, shape, made, ends, machine)
    if found := across(arms.order, shape.touches):
        yield Pointwise(Form.SQUARES, found, fused=_most_fused(shape), parallel=arms.parallel)


def _loops_of_stores(shape: Shape, vector: str) -> list[str]:
    """Loops along which all stores lie, where those along a vector's loop lie apart.

    Loads along them may take few registers, whose lanes the code knows:

    %y[n, j] = %x[n, i=j // 2] * %c[i=j // 2]     ->  j, rather than n
    """
    stores = [t for t in shape.touches if t.is_store]
    if all(t.unit(vector) for t in stores):
        return []
    return [x.var for x in shape.shared if all(t.unit(x.var) for t in stores)]


def _squares_beside(
    order: tuple[str, ...], shape: Shape, parallel: int | None
) -> Iterator[Pointwise]:
    """Squares whose vectors lie along another loop, where loads along this one lie apart."""
    vector = order[-1]
    loads = (t for t in shape.touches if not t.packed and not t.gathered and not t.is_store)
    if any(t.strides.get(vector) not in (None, 0, 1, *NEAR_STRIDES) for t in loads):
        yield from _squares_along(order, shape, parallel)


def _squares_along(
    order: tuple[str, ...], shape: Shape, parallel: int | None
) -> Iterator[Pointwise]:
    """Squares whose vectors lie along another loop."""
    *others, vector = order
    for v in others:
        found = across((*(x for x in others if x != v), vector, v), shape.touches)
        if found is not None and of_words(found, shape.touches):
            yield Pointwise(Form.SQUARES, found, fused=_most_fused(shape), parallel=parallel)


def _in_turn(order: tuple[str, ...], shape: Shape, parallel: int | None) -> Iterator[Pointwise]:
    """Single elements that data choose, for several iterations in turn of a loop that does not."""
    for v in loops_of_one_place(order, shape.touches):
        rest = (v, *(x for x in order if x != v))
        for turns in VECTORS[-2:]:
            yield Pointwise(Form.ELEMENTS, rest, turns, fused=_most_fused(shape), parallel=parallel)


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
    made = replace(made, parts=with_edges(around, ends))
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
    parted = [v for v in own if edges_of(kernel, shape, v)][:MOST_PARTED]
    forms = [Form.VECTORS]
    forms += [Form.PIECES] if any(cuts_of(kernel, shape, v) or v in parted for v in own) else []
    forms += [Form.ARMS, Form.ARMS_IN_COLUMNS] if choosing_loops(kernel, shape.sizes) else []
    forms += [Form.SQUARES, Form.TURNS, Form.COLUMNS, Form.ELEMENTS] if len(own) > 1 else []
    forms += [Form.BLOCKS] if blocks_of_stores(kernel, shape) else []
    return {
        "form": tuple(forms),
        "order": tuple(orders),
        "vectors": VECTORS,
        "fused": tuple(range(len(own))),
        "parts": tuple(p for n in range(len(parted) + 1) for p in combinations(parted, n)),
        "chunks": CHUNKS,
        "parallel": shared_counts(len(own), machine),
        "singly": element_by_element_axis(shape),
        "prefetch": (True, False) if Form.ARMS in forms else (True,),
    }


def point_of(**values: object) -> Pointwise:
    """The point of these values, less what has no meaning for its form."""
    form = values["form"]
    neutral: dict[str, object] = {}
    if form is Form.SQUARES:
        neutral["vectors"] = 1
    if form not in (Form.VECTORS, Form.SQUARES, Form.TURNS, Form.ELEMENTS):
        neutral["fused"] = 0
    if form is not Form.VECTORS:
        neutral["chunks"] = 1
    if form not in (Form.VECTORS, Form.PIECES, Form.SQUARES):
        neutral["parts"] = ()
    if form is not Form.ARMS:
        neutral["prefetch"] = True
    return Pointwise(**{**values, **neutral})  # type: ignore[arg-type]


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
