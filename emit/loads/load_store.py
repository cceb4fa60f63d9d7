"""Elements of memory as LLVM values: loads and stores of one, of neighbours, and across memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rutc.emit.frame import room
from rutc.emit.index import IndexEmitter, Lane
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, i64, is_vector, one_by_one, splat, zeros
from rutc.emit.loads.lane_masks import both, constant_lanes, idle_lanes, pieces
from rutc.emit.loads.seams import crosses, ends, may_end
from rutc.emit.loads.shuffled_load import ShuffledLoads
from rutc.emit.loads.spread_store import SpreadStores
from rutc.emit.loads.storage import emit_literal, memory_type, to_memory
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Lit
from rutc.tensor_ir.facts.lane_runs import divided_along
from rutc.tensor_ir.indices.affine import ZERO, Index, Monomial, Var
from rutc.tensor_ir.kernel import Buffer, Space
from rutc.tensor_ir.machine import NARROWEST_MASKED, Machine

BOOL = ir.IntType(1)


class MemoryEmitter:
    """Loads and stores elements of memory and stack buffers, one or one for each lane."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        index: IndexEmitter,
        pointer: Callable[[Buffer], ir.Value],
        machine: Machine,
    ) -> None:
        """Emit at `builder`'s place; `pointer` gives the address of a buffer's first element."""
        self.builder = builder
        self.index = index
        self.pointer = pointer
        self.machine = machine
        self.shuffled = ShuffledLoads(builder, index, self.some, self.is_inside)
        self.spread = SpreadStores(builder, index, self.place, self.masked_store, machine)

    def load(
        self,
        buffer: Buffer,
        address: Index,
        guard: ir.Value | None,
        fill: Lit | None,
        first: Index = ZERO,
    ) -> ir.Value:
        """The element at an address, or one per lane; `fill` where `guard` does not hold.

        The `first` element exists whatever the guard says.
        """
        b = self.builder
        element = memory_type(buffer.dtype)
        lane = self.index.lane
        if not self.index.varies(address):
            if guard is None:
                return b.load(self.place(buffer, address), type_=element, align=align(buffer))
            return self._guarded_scalar(buffer, address, guard, fill, first)
        assert lane is not None
        lanes = lane.lanes
        vector = ir.VectorType(element, lanes)
        mask = lane.mask
        # Idle lanes compute, too: with defined values, or dividing by them would be undefined.
        other: ir.Value = zeros(vector)
        if guard is not None:
            key = "wide", guard.ref, lanes
            mask = both(b, mask, self.index.shared(key, lambda: self.widen(guard, lanes), guard))
            other = self._memory_fill(fill, buffer, lanes)
        if self.contiguous(address, lane):
            start = address.subs({lane.var: Index.of(lane.base)})
            place = self.place(buffer, start)
            if mask is None or (guard is None and self._may_read_on(buffer, start, lanes)):
                return b.load(place, type_=vector, align=align(buffer))
            if not self.masks_loads(buffer):
                return self._whole_where_inside(buffer, start, vector, mask, other)
            return self._masked_where(guard, buffer, place, first, vector, mask, other)
        # Of all lanes that takes less than a gather, and a branch on an end goes one way.
        if guard is None and may_end(lane) and self.shuffled.takes(buffer, address, lane):

            def apart(active: ir.Value | None) -> ir.Value:
                with self.index.scope():
                    return self._apart(buffer, address, None, active, other, first)

            ended = ends(b, self.index, lane)
            return b.either(ended, "end", lambda: apart(None), lambda: apart(mask))
        return self._apart(buffer, address, guard, mask, other, first)

    def _apart(
        self,
        buffer: Buffer,
        address: Index,
        guard: ir.Value | None,
        mask: ir.Value | None,
        other: ir.Value,
        first: Index,
    ) -> ir.Value:
        """Elements that are no neighbours, one per lane; `other` where a guard leaves lanes out."""
        b, lane, vector = self.builder, self.index.lane, other.type
        assert lane is not None
        assert isinstance(vector, ir.VectorType)
        lanes = lane.lanes
        active = [True] * lanes if mask is None else constant_lanes(mask)
        if active is not None and any(active):
            found = self.shuffled.load(buffer, address, lane, vector, active)
            if found is not None:
                return found if mask is None or guard is None else b.select(mask, found, other)
        every_lane = mask is None
        if mask is None:
            mask = ir.Constant(ir.VectorType(BOOL, lanes), [1] * lanes)
        moves = self._moves(address, lane) if guard is None else None
        if moves is not None:
            return self._neighbours_or_one(buffer, address, moves, mask, vector)

        def gathered() -> ir.Value:
            with self.index.scope():
                places = self._places(buffer, address, lanes)
            if every_lane and self.machine.gather_cycles >= self.machine.width:
                return one_by_one(b, places, vector, align(buffer))
            name, least = f"llvm.masked.gather.{vector.suffix}.v{lanes}p0", align(buffer)
            return b.call_named(name, vector, [places, ir.Constant(I32, least), mask, other])

        parts = divided_along(address, lane.var, lanes, self.index.ranges)
        whole = every_lane or self.masks_loads(buffer)
        if not parts or not whole or self.index.holds_vectors(address):
            return gathered()
        start = self.index.simplified(address.subs({lane.var: Index.of(lane.base)}))
        place = self.place(buffer, start)

        def near() -> ir.Value:
            if every_lane:
                return b.load(place, type_=vector, align=align(buffer))
            return self._masked_where(guard, buffer, place, first, vector, mask, other)

        return b.either(crosses(b, self.index, parts, lane), "seam", near, gathered)

    def store(self, buffer: Buffer, address: Index, value: ir.Value) -> None:
        """Put a value at an address, or one per lane."""
        b = self.builder
        lane = self.index.lane
        if buffer.layout.nibbles:
            raise InternalError(f"{buffer.name}, which is in nibbles, is written")
        value = to_memory(b, value, buffer.dtype)
        if lane is None or not self.index.varies(address):
            if is_vector(value) and lane is not None and _one_counts(lane):
                value = b.extract_element(value, ir.Constant(I32, 0))
            if is_vector(value):
                raise InternalError(f"a vector stored to one element of {buffer.name}")
            b.store(value, self.place(buffer, address), align=align(buffer))
            return
        value = self.widen(value, lane.lanes)
        if self.contiguous(address, lane):
            start = address.subs({lane.var: Index.of(lane.base)})
            place = self.place(buffer, start)
            if lane.mask is None or self._may_write_on(buffer, start, lane.mask):
                b.store(value, place, align=align(buffer))
                return
            self._store_up_to_end(buffer, value, place, lane)
            return
        mask = lane.mask
        if mask is None:
            mask = ir.Constant(ir.VectorType(BOOL, lane.lanes), [1] * lane.lanes)
        active = constant_lanes(mask)
        if active is not None and self.spread.store(buffer, address, lane, value, active):
            return
        places = self._places(buffer, address, lane.lanes)
        name = f"llvm.masked.scatter.{value.type.suffix}.v{lane.lanes}p0"
        least = ir.Constant(I32, align(buffer))
        b.call_named(name, ir.VoidType(), [value, places, least, mask])

    def widen(self, value: ir.Value, lanes: int) -> ir.Value:
        """The value with lanes."""
        return value if is_vector(value) else splat(self.builder, value, lanes)

    def contiguous(self, address: Index, lane: Lane) -> bool:
        """Whether neighbouring lanes are at neighbouring places."""
        return address.coefficient(lane.var) == 1 and not self.index.holds_vectors(address)

    def _may_read_on(self, buffer: Buffer, start: Index, lanes: int) -> bool:
        """Whether idle lanes better read what lies in the buffer, too, than nothing.

        To leave lanes out of a load takes an operation. No arithmetic on floats is undefined.
        """
        plain = buffer.dtype in (DType.F32, DType.F64)
        return plain and self.machine.has_masks and self.is_inside(buffer, start, lanes)

    def _may_write_on(self, buffer: Buffer, start: Index, mask: ir.Value) -> bool:
        """Whether idle lanes write what lies behind a local buffer, in its last line.

        A load of what a store of some lanes wrote waits until it is in the cache; what a whole
        vector wrote it takes from the store.
        """
        active, size = constant_lanes(mask), buffer.layout.size
        bounds = start.bounds(self.index.ranges)
        if buffer.space is not Space.STACK or active is None or bounds is None:
            return False
        if not isinstance(size, int) or all(active):
            return False
        count = active.index(False)
        behind = not any(active[count:]) and bounds[0] + count == size
        return behind and bounds[1] + len(active) <= room(buffer, size)

    def _whole_where_inside(
        self, buffer: Buffer, start: Index, vector: ir.VectorType, mask: ir.Value, other: ir.Value
    ) -> ir.Value:
        """A vector of neighbours too narrow for masks, `other` in idle lanes.

        They are loaded, too, and left out then, where the buffer has them: else each lane has its
        own load. Where only a run tells, only the first and last rows of a buffer branch there.
        """
        b, lanes = self.builder, vector.count
        place, least = self.place(buffer, start), align(buffer)

        def near() -> ir.Value:
            return b.load(place, type_=vector, align=least)

        def part() -> ir.Value:
            return self.masked_load(buffer, place, vector, mask, other)

        if self.is_inside(buffer, start, lanes):
            return b.select(mask, near(), other)
        if not isinstance(buffer.layout.size, int) or buffer.layout.size < lanes:
            return part()
        first, last = self.index.emit(start), i64(buffer.layout.size - lanes)
        beyond = b.or_(b.icmp_signed("<", first, i64(0)), b.icmp_signed(">", first, last))
        return b.select(mask, b.either(beyond, "inside", near, part), other)

    def is_inside(self, buffer: Buffer, start: Index, count: int) -> bool:
        """Whether so many elements from a place on are known to be the buffer's."""
        bounds, size = start.bounds(self.index.ranges), buffer.layout.size
        if bounds is None or not isinstance(size, int):
            return False
        return bounds[0] >= 0 and bounds[1] + count <= size

    def place(self, buffer: Buffer, address: Index) -> ir.Value:
        """The address of one element; the constant part last, so that places share the rest."""
        base = self.pointer(buffer)
        if address.terms:
            varying = Index(address.terms)
            base = self.index.shared(
                (buffer.name, varying, self.index.window(varying)),
                lambda: self._moved(buffer, varying),
                varying,
            )
        if address.const:
            element = memory_type(buffer.dtype)
            base = self.builder.gep(base, [i64(address.const)], type_=element)
        return base

    def _moved(self, buffer: Buffer, varying: Index) -> ir.Value:
        """The address so far into a buffer: the way that loops outside tell is gone there."""
        outside, inside = self.index.apart(varying)
        base = self.place(buffer, outside)
        return self.builder.gep(base, [self.index.emit(inside)], type_=memory_type(buffer.dtype))

    def masks_loads(self, buffer: Buffer) -> bool:
        """Whether loads of neighbours may leave lanes out."""
        return self.machine.has_masks or buffer.dtype.bytes >= NARROWEST_MASKED

    def masked_load(
        self, buffer: Buffer, place: ir.Value, vector: ir.Type, mask: ir.Value, other: ir.Value
    ) -> ir.Value:
        """A vector of neighbours, `other` in idle lanes.

        LLVM 22 loads the first lane of a register all of whose lanes are known to be idle, though
        not of the vector's other registers. So those lanes are said to be `other` once more.
        """
        name = f"llvm.masked.load.{vector.suffix}.p0"
        least = ir.Constant(I32, align(buffer))
        loaded = self.builder.call_named(name, vector, [place, least, mask, other])
        idle = idle_lanes(mask)
        if constant_lanes(mask) is not None or not any(idle):
            return loaded
        live = ir.Constant(mask.type, [not lane for lane in idle])
        return self.builder.select(live, loaded, other)

    def _masked_where(
        self,
        guard: ir.Value | None,
        buffer: Buffer,
        place: ir.Value,
        first: Index,
        vector: ir.Type,
        mask: ir.Value,
        other: ir.Value,
    ) -> ir.Value:
        """The same of a place that may not exist: a load of no lanes is of the `first` one then.

        It takes hundreds of cycles where there is no memory.
        """
        if guard is not None and not is_vector(guard):
            place = self.builder.select(guard, place, self.place(buffer, first))
        return self.masked_load(buffer, place, vector, mask, other)

    def some(self, buffer: Buffer, address: Index, count: int, vector: ir.VectorType) -> ir.Value:
        """A vector of neighbours, and nothing of what lies beyond so many."""
        place, lanes = self.place(buffer, address), vector.count
        if count >= lanes:
            return self.builder.load(place, type_=vector, align=align(buffer))
        mask = ir.Constant(ir.VectorType(BOOL, lanes), [i < count for i in range(lanes)])
        return self.masked_load(buffer, place, vector, mask, ir.Constant(vector, None))

    def masked_store(
        self, buffer: Buffer, value: ir.Value, place: ir.Value, mask: ir.Value
    ) -> None:
        """Store neighbours, idle lanes left out.

        Without registers for masks a masked store may take tens of operations: where the lanes are
        known they are stored in pieces. One lane always is: LLVM 22 stores a truncated one that is
        alone in its full width under AVX-512.
        """
        known = constant_lanes(mask)
        if known is not None and (known.count(True) == 1 or not self.machine.has_masks):
            self._store_pieces(buffer, value, place, known)
            return
        name = f"llvm.masked.store.{value.type.suffix}.p0"
        least = ir.Constant(I32, align(buffer))
        self.builder.call_named(name, ir.VoidType(), [value, place, least, mask])

    def _store_up_to_end(
        self, buffer: Buffer, value: ir.Value, place: ir.Value, lane: Lane
    ) -> None:
        """Store neighbours, those behind a loop's end left out.

            *p = v, of the lanes i < end - base  ->  if end - base < lanes { that } else { *p = v }

        So it is where there are no registers for masks: then a masked store takes as long as tens
        of whole ones on some processors, also of all lanes, and a branch on an end goes one way.
        """
        b, mask = self.builder, lane.mask
        assert mask is not None
        if self.machine.has_masks or not may_end(lane):
            self.masked_store(buffer, value, place, mask)
            return
        whole, part, done = map(b.function.append_basic_block, ("whole", "part", "stored"))
        b.cbranch(ends(b, self.index, lane), part, whole)
        b.position_at_end(whole)
        b.store(value, place, align=align(buffer))
        b.branch(done)
        b.position_at_end(part)
        self.masked_store(buffer, value, place, mask)
        b.branch(done)
        b.position_at_end(done)

    def _store_pieces(
        self, buffer: Buffer, value: ir.Value, place: ir.Value, active: Sequence[bool]
    ) -> None:
        """Store the active lanes, as many neighbours at a time as a register holds."""
        b = self.builder
        for first, count in pieces(active):
            piece = b.part(value, first, count)
            element = memory_type(buffer.dtype)
            at = b.gep(place, [i64(first)], type_=element) if first else place
            b.store(piece, at, align=align(buffer))

    def _moves(self, address: Index, lane: Lane) -> Index | None:
        """The size of 0 or 1 by which neighbouring lanes are apart, where it is one."""
        factor = address.factor(lane.var)
        if factor is None or factor.as_var is None or self.index.varies(factor):
            return None
        return factor if factor.bounds(self.index.ranges) == (0, 1) else None

    def _neighbours_or_one(
        self, buffer: Buffer, address: Index, moves: Index, mask: ir.Value, vector: ir.Type
    ) -> ir.Value:
        """A vector of neighbours if `moves` is 1, else the first element in all lanes."""
        b, lane = self.builder, self.index.lane
        assert lane is not None
        start = address.subs({lane.var: Index.of(lane.base)})
        moving = b.icmp_signed("!=", self.index.emit(moves), i64(0))
        first = ir.Constant(mask.type, [1] + [0] * (lane.lanes - 1))
        some = b.and_(mask, b.or_(splat(b, moving, lane.lanes), first))
        zeros = ir.Constant(vector, None)
        row = self.masked_load(buffer, self.place(buffer, start), vector, some, zeros)
        one = splat(b, b.extract_element(row, ir.Constant(I32, 0)), lane.lanes)
        return b.select(moving, row, one)

    def _guarded_scalar(
        self, buffer: Buffer, address: Index, guard: ir.Value, fill: Lit | None, first: Index
    ) -> ir.Value:
        """A load from a place that may not exist: the `first` is loaded instead, and not used."""
        b, lane, element = self.builder, self.index.lane, memory_type(buffer.dtype)

        def loaded(exists: ir.Value) -> ir.Instruction:
            way = b.select(exists, self.index.emit(address - first), i64(0))
            place = b.gep(self.place(buffer, first), [way], type_=element)
            return b.load(place, type_=element, align=align(buffer))

        if not is_vector(guard):
            row = self._guarded_row(buffer, address, guard, fill)
            if row is not None:
                return b.load(row, type_=element, align=align(buffer))
            return b.select(guard, loaded(guard), self._memory_fill(fill, buffer, 0))
        assert lane is not None
        if self.is_inside(buffer, address, 1):
            one = b.load(self.place(buffer, address), type_=element, align=align(buffer))
        else:
            some = f"llvm.vector.reduce.or.v{lane.lanes}i1"
            one = loaded(b.call_named(some, BOOL, [guard]))
        wide = splat(b, one, lane.lanes)
        return b.select(guard, wide, self._memory_fill(fill, buffer, lane.lanes))

    def _guarded_row(
        self, buffer: Buffer, address: Index, guard: ir.Value, fill: Lit | None
    ) -> ir.Value | None:
        """The place of an element of a row, or of as many fills where the row may not exist.

            for k { p = inside ? x + 9*i + k : x; acc += inside ? *p : 0.0 }
              ->  row = inside ? x + 9*i : zeros; for k { acc += row[k] }

        None where the innermost loop tells whether there is a row, or a row is long: its fills take
        no more than a line of each of the first cache's sets.
        """
        _, along = self.index.apart(address)
        factors = [c for atoms, c in along.terms if len(atoms) == 1 and isinstance(atoms[0], Var)]
        if len(factors) < len(along.terms) or min(factors, default=0) <= 0:
            return None
        # What steps of a loop that are written out read is of one row.
        step, moved = min(factors), Index(along.terms)
        along = moved + along.const % step
        bounds, begin = moved.bounds(self.index.ranges), address - along
        inner = self.index.depth(guard) < self.index.depth(along)
        if bounds is None or bounds[0] < 0 or not inner:
            return None
        size = (bounds[1] + step) * buffer.dtype.bytes
        if size > self.machine.l1_way_bytes:
            return None
        key = "row", buffer.name, begin, guard.ref, fill, size

        def chosen() -> ir.Value:
            row = self.place(buffer, begin)
            return self.builder.select(guard, row, self._fills(fill, buffer, size))

        row = self.index.shared(key, chosen, begin, guard)
        offset = self.index.emit(along)
        return self.builder.gep(row, [offset], type_=memory_type(buffer.dtype))

    def _fills(self, fill: Lit | None, buffer: Buffer, size: int) -> ir.Value:
        """Memory of so many bytes that holds nothing but fills."""
        data = np.array(_given(fill, buffer).value, buffer.dtype.numpy).tobytes()
        name, module = f"fills.{size}.{data.hex()}", self.builder.module
        found = module.globals.get(name)
        if isinstance(found, ir.GlobalVariable):
            return found
        held = data * (size // len(data)) if any(data) else None
        array = ir.Constant(ir.ArrayType(ir.IntType(8), size), held)
        return ir.GlobalVariable(module, name, array, align=self.machine.line_bytes)

    def _memory_fill(self, fill: Lit | None, buffer: Buffer, lanes: int) -> ir.Value:
        literal = emit_literal(self.builder, _given(fill, buffer))
        value = to_memory(self.builder, literal, buffer.dtype)
        return self.widen(value, lanes) if lanes else value

    def _places(self, buffer: Buffer, address: Index, lanes: int) -> ir.Value:
        """The addresses of one element for each lane; what all have in common is added once."""
        alike = self.alike(address)
        offsets = self.widen(self.index.emit(address - alike), lanes)
        element = memory_type(buffer.dtype)
        base = splat(self.builder, self.place(buffer, alike), lanes)
        return self.builder.gep(base, [offsets], type_=element)

    def alike(self, address: Index) -> Index:
        """The part of an address that all lanes have in common."""
        return Index(tuple(t for t in address.terms if not self._differs(t)), address.const)

    def _differs(self, term: tuple[Monomial, int]) -> bool:
        """Whether a term of an address is another for each lane."""
        return self.index.varies(Index((term,)))


def align(buffer: Buffer) -> int:
    """Bytes that every element of a buffer lies at a multiple of."""
    return buffer.dtype.bytes


def _one_counts(lane: Lane) -> bool:
    """Whether the first lane is the only iteration of the loop: no index varies there."""
    first, last = lane.ranges[lane.var]
    return first == last


def _given(fill: Lit | None, buffer: Buffer) -> Lit:
    """The fill of a guarded read."""
    if fill is None:
        raise InternalError(f"a guarded read of {buffer.name} has no fill")
    return fill
