"""The cycles of one register tile: what is loaded, computed and stored for it, in what order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, log2, prod
from weakref import ref

from rutc.base.record import record
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import FEWEST_LANES, Machine
from rutc.tuner.access import Reduction, Shape
from rutc.tuner.tiles.tile_loads import (
    evicted_rows,
    kept_places,
    lines_loaded,
    loads_of_step,
    places_of_rows,
)
from rutc.tuner.tiles.tile_operands import Operands, Vectors, products_per_cycle
from rutc.tuner.tiles.tile_registers import (
    Rows,
    is_full,
    pass_by,
)


def bound_order(shape: Shape, inside: Collection[str] = ()) -> list[str]:
    """Reduction loops, the one along which operands are nearest in memory innermost.

    Those `inside`, whose iterations are few and not known, go around the others; and so do those
    along which all constants change around those along which one does not, such as a block's scale.
    """
    names = {x.var: r.stride(x.var) for r in shape.reductions for x in r.loops}
    same = _alike(shape)
    return sorted(names, key=lambda v: (v not in inside, same[v], -names[v]))


def block_loop(shape: Shape, bound: Sequence[str], inside: Collection[str] = ()) -> str:
    """The loop of which blocks of a reduction have some iterations, of its loops in order.

    It is the innermost one along which all constants change: blocks of one of those in it would
    multiply the parts that share a scale by it once for each block.
    """
    same = _alike(shape)
    known = [v for v in bound if v not in inside]
    fewest = min((same[v] for v in known), default=0)
    return next((v for v in reversed(known) if same[v] == fewest), bound[-1])


def _alike(shape: Shape) -> dict[str, int]:
    """How many constants do not change along each reduction loop."""
    return {
        x.var: sum(t.packed and not t.depends(x.var) for t in r.reads)
        for r in shape.reductions
        for x in r.loops
    }


def busy_cycles(r: Reduction, vectors: float, machine: Machine) -> float:
    """Cycles that multiply so many vectors and add them to states, a product in each lane."""
    return vectors / products_per_cycle(r, machine)


@record
class _Places:
    """How many places along the rows a step of a reduction reads of each operand.

    Those of windows that steps written out have in common count `once`.
    """

    along: tuple[float, ...]
    across: tuple[float, ...]
    along_once: tuple[float, ...]
    across_once: tuple[float, ...]
    kept: int
    """Those that are read again in a later step of the innermost loop, at most."""
    shared: bool
    """Whether rows share vectors, or make them of several loads."""

    @staticmethod
    def of(each: Operands, vector: str, rows: Rows, symbolic: Collection[str]) -> _Places:
        """The places of rows, where loops are `symbolic` whose ends only a run tells."""
        along, across = [x.touch for x in each.along], each.across
        known = {v: extent for v, extent in each.inner.items() if v not in symbolic}
        inner = [kept_places(each.reduction, rows, v, n) for v, n in each.inner.items()]
        return _Places(
            tuple([places_of_rows(t, rows) for t in along]),
            tuple([places_of_rows(t, rows) for t in across]),
            tuple([places_of_rows(t, rows, known) for t in along]),
            tuple([places_of_rows(t, rows, known) for t in across]),
            max(inner, default=0),
            not pass_by(each.reduction, vector, rows),
        )


@record
class _RowCosts:
    """What of the cost of a tile its rows alone decide."""

    size: int
    """How many there are."""
    far: float
    """By what their distances in memory multiply all."""
    apart: tuple[float, ...]
    """Of every reduction, rows whose steps in memory only a run tells."""
    lines: tuple[float, ...]
    """Of every reduction, lines that they take from the second cache."""
    places: tuple[_Places, ...]
    """Of every reduction, where they read."""


class TileCosts:
    """Cycles of tiles with lanes along one loop of a kernel: its reductions and what follows them.

    Loops do such `shares` of their iterations, or all.
    """

    def __init__(
        self, shape: Shape, vector: str, shares: Mapping[str, float], machine: Machine
    ) -> None:
        """No tile was asked about yet."""
        # The shape has these costs: only the search for cycles would find both to be garbage.
        self._shape = ref(shape)
        self.vector = vector
        self.machine = machine
        self.order = bound_order(shape, shares)
        self.operands = [
            Operands.of(r, shape, vector, shares, self.order, machine) for r in shape.reductions
        ]
        self.epilogue = [t for t in shape.touches if len(t.loops) == len(shape.shared)]
        self._known: dict[tuple[int, Rows], float] = {}
        self._reduced: dict[tuple[int, Rows], float] = {}
        self._rows: dict[Rows, _RowCosts] = {}

    @property
    def shape(self) -> Shape:
        """The shape whose costs these are."""
        shape = self._shape()
        assert shape is not None
        return shape

    def cycles(self, vectors: int, rows: Rows) -> float:
        """The cycles of a tile of so many vectors and rows: parts of many tiles are the same."""
        found = self._known.get((vectors, rows))
        if found is None:
            found = self._known[vectors, rows] = self._cycles(vectors, rows)
        return found

    def least(self, vectors: int, rows: Rows) -> float:
        """The cycles of a tile's reductions, without what follows them."""
        return self._sums(vectors, rows) * self._rows[rows].far

    def _cycles(self, vectors: int, rows: Rows) -> float:
        vector, machine = self.vector, self.machine
        w, width = machine.coefficients.tiles, machine.width
        cycles = self._sums(vectors, rows)
        costs = self._rows[rows]
        size = vectors * costs.size
        for t in self.epilogue:
            stride = t.strides.get(vector, 0)
            per_vector = 0.0 if stride == 0 else 1.0 if stride == 1 or t.packed else float(width)
            row = max((f for v, f in rows if t.unit(v)), default=1)
            if per_vector > 1.0 and row >= FEWEST_LANES:
                # Vectors across memory are transposed in squares, and stored row by row.
                per_vector = 2.0 * width * ceil(row / width) / row
            cycles += per_vector * size
            if not t.gathered:
                # Lines may be gone before they are written.
                along = () if stride == 1 else ((vector, vectors * width),)
                cycles += w.evicted * evicted_rows(t, (*rows, *along), machine, 1)
        lane = DType.F32.bytes
        stored = size * sum(t.bytes / lane for t in self.epilogue if t.is_store and t.unit(vector))
        cycles += machine.store_cycles * max(stored - machine.hidden_stores, 0)
        cycles += w.around
        return cycles * costs.far

    def _sums(self, vectors: int, rows: Rows) -> float:
        """The cycles of a tile's reductions where its rows lie in one line."""
        found = self._reduced.get((vectors, rows))
        if found is not None:
            return found
        costs = self._rows.get(rows)
        if costs is None:
            costs = self._rows[rows] = self._row_costs(rows)
        found = 0.0
        for number, each in enumerate(self.operands):
            found += each.steps * self._step(number, vectors, rows, costs)
        self._reduced[vectors, rows] = found
        return found

    def _row_costs(self, rows: Rows) -> _RowCosts:
        """What rows cost, however many vectors the tile has."""
        shape, machine = self.shape, self.machine
        # Rows that lie in several lines.
        far = [
            abs(t.strides.get(v) or 0) * t.bytes * (f - 1) / machine.line_bytes
            for r in shape.reductions
            for t in r.reads
            if not t.packed
            for v, f in rows
        ]
        apart = [
            sum(
                f
                for t in r.reads
                if not t.packed
                for v, f in rows
                if t.depends(v) and not isinstance(t.exact.get(v, 0), int)
            )
            for r in shape.reductions
        ]
        lines = [
            sum(
                lines_loaded(t, each.reduction, shape, rows, self.order, each.passing, machine)
                for t in each.across
            )
            for each in self.operands
        ]
        return _RowCosts(
            prod(f for _, f in rows),
            1 + machine.coefficients.tiles.far * log2(1 + max(far, default=0.0)),
            tuple(apart),
            tuple(lines),
            tuple([_Places.of(each, self.vector, rows, shape.symbolic) for each in self.operands]),
        )

    def passed(self, vectors: int, rows: Rows) -> float:
        """The cycles in which so many vectors pass by that fill up the last block of constants.

        They come from the second cache. Where rows share what is loaded, arithmetic hides that,
        but not where a run commonly has a single one.
        """
        machine, passed = self.machine, 0.0
        single = bool(rows) and all(self.shape.common_extents[v] == 1 for v, _ in rows)
        for each, places in zip(self.operands, self._rows[rows].places, strict=True):
            products = prod(self.shape.extents[x.var] for x in each.reduction.loops)
            shared = places.shared and not single
            for x, n in () if shared else zip(each.along, places.along, strict=True):
                if x.touch.packed and x.touch.buffer_bytes > machine.l1 // 2:
                    passed += n * x.touch.bytes * products
        return passed * vectors * machine.width / machine.l2_bytes_per_cycle

    def _step(self, number: int, vectors: int, rows: Rows, costs: _RowCosts) -> float:
        """Cycles of a step of the reduction of that number."""
        each, places, size = self.operands[number], costs.places[number], vectors * costs.size
        machine, stream = self.machine, self.machine.coefficients.tiles.stream
        loaded = vectors if places.shared else 1
        full = each.inner if is_full(size + each.products, loaded, places.kept, machine) else {}
        along, across = _loads(each.along, places.along, vectors), places.across
        along_once, across_once = along, across
        if not full:
            along_once = _loads(each.along, places.along_once, vectors)
            across_once = places.across_once
        work = self._issued(number, vectors, rows, costs, sum(along_once), sum(across_once))
        # The vector operand streams past for every tile: from the second cache, unless it fits
        # the first beside the rows.
        panel: float = 0
        for x, found in zip(each.along, places.along, strict=True):
            one_lane = found if x.far_each is None else found * x.far_each
            panel += one_lane * vectors * machine.width * x.touch.bytes * each.passing
        if max(panel, each.spread) * each.steps > machine.l1 // 2:
            work += stream * panel / machine.l2_bytes_per_cycle
        # So do the rows' lines, one after the other where the first cache does not hold them.
        work += stream * costs.lines[number] * machine.line_bytes / machine.l2_bytes_per_cycle
        work = self._crowded(work, each, along, across, size, loaded)
        for extent in full.values():
            # To count an iteration and to jump takes a cycle.
            work += 1 / extent
        return work

    def _issued(
        self,
        number: int,
        vectors: int,
        rows: Rows,
        costs: _RowCosts,
        along: float,
        across: float,
    ) -> float:
        """Cycles of a step's instructions where all that they need is near, and has a register.

        They load so many vectors `along` the lanes, and numbers `across` them.
        """
        each, places, size = self.operands[number], costs.places[number], vectors * costs.size
        machine, w = self.machine, self.machine.coefficients.tiles
        scalar_loads, vector_loads = each.loaded * across, each.loaded * along
        wide = each.width_each / len(each.reduction.update.states)
        converted: float = 0
        if each.converting:
            (one,), (loads,) = each.along, places.along
            loads = loads * vectors if one.far_each is None else loads * vectors * one.far_each
            converted = each.converting * loads
        products = size * wide * each.multiplications * each.pair
        work = max(
            _both((products + converted) / each.products_per_cycle, each.latency, w.together),
            vector_loads * wide / machine.loads_per_cycle
            + scalar_loads * wide / machine.scalar_loads_per_cycle,
        )
        moved = sum([vectors * prod(f for v, f in rows if t.depends(v)) for t in each.moved])
        work += machine.sort_cycles * moved * wide
        loads = scalar_loads + (1 + machine.vector_bits / (8 * machine.line_bytes)) * vector_loads
        work += machine.load_cycles * loads * wide
        widened = [
            loads_of_step(t, self.vector, vectors, rows, machine.width) for t in each.widened
        ]
        work += sum(widened) / 2
        # Where such a row lies is a number that is loaded.
        work += costs.apart[number] / machine.scalar_loads_per_cycle
        work += each.scalars * size / vectors / machine.scalar_loads_per_cycle
        if converted and any(v in self.shape.symbolic for v, _ in rows):
            # A run may have one row, whose few sums wait for each other.
            wait = each.latency - (vectors * wide + converted) / each.products_per_cycle
            work += w.unknown * size / vectors * max(wait, 0)
        return work

    def _crowded(
        self,
        work: float,
        each: Operands,
        along: Sequence[float],
        across: Sequence[float],
        size: int,
        loaded: int,
    ) -> float:
        """Cycles of a step that would take `work` if there were registers for all that it has.

        It has `size` vectors of sums, loads of operands `along` and `across` the lanes, and keeps
        so many `loaded` vectors.
        """
        machine, w = self.machine, self.machine.coefficients.tiles
        wide = each.width_each / len(each.reduction.update.states)
        # One operand's part of a step is held, the others pass by one at a time: of choices between
        # products, all of one side.
        held = min((*along, *across), default=0.0)
        if across and each.chooses:
            held = max(held, min(sum(along), sum(across)))
        registers = size * each.width_each + max(held, loaded) * wide + 1
        registers += each.products
        # The other half of bytes waits for the next step.
        registers += sum([loads for x, loads in zip(each.along, along, strict=True) if x.halves])
        spare = machine.registers - registers
        wanted = machine.registers // w.spare
        if spare < wanted:
            work *= 1 + w.tight * (wanted - max(spare, 0))
        if spare < 0:
            work *= 1 - w.spill * spare
        if each.signs and not machine.holds_signs(size, loaded):
            # Each product loads them.
            work *= 1 + w.tight
        return work


def _loads(operands: tuple[Vectors, ...], places: tuple[float, ...], vectors: int) -> list[float]:
    """The loads of a step of the reduction, of each operand that is read at so many places."""
    pairs = zip(operands, places, strict=True)
    return [n * vectors if x.far is None else n * vectors * x.far for x, n in pairs]


def _both(busy: float, latency: float, sharpness: float) -> float:
    """Cycles of multiply-adds that keep their units busy for some, and wait for each other.

    A little more than the larger of the two: where they are about equal, neither hides the other.
    """
    return float((busy**sharpness + latency**sharpness) ** (1 / sharpness))
