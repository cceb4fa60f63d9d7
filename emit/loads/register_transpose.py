"""Vectors across memory, by transposing: loaded along memory once, stored along it at last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rutc.base.record import record
from rutc.emit.index import Lane
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, i64
from rutc.emit.loads.lane_masks import both, constant_lanes, pieces
from rutc.emit.loads.load_store import BOOL, MemoryEmitter, align
from rutc.emit.loads.storage import memory_type, to_memory
from rutc.emit.loads.transpose import interleaved, is_whole, transposable, transposed
from rutc.tensor_ir.expr import Coord, Read
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Access, Buffer
from rutc.tensor_ir.machine import NEAR_STRIDES

MIN_SHARED = 4
"""Vectors across memory that share loads, below which gathers are no slower."""
WORD_BITS = 32
"""Bits of a lane in which numbers that are stored in fewer are computed."""
INTERLEAVED = range(2, MIN_SHARED + 1)
"""How far lanes lie apart where few vectors, or as many, are stored element by element in turn."""


@record
class DeferredTranspose:
    """Vectors across memory that wait to be stored along it, by their distance from `start`.

    They wait for the end of the unrolled `loop`.
    """

    loop: str
    buffer: Buffer
    start: Index
    lane: Lane
    vectors: dict[int, ir.Value]
    stride: int = 0
    """How far neighbouring lanes lie apart where vectors fill the memory between them, or few do
    but for padding; otherwise 0."""


class TransposeEmitter:
    """Loads and stores vectors across memory by transposing, where unrolled loops go along it."""

    def __init__(self, memory: MemoryEmitter) -> None:
        """Start with nothing loaded and nothing waiting."""
        self.memory = memory
        self.builder = memory.builder
        self.index = memory.index
        self._transposed: dict[str, dict[tuple[object, ...], list[ir.Value]]] = {}
        self._deferred: dict[tuple[object, ...], DeferredTranspose] = {}

    @contextmanager
    def region(self) -> Iterator[None]:
        """A straight-line region of its own: loads outside and inside are not shared."""
        outer, self._transposed = self._transposed, {}
        yield
        self._transposed = outer

    def forget_loads(self) -> None:
        """Memory may have changed: load anew from here on."""
        self._transposed.clear()

    def forget_loads_of(self, buffer: Buffer) -> None:
        """A buffer may have changed: load it anew from here on."""
        self._transposed.pop(buffer.name, None)

    def finish(self, buffer: Buffer) -> None:
        """Store what waits for `buffer`: it is about to be read."""
        self._store_chosen(lambda s: s.buffer is buffer)

    def across(self, r: Read, buffer: Buffer, address: Index) -> ir.Value | None:
        """A vector across memory, transposed from loads along it; None where that does not pay.

        It pays where an unrolled loop goes along the memory: its iterations share the loads. Lanes
        that are near each other share them anyway. Lanes that are no iterations have what the last
        one has, where a run tells which these are.
        """
        lane = self.index.lane
        if lane is None or not self._crosses(buffer, address):
            return None
        if not transposable(lane.lanes, buffer.dtype.bytes):
            return None
        counted = not isinstance(lane.mask, ir.Constant | None)
        counted = counted and not self._has_all(r, buffer, lane)
        if counted and not (self.memory.masks_loads(buffer) or self._has_one(lane)):
            return None
        if address.coefficient(lane.var) in NEAR_STRIDES:
            return None
        found = self._along(r.coords, buffer)
        if found is None:
            return None
        v, first, count, start = found
        there = tuple(self._inside(r, buffer, v, first + i) for i in range(count))
        if sum(there) < MIN_SHARED or not there[self.index.constants[v].value - first]:
            return None
        known, key = self._transposed.setdefault(buffer.name, {}), (start, lane.key, there)
        if key not in known:
            places = self._clamped(buffer, start, lane) if counted else None
            known[key] = self._columns(buffer, start, lane, there, places)
        return known[key][self.index.constants[v].value - first]

    def defer(self, target: Access, buffer: Buffer, address: Index, value: ir.Value) -> bool:
        """Keep a vector that lies across memory until its unrolled neighbours are there, too.

        They are then transposed and stored along memory. Only straight-line code is deferred: it
        ends with the unrolled loop, in `store_deferred`.
        """
        lane = self.index.lane
        if lane is None or not self._crosses(buffer, address):
            return False
        if not isinstance(lane.mask, ir.Constant | None):
            return False
        stride = address.coefficient(lane.var)
        found = self._along([(d, c) for d, c in target.coords], buffer, stride)
        if found is None:
            return False
        v, first, count, start = found
        if self.index.unrolled[v].block is not self.builder.block:
            return False
        key = (buffer.name, start, lane.key)
        few = count < MIN_SHARED or (count == stride and count < lane.lanes)
        dense = stride if stride in INTERLEAVED and few else 0
        size = buffer.dtype.bytes
        if not transposable(lane.lanes, size) and not (dense and is_whole(lane.lanes, size)):
            return False
        waiting = self._deferred.setdefault(
            key, DeferredTranspose(v, buffer, start, lane, {}, dense or 0)
        )
        at = self.index.constants[v].value - first
        waiting.vectors[at] = self.memory.widen(
            to_memory(self.builder, value, buffer.dtype), lane.lanes
        )
        return True

    def store_deferred(self, var: str) -> None:
        """Store what waits for the end of the unrolled loop over `var`."""
        self._store_chosen(lambda s: s.loop == var)

    def _store_chosen(self, chosen: Callable[[DeferredTranspose], bool]) -> None:
        for key in [k for k, s in self._deferred.items() if chosen(s)]:
            s = self._deferred.pop(key)
            lanes = s.lane.lanes
            vector = ir.VectorType(memory_type(s.buffer.dtype), lanes)
            idle = ir.Constant(vector, ir.Undefined)
            if s.stride:
                self._store_interleaved(s, [s.vectors.get(i, idle) for i in range(s.stride)])
                continue
            if not self.memory.machine.has_masks and _are_truncated(s):
                self._store_words(s)
                continue
            vectors = [s.vectors.get(i, idle) for i in range(lanes)]
            rows = transposed(self.builder, vectors, s.buffer.dtype.bytes)
            mask = ir.Constant(ir.VectorType(BOOL, lanes), [i in s.vectors for i in range(lanes)])
            for number, row in enumerate(rows):
                if _is_idle(s.lane, number):
                    continue
                at = s.start.subs({s.lane.var: Index.of(s.lane.base + number)})
                place = self.memory.place(s.buffer, at)
                if len(s.vectors) == lanes:
                    self.builder.store(row, place, align=align(s.buffer))
                else:
                    self.memory.masked_store(s.buffer, row, place, mask)

    def _store_words(self, s: DeferredTranspose) -> None:
        """Put neighbours together in the lanes in which they were computed, and store each lane.

        Lanes are narrowed by the way. Where masks tell the lanes there are instructions for that;
        elsewhere it takes more operations than to put a word together.
        """
        b, lanes = self.builder, s.lane.lanes
        bits = 8 * s.buffer.dtype.bytes
        most = WORD_BITS // bits
        active = [i in s.vectors for i in range(lanes)]
        for first, count in _in_pieces(active, 2 * most):
            words = self._word([s.vectors[i] for i in range(first, first + min(count, most))], bits)
            if count > most:
                high = self._word([s.vectors[i] for i in range(first + most, first + count)], bits)
                words = self._joined(words, high)
            for number in range(lanes):
                if _is_idle(s.lane, number):
                    continue
                word: ir.Value = b.extract_element(words, ir.Constant(I32, number))
                if count < most:
                    word = b.trunc(word, ir.IntType(count * bits))
                at = s.start.subs({s.lane.var: Index.of(s.lane.base + number)}) + first
                b.store(word, self.memory.place(s.buffer, at), align=align(s.buffer))

    def _word(self, vectors: Sequence[ir.Value], bits: int) -> ir.Value:
        """The elements of all vectors in each lane of one, the first one in the lowest bits."""
        b, wide = self.builder, ir.VectorType(I32, vectors[0].lanes)
        word: ir.Value = b.zext(vectors[0], wide)
        for i, vector in enumerate(vectors[1:], 1):
            shift = ir.Constant(wide, [bits * i] * wide.count)
            word = b.or_(word, b.shl(b.zext(vector, wide), shift))
        return word

    def _joined(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Lanes of two words each, of the lanes of two vectors."""
        lanes = low.lanes
        picks = [k for i in range(lanes) for k in (i, lanes + i)]
        both = self.builder.shuffled(low, picks, high)
        return self.builder.bitcast(both, ir.VectorType(ir.IntType(2 * WORD_BITS), lanes))

    def _store_interleaved(self, s: DeferredTranspose, vectors: list[ir.Value]) -> None:
        """Element k of each vector in turn, then element k + 1: as many whole vectors of memory."""
        lanes, stride = s.lane.lanes, s.stride
        start = s.start.subs({s.lane.var: Index.of(s.lane.base)})
        if len(s.vectors) == stride and stride.bit_count() == 1:
            rows = interleaved(self.builder, vectors)
        else:
            rows = [self._picked(vectors, i * lanes) for i in range(stride)]
        for i, row in enumerate(rows):
            first = i * lanes
            wanted = [divmod(k, stride) for k in range(first, first + lanes)]
            active = [n in s.vectors and not _is_idle(s.lane, k) for k, n in wanted]
            place = self.memory.place(s.buffer, start + first)
            if all(active):
                self.builder.store(row, place, align=align(s.buffer))
            elif any(active):
                mask = ir.Constant(ir.VectorType(BOOL, lanes), active)
                self.memory.masked_store(s.buffer, row, place, mask)

    def _picked(self, vectors: Sequence[ir.Value], first: int) -> ir.Value:
        """Elements `first` and those after it of all vectors, of which each has one in turn."""
        lanes, row = vectors[0].lanes, vectors[0]
        wanted = [divmod(i, len(vectors)) for i in range(first, first + lanes)]
        for number, vector in enumerate(vectors):
            picks = [lanes + k if n == number else i for i, (k, n) in enumerate(wanted)]
            if number == 0:
                picks = [k for k, _ in wanted]
            row = self.builder.shuffled(row, picks, vector)
        return row

    def _crosses(self, buffer: Buffer, address: Index) -> bool:
        """Whether the lanes lie apart in memory, at places that no vectors tell."""
        lane = self.index.lane
        return (
            lane is not None
            and not buffer.singly
            and self.index.varies(address)
            and not self.memory.contiguous(address, lane)
            and address.factor(lane.var) is not None
            and not self.index.holds_vectors(address)
        )

    def _along(
        self, place: Sequence[tuple[str, Coord]], buffer: Buffer, stride: int | None = None
    ) -> tuple[str, int, int, Index] | None:
        """The unrolled loop that goes along memory here: (loop, first iteration, number, start).

        The iterations are those that share a waiting with this one; `start` is the address of the
        first. None where there is no such loop, or too few iterations; all are enough where
        neighbouring lanes are a small `stride` apart.
        """
        lane = self.index.lane
        assert lane is not None
        indices = [(d, c) for d, c in place if isinstance(c, Index)]
        if len(indices) < len(place):
            return None
        for v, loop in self.index.unrolled.items():
            with self.index.symbolic(v, (loop.lo, loop.hi - 1)):
                coords = {d: self.index.resolve(c) for d, c in indices}
                general = buffer.layout.address(coords, self.index.ranges)
            if general.coefficient(v) != 1:
                continue
            at = self.index.constants[v].value - loop.lo
            first = loop.lo + at // lane.lanes * lane.lanes
            count = min(lane.lanes, loop.hi - first)
            fills = stride is not None and loop.hi - loop.lo <= stride in INTERLEAVED
            if count < MIN_SHARED and not fills:
                return None
            return v, first, count, general.subs({v: Index.of(first)})
        return None

    def _has_all(self, r: Read, buffer: Buffer, lane: Lane) -> bool:
        """Whether all lanes lie in the buffer, those that are no iterations as well."""
        extents = dict(buffer.layout.extents)
        own = {lane.var: (lane.base, lane.base + lane.lanes - 1)}
        for d, c in r.coords:
            if not isinstance(c, Index):
                return False
            bounds = self.index.resolve(c).bounds({**self.index.ranges, **own})
            extent = Index.of(extents[d]).bounds(self.index.ranges)
            if bounds is None or extent is None or bounds[0] < 0 or bounds[1] >= extent[0]:
                return False
        return True

    def _inside(self, r: Read, buffer: Buffer, var: str, value: int) -> bool:
        """Whether the iteration of an unrolled loop reads what is there, for all lanes.

        Without a fill all do. Others may be beyond the memory, where one iteration is not.
        """
        if r.fill is None:
            return True
        layout, extents = buffer.layout, dict(buffer.layout.extents)
        with self.index.symbolic(var, (value, value)):
            for d, c in r.coords:
                assert isinstance(c, Index)
                bounds = self.index.resolve(c).bounds(self.index.ranges)
                extent = Index.of(extents[d]).bounds(self.index.ranges)
                if bounds is None or extent is None:
                    return False
                if bounds[0] < -layout.before.get(d, 0):
                    return False
                if bounds[1] >= extent[0] + layout.after.get(d, 0):
                    return False
        return True

    def _has_one(self, lane: Lane) -> bool:
        """Whether the loop of a lane is known to have an iteration."""
        bounds = lane.end.bounds(self.index.ranges)
        return bounds is not None and bounds[0] > self.index.ranges[lane.var][0]

    def _clamped(self, buffer: Buffer, start: Index, lane: Lane) -> list[ir.Value]:
        """The place of each lane, or of the last one that is an iteration, if any is."""
        b, step = self.builder, start.factor(lane.var)
        assert step is not None
        first = self.memory.place(buffer, start.subs({lane.var: Index.of(0)}))
        last = b.sub(self.index.emit(lane.end), i64(1))
        apart, element = self.index.emit(step), memory_type(buffer.dtype)
        places: list[ir.Value] = []
        for number in range(lane.base, lane.base + lane.lanes):
            at = b.select(b.icmp_signed("<", i64(number), last), i64(number), last)
            places.append(b.gep(first, [b.mul(at, apart)], type_=element))
        return places

    def _columns(
        self,
        buffer: Buffer,
        start: Index,
        lane: Lane,
        there: Sequence[bool],
        places: Sequence[ir.Value] | None,
    ) -> list[ir.Value]:
        """Of each lane the neighbours from `start` that are there, transposed: a vector each.

        Lanes whose `places` are told are read only if one of them is an iteration.
        """
        vector = ir.VectorType(memory_type(buffer.dtype), lane.lanes)
        active = [*there, *[False] * (lane.lanes - len(there))]
        mask: ir.Value | None = None
        if not all(active):
            mask = ir.Constant(ir.VectorType(BOOL, lane.lanes), active)
        if places is not None and not self._has_one(lane):
            low = i64(self.index.ranges[lane.var][0])
            some = self.builder.icmp_signed("<", low, self.index.emit(lane.end))
            mask = both(self.builder, mask, self.memory.widen(some, lane.lanes))
        rows: list[ir.Value] = []
        for number in range(lane.lanes):
            if _is_idle(lane, number):
                rows.append(ir.Constant(vector, None))
                continue
            if places is not None:
                place = places[number]
            else:
                at = start.subs({lane.var: Index.of(lane.base + number)})
                place = self.memory.place(buffer, at)
            if mask is None:
                rows.append(self.builder.load(place, type_=vector, align=align(buffer)))
                continue
            rows.append(
                self.memory.masked_load(buffer, place, vector, mask, ir.Constant(vector, None))
            )
        return transposed(self.builder, rows, buffer.dtype.bytes)


def _in_pieces(active: Sequence[bool], most: int) -> Iterator[tuple[int, int]]:
    """Runs of active lanes as (first, number), of `most` at most, a power of two."""
    for first, count in pieces(active):
        for part in range(first, first + count, most):
            yield part, min(most, count)


def _are_truncated(s: DeferredTranspose) -> bool:
    """Whether all vectors are the low bits of words."""
    return all(
        isinstance(v, ir.Instruction)
        and v.op == "trunc"
        and v.operands[0].type == ir.VectorType(ir.IntType(WORD_BITS), v.lanes)
        for v in s.vectors.values()
    )


def _is_idle(lane: Lane, number: int) -> bool:
    """Whether a lane whose mask is constant is no iteration."""
    active = constant_lanes(lane.mask) if lane.mask is not None else None
    return active is not None and not active[number]
