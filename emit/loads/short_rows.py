"""Elements of a short row of memory that data choose: lanes of registers, not loads of their own.

    x[n, at[i]]   ->   low = x[n, 0..15]; high = x[n, 16..19]; lane i is one of both, by at[i]

A gather takes a load for every lane, a permutation of a register, or of two, one operation. Bytes
are also picked 16 by 16.
"""

from __future__ import annotations

from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, splat
from rutc.emit.loads.kept_reads import KeptReads
from rutc.emit.loads.permute import HALF, permuted, shuffled_bytes
from rutc.emit.loads.storage import I8, memory_type
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Buffer
from rutc.tensor_ir.machine import SHUFFLED_BYTES


class ShortRowEmitter(KeptReads):
    """Reads of short rows at places that differ by lane, where there are the instructions."""

    def chosen(self, r: Read, buffer: Buffer, address: Index) -> ir.Value | None:
        """The element that a read gives each lane; None where no short row has all of them."""
        lane, machine = self.index.lane, self.memory.machine
        if lane is None or not machine.picks(buffer.dtype.bytes, 1, lane.lanes):
            return None
        if not self._chosen_alone(r, buffer):
            return None
        begin = self.memory.alike(address)
        place = address - begin
        bounds = place.bounds(self.index.ranges)
        if any(Index(((m, 1),)).as_var is None for m, _ in place.terms):
            return None
        if bounds is None or bounds[0] < 0:
            return None
        bytes_ = buffer.dtype.bytes
        if not machine.picks(bytes_, bounds[1] + 1, lane.lanes):
            return None
        b, lanes = self.builder, machine.vector_bits // 8 // bytes_
        # The last of these places is one that data may choose, so the row goes on up to there.
        number = I8 if bytes_ == 1 else I32
        picks = b.trunc(self.index.emit(place), ir.VectorType(number, lane.lanes))
        if lane.lanes < lanes:
            picks = b.shuffled(picks, [*range(lane.lanes), *[0] * (lanes - lane.lanes)])
        each = machine.permutes_at_once(bytes_)
        if each:
            row = self._row(buffer, begin, bounds[1] + 1, lanes)
            found = self._permuted(row, picks, number, each)
        else:
            steps = self._steps(buffer, begin, bounds[1] + 1, lanes)
            found = shuffled_bytes(self.memory, steps, picks)
        if lane.lanes < lanes:
            found = b.part(found, 0, lane.lanes)
        return b.bitcast(found, ir.VectorType(memory_type(buffer.dtype), lane.lanes))

    def _chosen_alone(self, r: Read, buffer: Buffer) -> bool:
        """Whether lanes differ by what data choose alone, of a number that is known."""
        extents = dict(buffer.layout.extents)
        return all(
            not self.index.varies(self.index.resolve(c))
            if isinstance(c, Index)
            else isinstance(extents[d], int)
            for d, c in r.coords
        )

    def _permuted(
        self, row: list[ir.Value], picks: ir.Value, number: ir.Type, each: int
    ) -> ir.Value:
        """The elements that `picks` number of vectors, so many of which are permuted at once."""
        b, lanes = self.builder, picks.lanes
        found = permuted(self.memory, row[:each], picks)
        for k in range(each, len(row), each):
            last = splat(b, ir.Constant(number, k * lanes - 1), lanes)
            beyond = b.icmp_unsigned(">", picks, last)
            found = b.select(beyond, permuted(self.memory, row[k : k + each], picks), found)
        return found

    def _row(self, buffer: Buffer, begin: Index, count: int, lanes: int) -> list[ir.Value]:
        """The elements from an address on, in vectors of so many."""
        vector = ir.VectorType(I8 if buffer.dtype.bytes == 1 else ir.FloatType(), lanes)
        return [
            self._part(buffer, begin + first, min(count - first, lanes), vector)
            for first in range(0, count, lanes)
        ]

    def _steps(self, buffer: Buffer, begin: Index, count: int, lanes: int) -> list[ir.Value]:
        """The bytes from an address on for `shuffled_bytes`."""
        key = (buffer.name, "steps of short row", begin, count)
        found: list[ir.Value] = []
        before: ir.Value | None = None
        for i, part in enumerate(self._row(buffer, begin, count, SHUFFLED_BYTES)):
            step = self.kept((*key, i))
            if step is None:
                step = part if before is None or i == HALF else self.builder.xor(part, before)
                order = [k % SHUFFLED_BYTES for k in range(lanes)]
                step = self.builder.shuffled(step, order)
                self.keep((*key, i), step)
            found.append(step)
            before = part
        return found

    def _part(self, buffer: Buffer, begin: Index, count: int, vector: ir.VectorType) -> ir.Value:
        key = (buffer.name, "short row", begin, count)
        found = self.kept(key)
        if found is None:
            found = self.memory.some(buffer, begin, count, vector)
            self.keep(key, found)
        return found
