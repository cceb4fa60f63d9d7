"""Loops whose index decides which arm of a choice is computed: unrolled, only one arm is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from math import prod

from rutc.tensor_ir.expr import Apply, Expr, IndexValue, Lit, walk
from rutc.tensor_ir.indices.affine import Index, Max, Min, Mod, Size
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import FEWEST_LANES, Machine
from rutc.tensor_ir.statements import exprs, reads_in, walk_stmts
from rutc.tensor_ir.steps import (
    Mark,
    NotApplicable,
    Overlap,
    Peel,
    PrefetchReads,
    Reorder,
    Split,
    Step,
)
from rutc.tuner.access import Shape, Touch, memory_order
from rutc.tuner.across import side
from rutc.tuner.choice import shared_out
from rutc.tuner.lengths import leaves_rest
from rutc.tuner.tiles.tile_loads import evicted_rows

LONGEST = 16
"""The longest loop that is unrolled for the sake of its choices."""
MOST_ARMS = 64
"""Copies of a kernel's body, one for each part of its loops."""
MOST_TURNS = 4
"""Pieces of a loop, each with code of its own, between which reads change their course."""


def choosing_loops(kernel: Kernel, sizes: Mapping[str, Size]) -> dict[str, int]:
    """Loop -> period: an index, modulo the period, is compared with literals.

    select(i == 0, ..)        ->  i: its extent, if it is a number
    select(i % 4 == 0, ..)    ->  i: 4, or its extent if that is less
    """
    found: dict[str, int] = {}
    for x in expressions_of(kernel):
        if isinstance(x, Apply) and x.op == "eq" and isinstance(x.args[0], IndexValue):
            name, period = period_of(x.args[0].index, sizes)
            size = sizes.get(name)
            if size is not None and period <= LONGEST:
                found[name] = min(period, size) if isinstance(size, int) else period
    return found


def period_of(index: Index, sizes: Mapping[str, Size]) -> tuple[str, int]:
    """(loop, period) of `i` and `i % period`; no loop's name for other indices."""
    if index.as_var is not None:
        size = sizes.get(index.as_var)
        return (index.as_var, size) if isinstance(size, int) else ("", 0)
    match index.terms:
        case (((Mod(p, q),), 1),) if p.as_var is not None and q.is_const and index.const == 0:
            return p.as_var, q.value
        case _:
            return "", 0


def comparisons(kernel: Kernel, var: str, extent: int) -> tuple[int, ...]:
    """Where comparisons of a loop variable with literals change, its ends left out."""
    points: set[int] = set()
    for x in expressions_of(kernel):
        if isinstance(x, Apply) and x.op in ("lt", "ge", "le", "gt"):
            a, b = x.args
            if isinstance(a, IndexValue) and isinstance(b, Lit):
                shift = _shift(a.index, var)
                if shift is not None:
                    edge = int(b.value) - shift
                    points.add(edge if x.op in ("lt", "ge") else edge + 1)
    return tuple(sorted(p for p in points if 0 < p < extent))


def turns(kernel: Kernel, var: str, extent: int) -> tuple[int, ...]:
    """Where the coordinates of reads turn to another course along a loop, if that is seldom.

    %x[i=min(max(i - 3, 0), 55)]   ->   3, 59
    %x[i=(i + 2) % 50], i of 60    ->   48
    """
    points: set[int] = set()
    for c in (c for r in reads_in(kernel.body) for _, c in r.coords):
        if isinstance(c, Index):
            points |= _turns(c, var, extent)
    found = tuple(sorted(p for p in points if 0 < p < extent))
    return found if len(found) <= MOST_TURNS else ()


def _turns(index: Index, var: str, extent: int) -> set[int]:
    points: set[int] = set()
    for atoms, _ in index.terms:
        for a in atoms:
            match a:
                case Min(p, q) | Max(p, q):
                    for x, y in product(_courses(p), _courses(q)):
                        step = (x - y).coefficient(var)
                        rest = x - y - Index.of(var) * (step or 0)
                        if step and rest.is_const:
                            points.add(-(rest.value // step))
                    points |= _turns(p, var, extent) | _turns(q, var, extent)
                case Mod(p, q):
                    shift = _shift(p, var)
                    if shift is not None and q.is_const and extent <= MOST_TURNS * q.value:
                        points |= {k * q.value - shift for k in range(-1, MOST_TURNS + 1)}
                    points |= _turns(p, var, extent)
                case _:
                    continue
    return points


def _courses(index: Index) -> list[Index]:
    """What an index may be in a part of its loop: one of two, or a remainder without division."""
    for atoms, c in index.terms:
        match atoms:
            case (Min(p, q) | Max(p, q) as a,):
                parts = [p, q]
            case (Mod(p, q) as a,):
                parts = [p - q, p, p + q]
            case _:
                continue
        rest = index - Index(((((a,), c)),), 0)
        return [x for part in parts for x in _courses(rest + part * c)]
    return [index]


def edges_of_reads(kernel: Kernel, var: str, extent: int) -> tuple[int, ...]:
    """The same, and where reads along a loop enter their buffers and leave them.

    %y[i] = %x[i-3 else 0.0], %x of 5 elements   ->   3, 8
    """
    points = set(comparisons(kernel, var, extent))
    for r in (r for r in reads_in(kernel.body) if r.fill is not None):
        layout = kernel.buffer(r.value).layout
        extents = dict(layout.extents)
        for d, c in r.coords:
            size = extents.get(d)
            shift = _shift(c, var) if isinstance(c, Index) else None
            if shift is not None and isinstance(size, int) and layout.fill != r.fill:
                points |= {-shift, size - shift}
    return tuple(sorted(p for p in points if 0 < p < extent))


def _shift(index: Index, var: str) -> int | None:
    """c of `var + c`."""
    rest = index - Index.of(var)
    return rest.value if rest.is_const else None


def expressions_of(kernel: Kernel) -> Iterator[Expr]:
    """All expressions of a kernel, and those in them."""
    return (x for s in walk_stmts(kernel.body) for e in exprs(s) for x in walk(e))


def computed_arms(
    kernel: Kernel,
    shape: Shape,
    order: Sequence[str],
    width: int,
    machine: Machine,
    parallel: int | None,
    *,
    columns: bool = False,
) -> list[Step]:
    """The steps for vectors of `width` along the last loop, each with all values of choosing ones.

    Where they are `columns`, each comes for all iterations of the other loops in turn.

    Raises:
        NotApplicable: no loop decides which arm is computed, squares that the last one is a side
            of are not whole, or there is one column.
    """
    *others, vector = order
    chosen = choosing_loops(kernel, shape.sizes)
    if not chosen:
        raise NotApplicable("no loop decides which arm is computed")
    if not width:
        raise NotApplicable("arms are computed for vectors")
    if columns:
        width, size = column(shape, vector, width, machine), shape.sizes[vector]
        if vector in chosen or not others or (isinstance(size, int) and size <= width):
            raise NotApplicable(f"{vector} has no columns of arms")
    elif vector in chosen:
        return _squares_of_arms(shape, order, chosen, machine, parallel)
    return unrolled_arms(others, vector, chosen, shape.sizes, width, parallel, columns=columns)


def far_reads_asked_for(
    kernel: Kernel, shape: Shape, order: Sequence[str], machine: Machine
) -> list[Step]:
    """Steps that ask for what arms read of far operands in the next iteration of the loop around.

    All arms together read short pieces of many rows, as of windows, and come back to them for every
    vector: the hardware sees no order in that. What is asked for has to stay near until then, and
    where a run chooses how far rows are apart, to find their places takes longer than to wait.
    """
    *others, vector = order
    chosen = choosing_loops(kernel, shape.sizes)
    around = [v for v in others if v not in chosen]
    if not around or vector in chosen:
        return []
    found: dict[str, Step] = {}
    for t in shape.touches:
        if t.is_store or t.gathered or t.packed or not t.unit(vector):
            continue
        if t.strides.get(around[-1]) in (None, 0) or t.buffer_bytes <= machine.l2 // 2:
            continue
        if not all(isinstance(stride, int) for stride in t.exact.values()):
            continue
        pieces = len({r for r in reads_in(kernel.body) if r.value == t.buffer})
        if 2 * pieces * shape.extents[vector] * t.bytes <= machine.l2:
            found[t.buffer] = PrefetchReads(t.buffer, around[-1], t.line(machine), 1)
    return list(found.values())


def column(shape: Shape, vector: str, width: int, machine: Machine) -> int:
    """The lanes of a column: as many as the first cache's sets have room for of what it stores.

    At least as many as pay for vectors, at most `width`.
    """
    stores = [t for t in shape.touches if t.is_store]
    while width // 2 >= FEWEST_LANES:
        if not any(evicted_rows(t, ((vector, width),), machine) for t in stores):
            break
        width //= 2
    return width


def turned_order(kernel: Kernel, shape: Shape, machine: Machine) -> tuple[str, ...] | None:
    """The order of loops for arms whose results lie along a choosing loop, and they themselves not.

    None where they have no whole squares, or read more than one element each, all of which would be
    turned. Lanes along another loop would each be stored in lines of their own, a few elements at a
    time.
    """
    chosen = choosing_loops(kernel, shape.sizes)
    stores = [t for t in shape.touches if t.is_store]
    for v in (v for v in chosen if all(t.unit(v) for t in stores)):
        order = (*memory_order([x.var for x in shape.shared if x.var != v], shape), v)
        _, turned = _turned(shape, order, chosen)
        if len(turned) > prod(chosen.values()):
            continue
        with suppress(NotApplicable):
            _squares_of_arms(shape, order, chosen, machine, None)
            return order
    return None


def _squares_of_arms(
    shape: Shape,
    order: Sequence[str],
    chosen: Mapping[str, int],
    machine: Machine,
    parallel: int | None,
) -> list[Step]:
    """Squares of the last loop, which decides between arms, and of the one that they lie along.

    %y[c, x] = select(x % 2 == 0, %a[x // 2, c], %b[x // 2, c])   ->   squares of c and x // 2
    """
    along, turned = _turned(shape, order, chosen)
    if not turned:
        raise NotApplicable(f"no arm lies across {order[-1]}")
    lanes = side(turned, machine)
    if lanes * prod(chosen.values()) > MOST_ARMS:
        raise NotApplicable("there are too many arms")
    return turned_arms(order, along, chosen, shape.sizes, lanes, parallel)


def _turned(
    shape: Shape, order: Sequence[str], chosen: Mapping[str, int]
) -> tuple[str, list[Touch]]:
    """(loop, what lies along it and changes along the last one); nothing where nothing does."""
    loads = [t for t in shape.touches if not t.is_store and t.depends(order[-1]) and not t.gathered]
    for along in (v for v in order if v not in chosen):
        if found := [t for t in loads if t.unit(along)]:
            return along, found
    return "", []


def turned_arms(
    order: Sequence[str],
    along: str,
    chosen: Mapping[str, int],
    sizes: Mapping[str, Size],
    side: int,
    parallel: int | None,
) -> list[Step]:
    """The schedule of arms that lie `along` a loop, and are stored along the last, a choosing one.

    Squares of these two are turned in registers, one for every value of the choosing loops: lanes
    along the last one lie its period apart, and all its arms together fill the lines. Squares that
    leave something over lie over the ones before. Threads share the first `parallel` loops around,
    or all of them.

    Raises:
        NotApplicable: the loops have no whole squares.
    """
    last = order[-1]
    period = chosen[last]
    blocks: dict[str, int] = {}
    for v, loop, step in ((along, along, 1), (f"{last}.o", last, period)):
        size = sizes[loop]
        if not isinstance(size, int) or size % step or size < side * step or size == period:
            raise NotApplicable(f"{along} and {last} have no whole squares")
        blocks[v] = size // step
    whole = [v for v, f in chosen.items() if sizes[v] == f]
    if any(leaves_rest(sizes[v], f) for v, f in chosen.items()):
        raise NotApplicable("an arm has more elements than another")
    parts = [v if v in whole else f"{v}.i" for v in chosen if v != last]
    cut = {along, *chosen}
    around = [f"{v}.o" if v in cut else v for v in order[:-1] if v not in whole]
    around.append(f"{last}.o.o")
    square = (f"{along}.i", f"{last}.o.i")
    uneven = [v for v in (f"{along}.o", f"{last}.o.o") if blocks[v.removesuffix(".o")] % side]
    return [
        *(Split(v, f) for v, f in chosen.items() if v not in whole),
        *(Split(v, side) for v in blocks),
        Reorder((*around, *parts, *square, f"{last}.i")),
        *shared_out(around, parallel),
        *([Overlap(tuple(uneven))] if uneven else []),
        *(Mark(v, Kind.UNROLL) for v in (*parts, square[0], f"{last}.i")),
        Mark(square[1], Kind.VECTOR),
    ]


def unrolled_arms(
    outer: list[str],
    vector: str,
    chosen: Mapping[str, int],
    sizes: Mapping[str, Size],
    width: int,
    parallel: int | None,
    *,
    columns: bool,
) -> list[Step]:
    """The schedule: one vector at a time, and for it every value of the choosing loops.

    Values that several arms read, or compute from equal operands, are then shared. The loop of
    vectors is the innermost of those around, or the outermost one of `columns`. Threads share the
    first `parallel` loops around, or all of them.
    """
    steps: list[Step] = []
    order = list(outer)
    edges: list[str] = []
    inner: list[tuple[str, Kind]] = []
    for v, factor, kind in (
        *((v, f, Kind.UNROLL) for v, f in chosen.items()),
        (vector, width, Kind.VECTOR),
    ):
        size = sizes[v]
        if isinstance(size, int) and factor >= size:
            inner.append((v, kind))
            continue
        steps.append(Split(v, factor))
        order = [f"{v}.o" if x == v else x for x in order] if v in order else [*order, f"{v}.o"]
        inner.append((f"{v}.i", kind))
        if leaves_rest(size, factor):
            edges.append(f"{v}.o")
    order = [v for v in order if v not in chosen]
    if columns:
        order = [order[-1], *order[:-1]]
    inner = [inner[-1], *inner[:-1]]
    if len(order) + len(inner) > 1:
        steps.append(Reorder((*order, *(v for v, _ in inner))))
    steps += shared_out(order, parallel)
    steps += [Peel(v) for v in reversed(order) if v in edges]
    steps += [Mark(v, kind) for v, kind in inner]
    return steps
