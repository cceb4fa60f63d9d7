"""Reads of constants in nibbles: two elements of 4 bits share a byte, which few operations part.

    bytes  b0 b1 .. b7                                one load, widened to lanes of 32 bits once
    lower halves   b0 & 15 ..                         elements 0, 2, ..: a lane for each byte
    upper halves   b0 >> 4 ..                         elements 1, 3, ..
    both           b0 & 15, b0 >> 4, b1 & 15, ..      neighbours

The first two are what a vector across pairs reads, which packed operands of products have. Real
numbers are looked up by what is in the lower bits, where an instruction does that.
"""

from __future__ import annotations

from rutc.base.record import record
from rutc.emit.cast import splat_int
from rutc.emit.index import Lane
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, is_vector, splat
from rutc.emit.loads.kept_reads import KeptReads
from rutc.emit.loads.permute import permuted
from rutc.errors import InternalError
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Lit
from rutc.tensor_ir.indices.affine import ONE, ZERO, Index, floordiv, mod
from rutc.tensor_ir.kernel import Buffer
from rutc.tensor_ir.layout import Axis, Layout

I8 = ir.IntType(8)
HALF = 4
"""The bits of an element."""


@record
class Place:
    """The byte that an element shares, and whether it has the upper half: constant, or 0 or 1."""

    byte: Index
    upper: Index


class NibbleEmitter(KeptReads):
    """Loads elements of buffers in nibbles, one or one for each lane."""

    def load(
        self, buffer: Buffer, address: Index, guard: ir.Value | None, fill: Lit | None
    ) -> ir.Value:
        """The number at an address, or one per lane, as i32; `fill` where `guard` does not hold."""
        lane = self.index.lane
        varies = lane is not None and self.index.varies(address)
        key = (buffer.name, "number", address, lane.key if lane is not None and varies else None)
        if guard is None:
            number = self.kept(key)
            if number is None:
                number = self._number(buffer, address)
                self.keep(key, number)
            return number
        if fill is None:
            raise InternalError(f"a guarded read of {buffer.name} has no fill")
        number = self._part(buffer, self.place(address), guard)
        other: ir.Value = ir.Constant(I32, int(fill.value))
        return self.builder.select(*self._same_lanes(guard, number, other))

    def looked_up(self, buffer: Buffer, address: Index) -> ir.Value | None:
        """The numbers of all lanes as f32; None without an instruction that looks them up.

        One takes one of 16 floats by the lowest 4 bits of each lane, whatever the others are.
        """
        lane, machine = self.index.lane, self.memory.machine
        table = ir.VectorType(ir.FloatType(), 1 << HALF)
        if lane is None or not self.index.varies(address) or lane.lanes != table.count:
            return None
        if machine.width != table.count or not machine.permutes(DType.F32):
            return None
        key = (buffer.name, "looked up", address, lane.key)
        found = self.kept(key)
        if found is None:
            picks = self._picks(buffer, address, lane)
            low = -(table.count // 2) if buffer.dtype.is_signed else 0
            # Patterns of 4 bits, in order: of signed numbers, those from 0 on come first.
            numbers = [float((i - low) % table.count + low) for i in range(table.count)]
            found = permuted(self.memory, [ir.Constant(table, numbers)], picks)
            self.keep(key, found)
        return found

    def _picks(self, buffer: Buffer, address: Index, lane: Lane) -> ir.Value:
        """Lanes whose lowest bits are the elements."""
        if self.memory.contiguous(address, lane):
            pairs = self._neighbours(buffer, address, lane)
            if pairs is not None:
                return self.builder.zext(pairs, ir.VectorType(I32, lane.lanes))
        at = self.place(address)
        return self.memory.widen(self._lowest(self._shared(buffer, at), at.upper), lane.lanes)

    def place(self, address: Index) -> Place:
        """Where an element is; the upper half is told by what of an address may be odd."""
        even = Index(tuple((m, c // 2) for m, c in address.terms if c % 2 == 0), address.const // 2)
        rest = Index(tuple(t for t in address.terms if t[1] % 2), address.const % 2)
        bounds = rest.bounds(self.index.ranges)
        if bounds is not None and bounds[0] >= 0 and bounds[1] <= 1:
            return Place(even, rest)
        two, ranges = Index.of(2), self.index.ranges
        return Place(even + floordiv(rest, two, ranges), mod(rest, two, ranges))

    def bytes_of(self, buffer: Buffer) -> Buffer:
        """The buffer of the bytes."""
        return Buffer(buffer.name, DType.U8, Layout((Axis("byte", buffer.bytes, 1),)))

    def _number(self, buffer: Buffer, address: Index) -> ir.Value:
        lane = self.index.lane
        if lane is not None and self.memory.contiguous(address, lane):
            pairs = self._neighbours(buffer, address, lane)
            if pairs is not None:
                wide = self.builder.zext(pairs, ir.VectorType(I32, lane.lanes))
                return self._low(wide, buffer.dtype)
        at = self.place(address)
        return self._half(self._shared(buffer, at), at.upper, buffer.dtype)

    def _shared(self, buffer: Buffer, at: Place) -> ir.Value:
        """Bytes as i32, of which both halves may be wanted."""
        lane = self.index.lane
        lanes = lane.key if lane is not None and self.index.varies(at.byte) else None
        key = buffer.name, "bytes", at.byte, lanes
        byte = self.kept(key)
        if byte is None:
            byte = self._bytes(buffer, at, None)
            self.keep(key, byte)
        return byte

    def _part(self, buffer: Buffer, at: Place, guard: ir.Value) -> ir.Value:
        """The number at a place that may not exist."""
        return self._half(self._bytes(buffer, at, guard), at.upper, buffer.dtype)

    def _bytes(self, buffer: Buffer, at: Place, guard: ir.Value | None) -> ir.Value:
        """Bytes as i32."""
        none = Lit(0, DType.U8)
        byte = self.memory.load(self.bytes_of(buffer), at.byte, guard, none)
        kind = ir.VectorType(I32, byte.lanes) if is_vector(byte) else I32
        widen = self.builder.sext if buffer.dtype.is_signed else self.builder.zext
        return widen(byte, kind)

    def _half(self, byte: ir.Value, upper: Index, dtype: DType) -> ir.Value:
        """The number of one half of each byte."""
        b = self.builder
        if upper == ONE:
            down = b.ashr if dtype.is_signed else b.lshr
            return down(byte, splat_int(byte.type, HALF))
        return self._low(self._lowest(byte, upper), dtype)

    def _lowest(self, byte: ir.Value, upper: Index) -> ir.Value:
        """Bytes whose lowest bits are one half of each, whatever the others are."""
        if upper == ZERO:
            return byte
        shift = self.index.emit(upper * HALF)
        kind = ir.VectorType(I32, shift.lanes) if is_vector(shift) else I32
        return self.builder.lshr(*self._same_lanes(byte, self.builder.trunc(shift, kind)))

    def _same_lanes(self, *values: ir.Value) -> list[ir.Value]:
        """Values with lanes if one of them has."""
        lanes = max((v.lanes for v in values if is_vector(v)), default=0)
        return [self.memory.widen(v, lanes) if lanes else v for v in values]

    def _neighbours(self, buffer: Buffer, address: Index, lane: Lane) -> ir.Value | None:
        """The patterns of neighbouring lanes; None unless they begin at a byte that is known."""
        first = address.subs({lane.var: Index.of(lane.base)})
        at, whole = self.place(first), self.bytes_of(buffer)
        if at.upper != ZERO or lane.lanes % 2 or self.index.varies(first):
            return None
        half = lane.lanes // 2
        if lane.mask is not None and not self.memory.is_inside(whole, at.byte, half):
            return None
        b = self.builder
        place = self.memory.place(whole, at.byte)
        if half == 1:
            loaded = splat(b, b.load(place, type_=I8, align=1), 1)
        else:
            loaded = b.load(place, type_=ir.VectorType(I8, half), align=1)
        upper = b.lshr(loaded, splat_int(loaded.type, HALF))
        order = [i // 2 + half * (i % 2) for i in range(lane.lanes)]
        return b.shuffled(loaded, order, upper)

    def _low(self, value: ir.Value, dtype: DType) -> ir.Value:
        """The number of the lowest bits."""
        b = self.builder
        if not dtype.is_signed:
            return b.and_(value, splat_int(value.type, (1 << HALF) - 1))
        spare = splat_int(value.type, 32 - HALF)
        return b.ashr(b.shl(value, spare), spare)
