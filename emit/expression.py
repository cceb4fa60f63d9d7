"""Scalar expressions of a kernel as LLVM values: loads, guards, gathers, arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import assert_never

from rutc.emit.bf16 import narrowed
from rutc.emit.cast import (
    emit_clamped_cast,
    emit_clamped_round,
    emit_saturated_round,
    splat_int,
)
from rutc.emit.index import IndexEmitter
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, is_vector
from rutc.emit.loads.lane_shift import LaneShiftEmitter
from rutc.emit.loads.load_store import MemoryEmitter
from rutc.emit.loads.nibbles import NibbleEmitter
from rutc.emit.loads.places import PlaceEmitter
from rutc.emit.loads.register_transpose import TransposeEmitter
from rutc.emit.loads.short_rows import ShortRowEmitter
from rutc.emit.loads.storage import emit_literal, from_memory, zero
from rutc.emit.loads.table_read import TableReads
from rutc.emit.long_whole import long_whole
from rutc.emit.numbers import ARITHMETIC, operand
from rutc.emit.reciprocal import divided_by_one
from rutc.emit.registers import RegisterEmitter
from rutc.emit.scalar import COMPARISONS, emit_bit_cast, emit_cast, emit_op
from rutc.emit.short_product import is_short_product, short_product
from rutc.emit.site import Sites
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    BitCast,
    Cast,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
    children,
    index_names,
    reads_plainly,
)
from rutc.tensor_ir.facts.clamped import Clamped, clamped, rounded
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.indices.comparing import compared
from rutc.tensor_ir.kernel import Access, Buffer, Prefetch, Space
from rutc.tensor_ir.machine import Machine


class ExpressionEmitter:
    """Evaluates expressions at the current point (or vector of points) of the iteration space."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        index: IndexEmitter,
        buffers: Mapping[str, Buffer],
        pointer: Callable[[Buffer], ir.Value],
        register: Callable[[Buffer, tuple[object, ...], ir.Type], ir.Value],
        machine: Machine,
        written: frozenset[str],
    ) -> None:
        """Evaluate at `builder`'s place; `pointer` and `register` give buffers their memory.

        `written` are the buffers that the kernel writes.
        """
        self.builder = builder
        self.index = index
        self.buffers = buffers
        self.memory = MemoryEmitter(builder, index, pointer, machine)
        self.transposes = TransposeEmitter(self.memory)
        self.nibbles = NibbleEmitter(self.memory, self.kept, self.keep)
        self.short_rows = ShortRowEmitter(self.memory, self.kept, self.keep)
        self.lane_shifts = LaneShiftEmitter(builder, index, self.emit, self.kept, self.keep)
        self.table_reads = TableReads(self.memory, buffers, self.emit, self.kept, self.keep)
        self.machine = machine
        self.written = written
        self.locals: dict[str, ir.Value] = {}
        # What is known of each buffer's memory.
        self._loads: dict[object, dict[tuple[object, ...], ir.Value]] = {}
        self._results: dict[tuple[object, ...], ir.Value] = {}
        self._wide: dict[tuple[int, int], tuple[ir.Value, ir.Value]] = {}
        self._needs: dict[int, tuple[Expr, frozenset[str] | None]] = {}
        self._ordered: dict[int, tuple[Expr, tuple[str, ...] | None]] = {}
        sites = Sites()
        self.places = PlaceEmitter(builder, index, sites, self.emit, self._same_width)
        self.registers = RegisterEmitter(self.memory, sites, register)

    def drop(self) -> None:
        """Takes this and its parts apart, once all is emitted.

        They call each other: only the search for cycles would find them to be garbage.
        """
        vars(self.memory).clear()
        vars(self).clear()

    @contextmanager
    def region(self) -> Iterator[None]:
        """A straight-line region of its own: values outside and inside are not shared."""
        outer = self._loads, self._results, self._wide
        self._loads, self._results, self._wide = {}, {}, {}
        with self.transposes.region():
            yield
        self._loads, self._results, self._wide = outer

    def forget_loads(self) -> None:
        """Memory may have changed: load anew from here on."""
        self._loads.clear()
        self.transposes.forget_loads()
        self._results.clear()

    # -- expressions ----------------------------------------------------------------------------
    def emit(self, e: Expr) -> ir.Value:
        """The value of `e`: a scalar where it is the same for all lanes, else a vector."""
        # Most are operations, then reads.
        match e:
            case Apply():
                return self._shared(e)
            case Read():
                return self._read(e)
            case Lit():
                return emit_literal(self.builder, e)
            case IndexValue():
                return self.index.emit(self.index.resolve(e.index))
            case Local():
                return self.locals[e.name]
            case Cast():
                return self._cast(e)
            case BitCast():
                return emit_bit_cast(self.builder, self.emit(e.arg), e.arg.dtype, e.dtype)
            case _:
                assert_never(e)

    def _cast(self, e: Cast) -> ir.Value:
        """A conversion; one of a float that was clamped needs no clamping of its own."""
        bounded = clamped(e)
        within = None if bounded is None else self._within(bounded, e.dtype)
        if within is not None:
            return within
        if isinstance(e.arg, Read) and self.buffers[e.arg.value].layout.nibbles:
            found = self._looked_up(e.arg) if e.dtype is DType.F32 else None
            return found or emit_cast(self.builder, self._nibbles(e.arg), DType.I32, e.dtype)
        value = self.emit(e.arg)
        if e.arg.dtype is DType.F32 and e.dtype is DType.BF16 and is_vector(value):
            found = narrowed(self.memory, value, self.machine)
            if found is not None:
                return found
        if e.arg.dtype is DType.F32 and e.dtype is DType.I64 and is_vector(value):
            found = long_whole(self.builder, value, self.machine)
            if found is not None:
                return found
        return emit_cast(self.builder, value, e.arg.dtype, e.dtype)

    def _within(self, e: Clamped, dtype: DType) -> ir.Value | None:
        """A conversion of what is clamped, which may be a rounded f32 and a literal shift."""
        bounds = e.low, e.high
        match rounded(e.number):
            case x, shift:
                found = None
                match x:
                    case Apply("div", (y, Lit(float() as by))):
                        found = self._rounded(self.emit(y), shift, bounds, dtype, by)
                found = found or self._rounded(self.emit(x), shift, bounds, dtype)
                if found is not None:
                    return found
        if e.by_i32:
            return None
        number = self.emit(e.number)
        return emit_clamped_cast(self.builder, number, e.number.dtype, *bounds, dtype)

    def _rounded(
        self,
        x: ir.Value,
        shift: float,
        bounds: tuple[float, float],
        dtype: DType,
        by: float = 1.0,
    ) -> ir.Value | None:
        """The whole numbers nearest to quotients, plus a shift, in bounds."""
        if dtype is DType.I32:
            return emit_clamped_round(self.builder, x, shift, bounds, dtype, by)
        return emit_saturated_round(self.builder, x, shift, bounds, dtype, self.machine, by)

    def _shared(self, e: Apply) -> ir.Value:
        """The value of an operation, computed once for equal values of the unrolled loops."""
        names = self._ordered_names(e)
        if names is None:
            return self._apply(e)
        constants = self.index.constants
        at = tuple([(v, constants[v].value) for v in names if v in constants])
        lane = self.index.lane
        key = (id(e), at, lane.key if lane is not None else None)
        if key not in self._results:
            self._results[key] = self._apply(e)
        return self._results[key]

    def _ordered_names(self, e: Apply) -> tuple[str, ...] | None:
        """What `_index_names` gives, in the order of the names."""
        known = self._ordered.get(id(e))
        if known is None:
            names = self._index_names(e)
            known = self._ordered[id(e)] = e, None if names is None else tuple(sorted(names))
        return known[1]

    def _index_names(self, e: Expr) -> frozenset[str] | None:
        """The index variables that `e` depends on; None if on more than these and constant memory.

        The table keeps the expression, so that nothing else gets its identity.
        """
        known = self._needs.get(id(e))
        if known is None:
            known = self._needs[id(e)] = e, self._own_index_names(e)
        return known[1]

    def _own_index_names(self, e: Expr) -> frozenset[str] | None:
        """What `_index_names` gives of an expression that it does not know."""
        match e:
            case Apply() | Cast() | BitCast():
                found: frozenset[str] = frozenset()
                for x in children(e):
                    part = self._index_names(x)
                    if part is None:
                        return None
                    found |= part
                return found
            case Read():
                buffer = self.buffers[e.value]
                if buffer.space is not Space.MEMORY or buffer.name in self.written:
                    return None
                return index_names(e) if reads_plainly(e) else None
            case IndexValue():
                return e.index.names()
            case Local():
                return None
            case Lit():
                return frozenset()
            case _:
                assert_never(e)

    def _apply(self, e: Apply) -> ir.Value:
        dtype = e.args[-1].dtype
        if (arm := self._arm(e)) is not e:
            return self.emit(arm)
        if e.op in COMPARISONS and (found := self._compared(e)) is not None:
            return found
        if e.op in ("add", "sub") and dtype in (DType.F32, DType.F64):
            fused = self._multiply_add(e)
            if fused is not None:
                return fused
        known = e.op not in ARITHMETIC or dtype is not DType.F32
        values = [self.emit(a) if known else self._operand(a) for a in e.args]
        if e.op == "div" and dtype is DType.F32:
            literal = float(e.args[1].value) if isinstance(e.args[1], Lit) else None
            quotient = divided_by_one(self.memory, values[0], values[1], literal, self.machine)
            if quotient is not None:
                return quotient
        values = self._same_width(values)
        if is_short_product(e):
            # What depends on less is cut once for several products.
            cut, kept = sorted((0, 1), key=lambda i: len(self._index_names(e.args[i]) or ()))
            found = short_product(self.builder, values[kept], values[cut], self.machine.features)
            if found is not None:
                return found
        return emit_op(self.builder, e.op, values, dtype, self.machine.features)

    def _operand(self, e: Expr) -> ir.Value:
        """The value of an operand of arithmetic; a literal is one of the kernel's numbers."""
        value = self.emit(e)
        return operand(self.builder, value) if isinstance(value, ir.Constant) else value

    def _compared(self, e: Apply) -> ir.Value | None:
        """A place along lanes compared with a literal in 32 bits; None of anything else."""
        match e.args:
            case (IndexValue(index), Lit(int() as value)) if abs(value) < 1 << (I32.width - 1):
                place = self.index.narrow(self.index.resolve(index))
            case _:
                return None
        if place is None:
            return None
        return emit_op(self.builder, e.op, [place, splat_int(place.type, value)], DType.I32)

    def _decided(self, condition: Expr) -> bool | None:
        """What comparing an index with a literal gives, where its range at hand tells."""
        match condition:
            case Apply(op=op, args=(IndexValue(index), Lit(value))):
                bounds = self.index.resolve(index).bounds(self.index.ranges)
            case _:
                return None
        return None if bounds is None else compared(op, bounds, int(value))

    def _arm(self, e: Expr) -> Expr:
        """What choices that are decided at the current point come to; any other is itself."""
        while isinstance(e, Apply) and e.op == "select":
            decided = self._decided(e.args[0])
            if decided is None:
                break
            e = e.args[1] if decided else e.args[2]
        return e

    def _same_width(self, values: list[ir.Value]) -> list[ir.Value]:
        lanes = 0
        for v in values:
            if is_vector(v) and v.lanes > lanes:
                lanes = v.lanes
        return [self._widened(v, lanes) for v in values] if lanes else values

    def _widened(self, value: ir.Value, lanes: int) -> ir.Value:
        """The value with lanes, of which equal ones are made once.

        The table keeps the value, so that nothing else gets its identity.
        """
        if is_vector(value):
            return value
        key = id(value), lanes
        if key not in self._wide:
            numbers = self.builder.function.numbers
            wide = None if numbers is None else numbers.in_lanes(value, lanes)
            self._wide[key] = value, wide or self.memory.widen(value, lanes)
        return self._wide[key][1]

    def _multiply_add(self, e: Apply) -> ir.Value | None:
        """x + p*q, p*q + x, x - p*q and p*q - x as one fused operation."""
        a, b = map(self._arm, e.args)
        if isinstance(b, Apply) and b.op == "mul":
            product, other, first = b, a, False
        elif isinstance(a, Apply) and a.op == "mul":
            product, other, first = a, b, True
        else:
            return None
        p, q, x = self._same_width([self._operand(x) for x in (*product.args, other)])
        if e.op == "sub":
            if first:
                x = self.builder.fneg(x)
            else:
                p = self.builder.fneg(p)
        return self.builder.intrinsic("fma", p, q, x)

    # -- reads ----------------------------------------------------------------------------------
    def _read(self, r: Read) -> ir.Value:
        buffer = self.buffers[r.value]
        if buffer.space is Space.REGISTER:
            return self.registers.read(buffer, r.coords)
        if buffer.layout.nibbles:
            return emit_cast(self.builder, self._nibbles(r), DType.I32, buffer.dtype)
        self.transposes.finish(buffer)
        plain, picked = reads_plainly(r), not buffer.singly
        if buffer.layout.size == 0 or (not plain and self._gathers_nothing(r, buffer)):
            return emit_literal(self.builder, r.fill or zero(buffer.dtype))
        found = None if plain or not picked else self.table_reads.read(r, buffer)
        if found is not None:
            return found
        address, guard = self.places.located(r.coords, buffer, r.fill)
        if address is None:
            return emit_literal(self.builder, r.fill or zero(buffer.dtype))
        varies = self.index.varies(address)
        guarded = guard is not None and self.machine.has_masks
        moved = self.lane_shifts.moved(r, guarded=guarded) if varies and picked else None
        if moved is not None:
            return moved
        if guard is not None:
            return self._guarded(r, buffer, address, guard)
        lane = self.index.lane
        key = (buffer.name, address, lane.key if lane is not None and varies else None)
        found = self.kept(key)
        if found is not None:
            return found
        loaded = self.transposes.across(r, buffer, address) if varies else None
        if loaded is None and varies and picked:
            loaded = self.short_rows.chosen(r, buffer, address)
        if loaded is None:
            loaded = self.memory.load(buffer, address, None, r.fill)
        value = from_memory(self.builder, loaded, buffer.dtype)
        self.keep(key, value)
        return value

    def _nibbles(self, r: Read) -> ir.Value:
        """The number that a read of a buffer in nibbles gives, as i32."""
        buffer = self.buffers[r.value]
        outside = ir.Constant(I32, 0 if r.fill is None else int(r.fill.value))
        if buffer.layout.size == 0 or self._gathers_nothing(r, buffer):
            return outside
        address, guard = self.places.located(r.coords, buffer, r.fill)
        return outside if address is None else self.nibbles.load(buffer, address, guard, r.fill)

    def _looked_up(self, r: Read) -> ir.Value | None:
        """The same as f32, by a table; None where there is none, or an element may not exist."""
        buffer = self.buffers[r.value]
        if buffer.layout.size == 0 or self._gathers_nothing(r, buffer):
            return None
        address, guard = self.places.located(r.coords, buffer, r.fill)
        if address is None or guard is not None:
            return None
        return self.nibbles.looked_up(buffer, address)

    def _guarded(self, r: Read, buffer: Buffer, address: Index, guard: ir.Value) -> ir.Value:
        """The element where the guard holds, else the fill; equal reads share it."""
        lane = self.index.lane
        coords = tuple((d, self.index.resolve(c)) for d, c in r.coords if isinstance(c, Index))
        key = (buffer.name, coords, r.fill, lane.key if lane is not None else None)
        found = self.kept(key) if len(coords) == len(r.coords) else None
        if found is None:
            first = self.places.first(r.coords, buffer, r.fill)
            loaded = self.memory.load(buffer, address, guard, r.fill, first)
            found = from_memory(self.builder, loaded, buffer.dtype)
            if len(coords) == len(r.coords):
                self.keep(key, found)
        return found

    def _gathers_nothing(self, r: Read, buffer: Buffer) -> bool:
        """Whether data choose among no elements at all."""
        if reads_plainly(r):
            return False
        gathered = [d for d, c in r.coords if not isinstance(c, Index)]
        return any(dict(buffer.layout.extents).get(d) == 0 for d in gathered)

    def place(self, r: Read) -> Index | None:
        """The element number of a read at index expressions; None where it may be outside."""
        buffer = self.buffers[r.value]
        if buffer.space is Space.REGISTER:
            return None
        address, guard = self.places.located(r.coords, buffer, r.fill, sure=True)
        if address is None or guard is not None:
            return None
        self.transposes.finish(buffer)
        return address

    def kept(self, key: tuple[object, ...]) -> ir.Value | None:
        """What was made of the memory of the buffer that a key begins with; None if forgotten."""
        return self._loads.get(key[0], {}).get(key)

    def keep(self, key: tuple[object, ...], value: ir.Value) -> None:
        """Keep what was made of a buffer's memory until that may have changed."""
        self._loads.setdefault(key[0], {})[key] = value

    def prefetch(self, s: Prefetch) -> None:
        """Bring a line of memory into a cache; of a vector, that of its first lane."""
        address = self.index.resolve(s.address)
        if self.index.lane is not None:
            address = address.subs({self.index.lane.var: Index.of(self.index.lane.base)})
        buffer = self.buffers[s.buffer]
        if buffer.layout.nibbles:
            buffer, address = self.nibbles.bytes_of(buffer), self.nibbles.place(address).byte
        place = self.memory.place(buffer, address)
        write, locality, data = (ir.Constant(I32, int(x)) for x in (s.write, 4 - s.level, 1))
        arguments = [place, write, locality, data]
        self.builder.call_named("llvm.prefetch.p0", ir.VoidType(), arguments)

    # -- targets --------------------------------------------------------------------------------
    def store(self, target: Access, value: ir.Value) -> None:
        """Put a value into a register or memory, one element or one per lane."""
        buffer = self.buffers[target.buffer]
        if buffer.space is Space.REGISTER:
            self.registers.write(buffer, target.coords, value)
            return
        if not all(isinstance(c, Index) for _, c in target.coords):
            raise InternalError(f"a store to {buffer.name} at a data-dependent place")
        address, _ = self.places.located(target.coords, buffer, None)
        assert address is not None
        if not self.transposes.defer(target, buffer, address, value):
            self.memory.store(buffer, address, value)
        # Buffers do not overlap.
        self._loads.pop(buffer.name, None)
        self.transposes.forget_loads_of(buffer)

    def target(
        self, target: Access, buffer: Buffer
    ) -> tuple[dict[str, Index] | None, ir.Value | None]:
        """The coordinates of a put, and the condition under which there is such an element."""
        return self.places.tested(target.coords, buffer, None, guarded=True)

    def element(self, buffer: Buffer, address: Index) -> ir.Value:
        """The element at an address of memory, or one for each lane; nothing is shared."""
        self.transposes.finish(buffer)
        value = self.memory.load(buffer, address, None, None)
        return from_memory(self.builder, value, buffer.dtype)

    def put(self, buffer: Buffer, address: Index, value: ir.Value) -> None:
        """Put a value at an address of memory, or one for each lane."""
        self.memory.store(buffer, address, value)
        self.forget_loads()
