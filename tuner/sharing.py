"""How threads share kernels: so that a thread finds near it what it reads.

A kernel's tasks are the iterations of its parallel loops, numbered row-major. Threads may share all
of them as one run, or each of the equal runs that lie within an iteration of the outer loops:

    parallel c (20), y (14)     1 turn:   thread 0 has all y of c 0 to 9
                                20 turns: thread 0 has y 0 to 6 of every c

A kernel may also be left to one thread, where the others would only take what it has near.

What a thread reads of a value that another one wrote comes from that one's cache, which is slow; so
is writing to lines that another thread writes to. But whoever has all of a constant operand streams
all of it. The ways are chosen for all launches together, by coordinate descent on the sum of such
costs, in cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from rutc.base.record import record
from rutc.tensor_ir.expr import Coord, coord_names, reads
from rutc.tensor_ir.indices.affine import ONE, Index, Range, Size, minimum, plain, product, typical
from rutc.tensor_ir.kernel import Branch, Buffer, Kernel, Loop, Stmt
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import accesses, exprs, own_indices, walk_loops, walk_stmts
from rutc.tensor_ir.steps.step import ranges_of, simplified, with_index
from rutc.tensor_ir.textual.parse import parse_index
from rutc.tuner.choice import worth_threads

SWEEPS = 4
MOST_CYCLES = 1 << 62
"""More are not counted in a run."""

Places = Mapping[str, list[tuple[tuple[str, Coord], ...]]]
"""The coordinates of accesses to each buffer."""


@record
class Piece:
    """What a thread has of a buffer: a contiguous part of `dim`, in runs of so many bytes."""

    dim: str
    run_bytes: int


@record
class Way:
    """One way to share a kernel: its turns, and each argument's piece; None: all of it.

    `largest` is the largest thread's part in multiples of an even one, `count` the number of turns
    at common sizes. `alone` ways leave all tasks to one thread; they have 0 turns, or 1 task.
    """

    turns: Size
    pieces: tuple[Piece | None, ...]
    largest: float = 1.0
    count: int = 1
    alone: bool = False

    def encoded(self) -> list[object]:
        """The same as what JSON has."""
        pieces = [p and [p.dim, p.run_bytes] for p in self.pieces]
        return [str(self.turns), pieces, self.largest, self.count, self.alone]

    @staticmethod
    def decoded(data: Sequence[Any]) -> Way:
        """What `encoded` gave."""
        turns, pieces, largest, count, alone = data
        size = int(turns) if turns.isdecimal() else parse_index(turns)
        return Way(size, tuple(p and Piece(*p) for p in pieces), largest, count, alone)

    def named(self, dims: Mapping[str, str]) -> Way:
        """The way with other names for dims and symbols."""
        pieces = tuple(p and replace(p, dim=dims.get(p.dim, p.dim)) for p in self.pieces)
        turns = Index.of(self.turns)
        names = {n: Index.of(dims[n]) for n in turns.names() if n in dims}
        return replace(self, turns=plain(turns.subs(names)), pieces=pieces)


@record
class Operand:
    """An argument of a launch: a value, its size, whether it is constant, whether it is written."""

    value: str
    bytes: int
    constant: bool
    stored: bool


@record
class Shared:
    """A launch: its operands, the ways to share it, and a count of operations."""

    operands: tuple[Operand, ...]
    ways: tuple[Way, ...]
    flops: int


def ways(kernel: Kernel, loops: Sequence[Loop], threads: int) -> tuple[Way, ...]:
    """The ways to share a scheduled kernel whose tasks are the iterations of `loops`."""
    symbols = dict(kernel.symbols)
    extents = [typical(x.hi - x.lo, symbols) for x in loops]
    places = _places(kernel.body)
    found: list[Way] = []
    for k in range(len(loops)):
        run = prod(extents[k:])
        if k > 0 and (run < threads or extents[k - 1] == 1):
            continue
        split = next((i for i in range(k, len(loops)) if extents[i] > 1), None)
        pieces: tuple[Piece | None, ...] = (None,) * len(kernel.args)
        if split is not None:
            part = max(extents[split] // threads, 1)
            var = loops[split].var
            moved = _moved(loops[split], places, symbols)
            pieces = tuple(
                _piece(b, moved.get(b.name, []), var, part, threads, symbols) for b in kernel.args
            )
        turns = plain(product(x.hi - x.lo for x in loops[:k]))
        largest = -(-run // threads) * threads / max(run, 1)
        found.append(Way(turns, pieces, largest, prod(extents[:k])))
    nothing = (None,) * len(kernel.args)
    if all((x.hi - x.lo).is_const for x in loops):
        # Of symbolic size, a kernel may be much larger than it commonly is.
        found.append(Way(0 if found else 1, nothing, alone=True))
    return tuple(found)


def stored(kernel: Kernel) -> frozenset[str]:
    """The buffers that a kernel writes to."""
    return frozenset(a.buffer for s in walk_stmts(kernel.body) for a in accesses(s))


def _places(body: tuple[Stmt, ...]) -> Places:
    """The coordinates at which each buffer is accessed."""
    found: dict[str, list[tuple[tuple[str, Coord], ...]]] = {}
    for s in walk_stmts(body):
        for a in accesses(s):
            found.setdefault(a.buffer, []).append(a.coords)
        for r in (r for e in exprs(s) for r in reads(e)):
            found.setdefault(r.value, []).append(r.coords)
    return found


def _moved(loop: Loop, places: Places, symbols: Mapping[str, Range]) -> Places:
    """The places in a kernel, and what moves with a loop whose iterations have code of their own.

    Where no coordinate has the loop's variable, since it is constant in the code of each iteration,
    a place moves evenly from the lowest one in the first iteration to that in the last.
    """
    if not (loop.lo.is_const and loop.hi.is_const):
        return places
    first, last = loop.lo.value, loop.hi.value - 1
    still = {b for b, own in places.items() if not any(_has(loop.var, c) for c in own)}
    if last <= first or not still or not _chooses(loop):
        return places
    begin, end = (_lowest(loop, at, symbols) for at in (first, last))
    found = dict(places)
    for buffer in still & begin.keys() & end.keys():
        dims = begin[buffer].keys() & end[buffer].keys()
        steps = {d: (end[buffer][d] - begin[buffer][d]) // (last - first) for d in sorted(dims)}
        coords = tuple((d, n * Index.of(loop.var)) for d, n in steps.items() if n)
        found[buffer] = [*places[buffer], coords]
    return found


def _chooses(loop: Loop) -> bool:
    """Whether a branch or the bounds of an inner loop differ from iteration to iteration."""
    return any(
        loop.var in i.names()
        for s in walk_stmts(loop.body)
        if isinstance(s, Branch | Loop)
        for i in own_indices(s)
    )


def _has(var: str, coords: tuple[tuple[str, Coord], ...]) -> bool:
    return any(var in coord_names(c) for _, c in coords)


def _lowest(loop: Loop, at: int, symbols: Mapping[str, Range]) -> dict[str, dict[str, int]]:
    """The lowest coordinates in an iteration of a loop, of each buffer's dims."""
    body = simplified(with_index(loop.body, {loop.var: Index.of(at)}), symbols)
    ranges = ranges_of(walk_loops(body), symbols)
    found: dict[str, dict[str, int]] = {}
    for buffer, places in _places(body).items():
        own = found.setdefault(buffer, {})
        for dim, c in (x for coords in places for x in coords):
            if isinstance(c, Index) and (bounds := c.bounds(ranges)) is not None:
                own[dim] = min(bounds[0], own.get(dim, bounds[0]))
    return found


def _piece(
    buffer: Buffer,
    places: Sequence[tuple[tuple[str, Coord], ...]],
    var: str,
    part: int,
    threads: int,
    symbols: Mapping[str, Range],
) -> Piece | None:
    """What `part` iterations of a loop have of a buffer; None where that is no part of one dim.

    Accesses at constant places do not count: they are those of a last, shorter tile.
    """
    strides: dict[str, int] = {}
    extents: dict[str, int] = {}
    for a in buffer.layout.axes:
        strides[a.dim] = max(typical(a.stride, symbols), strides.get(a.dim, 0))
        extents[a.dim] = max(typical(a.extent, symbols) * a.div, extents.get(a.dim, 0))
    best: Piece | None = None
    for coords in places:
        moved = {d: c for d, c in coords if d in strides and var in coord_names(c)}
        if not moved:
            continue
        if not all(isinstance(c, Index) for c in moved.values()):
            return None
        dim = max(moved, key=lambda d: strides[d])
        coordinate = moved[dim]
        step = coordinate.coefficient(var) if isinstance(coordinate, Index) else None
        indices = abs(step) * part if step else max(extents[dim] // threads, 1)
        piece = Piece(dim, indices * strides[dim] * buffer.dtype.bytes)
        if best is not None and best.dim != dim:
            return None
        best = piece if best is None or piece.run_bytes < best.run_bytes else best
    return best


def share(launches: Sequence[Shared], machine: Machine) -> list[Size]:
    """The turns of every launch."""
    problem = _Problem(launches, machine)
    shared = [max(sum(not w.alone for w in x.ways) - 1, 0) for x in launches]
    starts = [[0] * len(launches), shared, [len(x.ways) - 1 for x in launches]]
    solved = [problem.descend(start) for start in starts]
    best = min(solved, key=problem.total)
    return [x.ways[i].turns for x, i in zip(launches, best, strict=True)]


def large(work: Index, moved: Index, symbols: Mapping[str, Range], machine: Machine) -> Index:
    """1 where a launch of so many operations and bytes is worth threads, and 0 where it is not.

    What its sizes are decides in a run. Those that nothing bounds are large, and what has one size
    is as its schedule has it.
    """
    operations, bytes_ = (max(1, int(n)) for n in (_operations(machine), _bytes(machine)))
    cycles = work // operations + moved // bytes_
    bounds = cycles.bounds(symbols)
    if cycles.is_const or bounds is None or bounds[1] > MOST_CYCLES:
        return ONE
    return minimum(ONE, cycles // worth_threads(machine), symbols)


def _operations(machine: Machine) -> float:
    """Those of a cycle, as kernels commonly do them."""
    return machine.width * 2 * machine.fma_per_cycle * machine.coefficients.filtering.reached


def _bytes(machine: Machine) -> float:
    """Those of a cycle that kernels bound by caches move: what one reads, another one writes."""
    return machine.l2_bytes_per_cycle / 2


class _Problem:
    """Costs of ways, one per launch, given the others."""

    def __init__(self, launches: Sequence[Shared], machine: Machine) -> None:
        self.launches = launches
        self.machine = machine
        self.threads = machine.cores
        self.foreign = machine.foreign_bytes_per_cycle
        constants = {o.value: o.bytes for x in launches for o in x.operands if o.constant}
        self.streams = sum(constants.values()) > machine.l2
        self.links: list[tuple[int, int, int, int]] = []
        """(producer, its operand, consumer, its operand)."""
        self.links_of: list[list[int]] = [[] for _ in launches]
        written: dict[str, tuple[int, int]] = {}
        for i, x in enumerate(launches):
            for j, o in enumerate(x.operands):
                if not o.stored and o.value in written:
                    p, q = written[o.value]
                    self.links_of[i].append(len(self.links))
                    self.links_of[p].append(len(self.links))
                    self.links.append((p, q, i, j))
            for j, o in enumerate(x.operands):
                if o.stored:
                    written[o.value] = i, j
        self.own = [[self._own(x, w) for w in x.ways] for x in launches]

    def descend(self, start: Sequence[int]) -> list[int]:
        """Ways that no change of a single one improves."""
        chosen = list(start)
        for _ in range(SWEEPS):
            changed = False
            for i, x in enumerate(self.launches):
                if len(x.ways) < 2:
                    continue
                before, costs = chosen[i], []
                for w in range(len(x.ways)):
                    chosen[i] = w
                    costs.append(
                        self.own[i][w] + sum(self._link(n, chosen) for n in self.links_of[i])
                    )
                best = min(range(len(costs)), key=lambda w: (costs[w], w != before))
                chosen[i] = best
                changed |= best != before
            if not changed:
                break
        return chosen

    def total(self, chosen: Sequence[int]) -> float:
        """The cost of everything."""
        own = sum(self.own[i][w] for i, w in enumerate(chosen))
        return own + sum(self._link(n, chosen) for n in range(len(self.links)))

    def _own(self, x: Shared, way: Way) -> float:
        """Cycles that are due to the way alone."""
        cycles = self._work(x)
        if not way.alone:
            cycles *= way.largest / self.threads
            cycles += self.machine.launch_cycles + self.machine.turn_cycles * (way.count - 1)
        for o, piece in zip(x.operands, way.pieces, strict=True):
            if o.constant and self.streams:
                cycles += self._needed(o, piece) / self.machine.memory_bytes_per_cycle
            elif o.stored and piece is not None:
                cycles += 2 * self._needed(o, piece) * self._spilled(piece) / self.foreign
        return cycles

    def _work(self, x: Shared) -> float:
        """Cycles on one thread that has everything near, constants left out."""
        own = self.machine.coefficients.sharing
        moved = sum(o.bytes for o in x.operands if not o.constant)
        return max(x.flops / _operations(self.machine), moved / _bytes(self.machine), own.least)

    def _link(self, number: int, chosen: Sequence[int]) -> float:
        """Cycles of getting what others have written."""
        p, q, i, j = self.links[number]
        source, reader = self.launches[p].ways[chosen[p]], self.launches[i].ways[chosen[i]]
        there, here = source.pieces[q], reader.pieces[j]
        operand = self.launches[i].operands[j]
        if source.alone:
            return 0.0 if reader.alone else self._needed(operand, here) / self.foreign
        near = here is not None and there is not None and here.dim == there.dim
        share = self._spilled(here) if here is not None and near else 1 - 1 / self.threads
        return self._needed(operand, here) * share / self.foreign

    def _needed(self, o: Operand, piece: Piece | None) -> float:
        return o.bytes if piece is None else o.bytes / self.threads

    def _spilled(self, piece: Piece) -> float:
        """The part of a piece that other threads' pieces share lines with.

        At each end of a run that is a line, and at one the next, which is fetched ahead.
        """
        return min(1.0, 2 * self.machine.line_bytes / max(piece.run_bytes, 1))
