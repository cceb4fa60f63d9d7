"""Scalar expressions of a kernel as LLVM values: loads, guards, gathers, arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

from llvmlite import ir

from rutc.emit.index import I32, IndexEmitter, Lane, i64, is_vector, splat
from rutc.emit.memory import emit_literal, from_memory, memory_type, to_memory, zero
from rutc.emit.scalar import emit_bit_cast, emit_cast, emit_op, llvm_type
from rutc.emit.transpose import transposable, transposed
from rutc.errors import InternalError
from rutc.tensor_ir.affine import ZERO, Index, Size
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    BitCast,
    Cast,
    Coord,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
    children,
)
from rutc.tensor_ir.kernel import Access, Buffer, Prefetch, Space
from rutc.tensor_ir.machine import Machine

BOOL = ir.IntType(1)
MIN_SHARED = 4
"""Vectors across memory that share loads, below which gathers are no slower."""


@dataclass(frozen=True)
class Square:
    """Vectors across memory that wait to be stored along it, by their distance from `start`.

    They wait for the end of the unrolled `loop`.
    """

    loop: str
    buffer: Buffer
    start: Index
    lane: Lane
    vectors: dict[int, ir.Value]


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
        self.pointer = pointer
        self.register = register
        self.machine = machine
        self.written = written
        self.locals: dict[str, ir.Value] = {}
        self._loads: dict[tuple[object, ...], ir.Value] = {}
        self._squares: dict[object, list[ir.Value]] = {}
        self._deferred: dict[tuple[object, ...], Square] = {}
        self._results: dict[tuple[object, ...], ir.Value] = {}
        self._needs: dict[int, tuple[Expr, frozenset[str] | None]] = {}
        self._fresh = 0
        # Registers that the vector loop at hand writes: every lane has its own.
        self.private: frozenset[str] = frozenset()

    @contextmanager
    def region(self) -> Iterator[None]:
        """A straight-line region of its own: values outside and inside are not shared."""
        outer = self._loads, self._squares, self._results
        self._loads, self._squares, self._results = {}, {}, {}
        yield
        self._loads, self._squares, self._results = outer

    def forget_loads(self) -> None:
        """Memory may have changed: load anew from here on."""
        self._loads.clear()
        self._squares.clear()
        self._results.clear()

    # -- expressions ----------------------------------------------------------------------------
    def emit(self, e: Expr) -> ir.Value:
        """The value of `e`: a scalar where it is the same for all lanes, else a vector."""
        match e:
            case Lit():
                return emit_literal(self.builder, e)
            case IndexValue():
                return self.index.emit(self.index.resolve(e.index))
            case Local():
                return self.locals[e.name]
            case Read():
                return self._read(e)
            case Cast():
                return emit_cast(self.builder, self.emit(e.arg), e.arg.dtype, e.dtype)
            case BitCast():
                return emit_bit_cast(self.builder, self.emit(e.arg), e.arg.dtype, e.dtype)
            case Apply():
                return self._shared(e)
            case _:
                assert_never(e)

    def _shared(self, e: Apply) -> ir.Value:
        """The value of an operation, computed once for equal values of the unrolled loops."""
        names = self._index_names(e)
        if names is None:
            return self._apply(e)
        constants = self.index.constants
        at = tuple((v, constants[v].value) for v in sorted(names) if v in constants)
        lane = self.index.lane
        key = (id(e), at, lane.key if lane is not None else None)
        if key not in self._results:
            self._results[key] = self._apply(e)
        return self._results[key]

    def _index_names(self, e: Expr) -> frozenset[str] | None:
        """The index variables that `e` depends on; None if on more than these and constant memory.

        The table keeps the expression, so that nothing else gets its identity.
        """
        if id(e) in self._needs:
            return self._needs[id(e)][1]
        found: frozenset[str] | None = frozenset()
        match e:
            case IndexValue():
                found = e.index.names()
            case Read():
                buffer = self.buffers[e.value]
                plain = all(isinstance(c, Index) for _, c in e.coords)
                if buffer.space is not Space.MEMORY or buffer.name in self.written or not plain:
                    found = None
                else:
                    found = frozenset(
                        n for _, c in e.coords if isinstance(c, Index) for n in c.names()
                    )
            case Local():
                found = None
            case Lit() | Apply() | Cast() | BitCast():
                parts = [self._index_names(x) for x in children(e)]
                kept = [p for p in parts if p is not None]
                found = frozenset().union(*kept) if len(kept) == len(parts) else None
            case _:
                assert_never(e)
        self._needs[id(e)] = (e, found)
        return found

    def widen(self, value: ir.Value, lanes: int) -> ir.Value:
        """The value with lanes."""
        return value if is_vector(value) else splat(self.builder, value, lanes)

    def _apply(self, e: Apply) -> ir.Value:
        dtype = e.args[-1].dtype
        if e.op == "select":
            decided = self._decided(e.args[0])
            if decided is not None:
                return self.emit(e.args[1] if decided else e.args[2])
        if e.op in ("add", "sub") and dtype in (DType.F32, DType.F64):
            fused = self._multiply_add(e)
            if fused is not None:
                return fused
        return emit_op(
            self.builder,
            e.op,
            self._same_width([self.emit(a) for a in e.args]),
            dtype,
            self.machine.features,
        )

    def _decided(self, condition: Expr) -> bool | None:
        """Whether an index is equal to a literal, where its range at hand tells."""
        match condition:
            case Apply(op="eq", args=(IndexValue(index), Lit(value))):
                bounds = self.index.resolve(index).bounds(self.index.ranges)
            case _:
                return None
        if bounds is None:
            return None
        if bounds[0] == bounds[1]:
            return bounds[0] == value
        return None if bounds[0] <= int(value) <= bounds[1] else False

    def _same_width(self, values: list[ir.Value]) -> list[ir.Value]:
        lanes = max((v.type.count for v in values if is_vector(v)), default=0)
        return [self.widen(v, lanes) for v in values] if lanes else values

    def _multiply_add(self, e: Apply) -> ir.Value | None:
        """x + p*q, p*q + x, x - p*q and p*q - x as one fused operation."""
        a, b = e.args
        if isinstance(b, Apply) and b.op == "mul":
            product, other, first = b, a, False
        elif isinstance(a, Apply) and a.op == "mul":
            product, other, first = a, b, True
        else:
            return None
        p, q, x = self._same_width(
            [self.emit(product.args[0]), self.emit(product.args[1]), self.emit(other)]
        )
        if e.op == "sub":
            if first:
                x = self.builder.fneg(x)
            else:
                p = self.builder.fneg(p)
        name = f"llvm.fma.{_suffix(p.type)}"
        function = self._intrinsic(name, p.type, [p.type] * 3)
        return self.builder.call(function, [p, q, x])

    def _intrinsic(self, name: str, result: ir.Type, args: list[ir.Type]) -> ir.Function:
        module = self.builder.module
        if name in module.globals:
            return module.globals[name]
        return ir.Function(module, ir.FunctionType(result, args), name)

    # -- reads ----------------------------------------------------------------------------------
    def _read(self, r: Read) -> ir.Value:
        buffer = self.buffers[r.value]
        if buffer.space is Space.REGISTER:
            return self._read_register(buffer, r.coords)
        self._store_squares(lambda s: s.buffer is buffer)
        extents = dict(buffer.layout.extents)
        gathered = [d for d, c in r.coords if not isinstance(c, Index)]
        if buffer.layout.size == 0 or any(extents.get(d) == 0 for d in gathered):
            return emit_literal(self.builder, r.fill or zero(buffer.dtype))
        coords, guard = self._coords(r.coords, buffer, r.fill)
        if coords is None:
            return emit_literal(self.builder, r.fill or zero(buffer.dtype))
        address = buffer.layout.address(coords, self.index.ranges)
        varies = self.index.varies(address)
        lane = self.index.lane
        key = None
        if guard is None:
            window = lane.key if lane is not None and varies else None
            key = (buffer.name, address, window)
            if key in self._loads:
                return self._loads[key]
        value = self._across(r, buffer, address) if guard is None and varies else None
        if value is None:
            value = self._load(buffer, address, guard, r.fill)
        value = from_memory(self.builder, value, buffer.dtype)
        if key is not None and "$" not in str(address):
            self._loads[key] = value
        return value

    def _across(self, r: Read, buffer: Buffer, address: Index) -> ir.Value | None:
        """A vector across memory, transposed from loads along it; None where that does not pay.

        It pays where an unrolled loop goes along the memory: its iterations share the loads.
        """
        lane = self.index.lane
        if lane is None or not self._crosses(buffer, address):
            return None
        found = self._along(r.coords, buffer)
        if found is None:
            return None
        v, first, count, start = found
        key = (buffer.name, start, lane.key)
        if key not in self._squares:
            self._squares[key] = self._columns(buffer, start, lane, count)
        return self._squares[key][self.index.constants[v].value - first]

    def _crosses(self, buffer: Buffer, address: Index) -> bool:
        """Whether the lanes lie apart in memory, in whole vectors that can be transposed."""
        lane = self.index.lane
        return (
            lane is not None
            and self.index.varies(address)
            and not self._contiguous(address, lane)
            and address.coefficient(lane.var) is not None
            and not any(
                n in self.index.values and is_vector(self.index.values[n]) for n in address.names()
            )
            and isinstance(lane.mask, ir.Constant | None)
            and transposable(lane.lanes, buffer.dtype.bytes)
        )

    def _along(
        self, place: Sequence[tuple[str, Coord]], buffer: Buffer
    ) -> tuple[str, int, int, Index] | None:
        """The unrolled loop that goes along memory here: (loop, first iteration, number, start).

        The iterations are those that share a square with this one; `start` is the address of the
        first. None where there is no such loop, or too few iterations.
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
            if count < MIN_SHARED:
                return None
            return v, first, count, general.subs({v: Index.of(first)})
        return None

    def _columns(self, buffer: Buffer, start: Index, lane: Lane, count: int) -> list[ir.Value]:
        """Of each lane `count` neighbours from `start`, transposed: one vector per neighbour."""
        vector = ir.VectorType(memory_type(buffer.dtype), lane.lanes)
        rows: list[ir.Value] = []
        for number in range(lane.lanes):
            if _is_idle(lane, number):
                rows.append(ir.Constant(vector, None))
                continue
            place = self._place(buffer, start.subs({lane.var: Index.of(lane.base + number)}))
            if count == lane.lanes:
                rows.append(self.builder.load(place, typ=vector, align=_align(buffer)))
                continue
            active = [number < count for number in range(lane.lanes)]
            mask = ir.Constant(ir.VectorType(BOOL, lane.lanes), active)
            rows.append(self._masked_load(buffer, place, vector, mask, ir.Constant(vector, None)))
        return transposed(self.builder, rows, buffer.dtype.bytes)

    def _coords(
        self, places: tuple[tuple[str, Coord], ...], buffer: Buffer, fill: Lit | None
    ) -> tuple[dict[str, Index] | None, ir.Value | None]:
        """The coordinates of a read as indices, and the condition under which they are inside.

        None for coordinates that are never inside. Without a fill they always are.
        """
        return self._tested(places, buffer, fill, guarded=fill is not None)

    def _tested(
        self,
        places: tuple[tuple[str, Coord], ...],
        buffer: Buffer,
        fill: Lit | None,
        *,
        guarded: bool,
    ) -> tuple[dict[str, Index] | None, ir.Value | None]:
        extents = dict(buffer.layout.extents)
        coords: dict[str, Index] = {}
        guard: ir.Value | None = None
        for d, c in places:
            if isinstance(c, Index):
                index = self.index.resolve(c)
            else:
                index = self._data_index(self.emit(c), extents[d], guarded=guarded)
            coords[d] = index
            if not guarded:
                continue
            low, high = 0, Index.of(extents[d]) - 1
            if fill is not None and buffer.layout.fill == fill:
                low -= buffer.layout.before.get(d, 0)
                high += buffer.layout.after.get(d, 0)
            bounds, last = index.bounds(self.index.ranges), high.bounds(self.index.ranges)
            if bounds is not None and last is not None:
                if low <= bounds[0] and bounds[1] <= last[0]:
                    continue
                if bounds[1] < low or bounds[0] > last[1]:
                    return None, None
            guard = self._and(guard, self._within(index, low, high))
        return coords, guard

    def _data_index(self, value: ir.Value, extent: Size, *, guarded: bool) -> Index:
        """A fresh variable for a data-dependent coordinate, clamped unless a guard tests it."""
        if not guarded:
            value = self._clamp(value, extent)
        self._fresh += 1
        name = f"${self._fresh}"
        self.index.values[name] = value
        if not guarded:
            most = Index.of(extent).bounds(self.index.ranges)
            if most is not None:
                self.index.ranges[name] = (0, max(most[1] - 1, 0))
        return Index.of(name)

    def _clamp(self, value: ir.Value, extent: Size) -> ir.Value:
        b = self.builder
        zero = ir.Constant(value.type, None) if is_vector(value) else i64(0)
        high = self._limit(Index.of(extent) - 1, value)
        value = b.select(b.icmp_signed("<", value, zero), zero, value)
        return b.select(b.icmp_signed(">", value, high), high, value)

    def _limit(self, limit: Index, value: ir.Value) -> ir.Value:
        """A limit to compare `value` with."""
        emitted = self.index.emit(limit)
        return splat(self.builder, emitted, value.type.count) if is_vector(value) else emitted

    def _within(self, index: Index, low: int, high: Index) -> ir.Value:
        ranges = self.index.ranges
        bounds, last = index.bounds(ranges), high.bounds(ranges)
        value = self.index.emit(index)
        condition: ir.Value | None = None
        for op, limit, known in (
            (">=", Index.of(low), bounds is not None and bounds[0] >= low),
            ("<=", high, bounds is not None and last is not None and bounds[1] <= last[0]),
        ):
            if not known:
                test = self.builder.icmp_signed(op, value, self._limit(limit, value))
                condition = test if condition is None else self.builder.and_(condition, test)
        assert condition is not None
        return condition

    def _and(self, a: ir.Value | None, b: ir.Value) -> ir.Value:
        if a is None:
            return b
        p, q = self._same_width([a, b])
        return self.builder.and_(p, q)

    def _load(
        self, buffer: Buffer, address: Index, guard: ir.Value | None, fill: Lit | None
    ) -> ir.Value:
        b = self.builder
        element = memory_type(buffer.dtype)
        lane = self.index.lane
        if not self.index.varies(address):
            if guard is None:
                return b.load(self._place(buffer, address), typ=element, align=_align(buffer))
            return self._guarded_scalar(buffer, address, guard, fill, element)
        assert lane is not None
        lanes = lane.lanes
        vector = ir.VectorType(element, lanes)
        mask = lane.mask
        # Idle lanes compute, too: with defined values, or dividing by them would be undefined.
        other = ir.Constant(vector, None)
        if guard is not None:
            wide = self.widen(guard, lanes)
            mask = wide if mask is None else b.and_(mask, wide)
            other = self._memory_fill(fill, buffer, lanes)
        if self._contiguous(address, lane):
            start = address.subs({lane.var: Index.of(lane.base)})
            place = self._place(buffer, start)
            if mask is None:
                return b.load(place, typ=vector, align=_align(buffer))
            return self._masked_load(buffer, place, vector, mask, other)
        if mask is None:
            mask = ir.Constant(ir.VectorType(BOOL, lanes), [1] * lanes)
        places = self._places(buffer, address, lanes)
        name = f"llvm.masked.gather.{_suffix(vector)}.v{lanes}p0"
        types = [places.type, I32, mask.type, vector]
        function = self._intrinsic(name, vector, types)
        return b.call(function, [places, ir.Constant(I32, _align(buffer)), mask, other])

    def _masked_load(
        self, buffer: Buffer, place: ir.Value, vector: ir.Type, mask: ir.Value, other: ir.Value
    ) -> ir.Value:
        name = f"llvm.masked.load.{_suffix(vector)}.p0"
        types = [ir.PointerType(), I32, mask.type, vector]
        function = self._intrinsic(name, vector, types)
        align = ir.Constant(I32, _align(buffer))
        return self.builder.call(function, [place, align, mask, other])

    def _contiguous(self, address: Index, lane: Lane) -> bool:
        """Whether neighbouring lanes are at neighbouring places."""
        return address.coefficient(lane.var) == 1 and not any(
            n in self.index.values and is_vector(self.index.values[n]) for n in address.names()
        )

    def _guarded_scalar(
        self,
        buffer: Buffer,
        address: Index,
        guard: ir.Value,
        fill: Lit | None,
        element: ir.Type,
    ) -> ir.Value:
        """A load from a place that may not exist: element 0 is loaded instead, and not used."""
        b = self.builder
        lane = self.index.lane
        if is_vector(guard):
            assert lane is not None
            one = b.load(self._place(buffer, ZERO), typ=element, align=_align(buffer))
            bounds, size = address.bounds(self.index.ranges), buffer.layout.size
            inside_always = bounds is not None and bounds[0] >= 0
            if inside_always and bounds is not None and isinstance(size, int) and bounds[1] < size:
                one = b.load(self._place(buffer, address), typ=element, align=_align(buffer))
            else:
                offset = self.index.emit(address)
                inside = b.icmp_unsigned("<", offset, self.index.emit(Index.of(size)))
                safe = b.select(inside, offset, i64(0))
                one = b.load(self._at(buffer, safe), typ=element, align=_align(buffer))
            wide = splat(b, one, lane.lanes)
            return b.select(guard, wide, self._memory_fill(fill, buffer, lane.lanes))
        safe = b.select(guard, self.index.emit(address), i64(0))
        value = b.load(self._at(buffer, safe), typ=element, align=_align(buffer))
        return b.select(guard, value, self._memory_fill(fill, buffer, 0))

    def _memory_fill(self, fill: Lit | None, buffer: Buffer, lanes: int) -> ir.Value:
        if fill is None:
            raise InternalError(f"a guarded read of {buffer.name} has no fill")
        value = to_memory(self.builder, emit_literal(self.builder, fill), buffer.dtype)
        return self.widen(value, lanes) if lanes else value

    def _place(self, buffer: Buffer, address: Index) -> ir.Value:
        """The address of one element; the constant part last, so that places share the rest."""
        element = memory_type(buffer.dtype)
        base = self.pointer(buffer)
        varying = Index(address.terms, 0)
        if varying.terms:
            base = self.builder.gep(
                base, [self.index.emit(varying)], source_etype=element, inbounds=False
            )
        if address.const:
            base = self.builder.gep(base, [i64(address.const)], source_etype=element)
        return base

    def _at(self, buffer: Buffer, offset: ir.Value) -> ir.Value:
        element = memory_type(buffer.dtype)
        return self.builder.gep(self.pointer(buffer), [offset], source_etype=element)

    def _places(self, buffer: Buffer, address: Index, lanes: int) -> ir.Value:
        offsets = self.widen(self.index.emit(address), lanes)
        element = memory_type(buffer.dtype)
        base = splat(self.builder, self.pointer(buffer), lanes)
        return self.builder.gep(base, [offsets], source_etype=element)

    def prefetch(self, s: Prefetch) -> None:
        """Bring a line of memory into a cache; of a vector, that of its first lane."""
        address = self.index.resolve(s.address)
        if self.index.lane is not None:
            address = address.subs({self.index.lane.var: Index.of(self.index.lane.base)})
        place = self._place(self.buffers[s.buffer], address)
        types = [ir.PointerType(), I32, I32, I32]
        function = self._intrinsic("llvm.prefetch.p0", ir.VoidType(), types)
        read, locality, data = (ir.Constant(I32, x) for x in (0, 4 - s.level, 1))
        self.builder.call(function, [place, read, locality, data])

    # -- targets --------------------------------------------------------------------------------
    def store(self, target: Access, value: ir.Value) -> None:
        """Put a value into a register or memory, one element or one per lane."""
        buffer = self.buffers[target.buffer]
        lane = self.index.lane
        if buffer.space is Space.REGISTER:
            key, varies = self._register_key(buffer, target.coords)
            if varies and lane is not None:
                value = self.widen(value, lane.lanes)
            self.builder.store(value, self.register(buffer, key, value.type))
            return
        coords: dict[str, Index] = {}
        for d, c in target.coords:
            if not isinstance(c, Index):
                raise InternalError(f"a store to {buffer.name} at a data-dependent place")
            coords[d] = self.index.resolve(c)
        address = buffer.layout.address(coords, self.index.ranges)
        if not self._defer(target, buffer, address, value):
            self._store_memory(buffer, address, value)
        # Buffers do not overlap.
        self._loads = {k: v for k, v in self._loads.items() if k[0] != buffer.name}
        self._squares.clear()

    def target(
        self, target: Access, buffer: Buffer
    ) -> tuple[dict[str, Index] | None, ir.Value | None]:
        """The coordinates of a put, and the condition under which there is such an element."""
        return self._tested(target.coords, buffer, None, guarded=True)

    def element(self, buffer: Buffer, address: Index) -> ir.Value:
        """The element at an address of memory, or one for each lane; nothing is shared."""
        self._store_squares(lambda s: s.buffer is buffer)
        value = self._load(buffer, address, None, None)
        return from_memory(self.builder, value, buffer.dtype)

    def put(self, buffer: Buffer, address: Index, value: ir.Value) -> None:
        """Put a value at an address of memory, or one for each lane."""
        self._store_memory(buffer, address, value)
        self.forget_loads()

    def _defer(self, target: Access, buffer: Buffer, address: Index, value: ir.Value) -> bool:
        """Keep a vector that lies across memory until its unrolled neighbours are there, too.

        They are then transposed and stored along memory. Only straight-line code is deferred: it
        ends with the unrolled loop, in `store_deferred`.
        """
        lane = self.index.lane
        if lane is None or not self._crosses(buffer, address):
            return False
        found = self._along([(d, c) for d, c in target.coords], buffer)
        if found is None:
            return False
        v, first, _, start = found
        if self.index.unrolled[v].block is not self.builder.block:
            return False
        key = (buffer.name, start, lane.key)
        square = self._deferred.setdefault(key, Square(v, buffer, start, lane, {}))
        at = self.index.constants[v].value - first
        square.vectors[at] = self.widen(to_memory(self.builder, value, buffer.dtype), lane.lanes)
        return True

    def store_deferred(self, var: str) -> None:
        """Store what waits for the end of the unrolled loop over `var`."""
        self._store_squares(lambda s: s.loop == var)

    def _store_squares(self, chosen: Callable[[Square], bool]) -> None:
        for key in [k for k, s in self._deferred.items() if chosen(s)]:
            s = self._deferred.pop(key)
            lanes = s.lane.lanes
            vector = ir.VectorType(memory_type(s.buffer.dtype), lanes)
            idle = ir.Constant(vector, ir.Undefined)
            vectors = [s.vectors.get(i, idle) for i in range(lanes)]
            rows = transposed(self.builder, vectors, s.buffer.dtype.bytes)
            mask = ir.Constant(ir.VectorType(BOOL, lanes), [i in s.vectors for i in range(lanes)])
            for number, row in enumerate(rows):
                if _is_idle(s.lane, number):
                    continue
                at = s.start.subs({s.lane.var: Index.of(s.lane.base + number)})
                place = self._place(s.buffer, at)
                if len(s.vectors) == lanes:
                    self.builder.store(row, place, align=_align(s.buffer))
                else:
                    self._masked_store(s.buffer, row, place, mask)

    def _masked_store(
        self, buffer: Buffer, value: ir.Value, place: ir.Value, mask: ir.Value
    ) -> None:
        name = f"llvm.masked.store.{_suffix(value.type)}.p0"
        types = [value.type, ir.PointerType(), I32, mask.type]
        function = self._intrinsic(name, ir.VoidType(), types)
        self.builder.call(function, [value, place, ir.Constant(I32, _align(buffer)), mask])

    def _store_memory(self, buffer: Buffer, address: Index, value: ir.Value) -> None:
        b = self.builder
        lane = self.index.lane
        value = to_memory(b, value, buffer.dtype)
        if lane is None or not self.index.varies(address):
            if is_vector(value):
                raise InternalError(f"a vector stored to one element of {buffer.name}")
            b.store(value, self._place(buffer, address), align=_align(buffer))
            return
        value = self.widen(value, lane.lanes)
        if self._contiguous(address, lane):
            start = address.subs({lane.var: Index.of(lane.base)})
            place = self._place(buffer, start)
            if lane.mask is None:
                b.store(value, place, align=_align(buffer))
                return
            if lane.end == Index.of(lane.base + 1):
                # LLVM 22 widens a truncated lane that is stored alone under AVX-512.
                first = b.extract_element(value, ir.Constant(I32, 0))
                b.store(first, place, align=_align(buffer))
                return
            self._masked_store(buffer, value, place, lane.mask)
            return
        places = self._places(buffer, address, lane.lanes)
        mask = lane.mask
        if mask is None:
            mask = ir.Constant(ir.VectorType(BOOL, lane.lanes), [1] * lane.lanes)
        name = f"llvm.masked.scatter.{_suffix(value.type)}.v{lane.lanes}p0"
        types = [value.type, places.type, I32, mask.type]
        function = self._intrinsic(name, ir.VoidType(), types)
        b.call(function, [value, places, ir.Constant(I32, _align(buffer)), mask])

    def _read_register(self, buffer: Buffer, coords: tuple[tuple[str, object], ...]) -> ir.Value:
        key, varies = self._register_key(buffer, coords)
        lane = self.index.lane
        type_ = llvm_type(buffer.dtype)
        if varies and lane is not None:
            type_ = ir.VectorType(type_, lane.lanes)
        return self.builder.load(self.register(buffer, key, type_), typ=type_)

    def _register_key(
        self, buffer: Buffer, coords: tuple[tuple[str, object], ...]
    ) -> tuple[tuple[object, ...], bool]:
        """The register's number, and whether it has one element per lane."""
        lane = self.index.lane
        key: list[object] = []
        varies = lane is not None and buffer.name in self.private
        for _, c in coords:
            if not isinstance(c, Index):
                raise InternalError("a register at a data-dependent place")
            index = self.index.resolve(c)
            if lane is not None and lane.var in index.names():
                varies = True
                index = index.subs({lane.var: Index.of(lane.base)})
            key.append(index.value)
        return tuple(key), varies


def _is_idle(lane: Lane, number: int) -> bool:
    """Whether a lane whose mask is constant is no iteration."""
    return lane.mask is not None and not lane.mask.constant[number].constant


def _align(buffer: Buffer) -> int:
    return buffer.dtype.bytes


def _suffix(type_: ir.Type) -> str:
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{_suffix(type_.element)}"
    names = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}
    return names.get(str(type_), str(type_))
