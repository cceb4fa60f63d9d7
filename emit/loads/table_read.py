"""Reads of neighbours at places that a gradual table gives: one load, and lanes put in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rutc.emit.index import Lane
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, i64, splat
from rutc.emit.loads.kept_reads import KeptReads
from rutc.emit.loads.load_store import MemoryEmitter
from rutc.emit.loads.permute import permuted
from rutc.tensor_ir.expr import Expr, Read
from rutc.tensor_ir.facts.gradual import table_along
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Buffer


class TableReads(KeptReads):
    """v[t[x]]  ->  a vector of v from t[x] on, of which lane i takes element t[x + i] - t[x].

    Where `t` grows by 0 or 1, that one is among as many elements as there are lanes.
    """

    def __init__(
        self,
        memory: MemoryEmitter,
        buffers: Mapping[str, Buffer],
        emit: Callable[[Expr], ir.Value],
        kept: Callable[[tuple[object, ...]], ir.Value | None],
        keep: Callable[[tuple[object, ...], ir.Value], None],
    ) -> None:
        """Read what `memory` loads; `emit` gives the value of a read of a table."""
        super().__init__(memory, kept, keep)
        self.buffers = buffers
        self.emit = emit

    def read(self, r: Read, buffer: Buffer) -> ir.Value | None:
        """The elements of all lanes; None where they are to be loaded one by one."""
        lane, machine = self.index.lane, self.memory.machine
        if lane is None or lane.lanes != machine.width or not machine.permutes(buffer.dtype):
            return None
        found = table_along(r, self.buffers, lane.var)
        if found is None:
            return None
        d, table = found
        size = Index.of(dict(buffer.layout.extents)[d]).value
        last = max(size - lane.lanes, 0)
        start = self._start(table, lane, last)
        name = f"$from {start.ref}"
        self.index.define(name, start)
        self.index.ranges[name] = (0, last)
        coords = {e: self.index.resolve(c) for e, c in r.coords if isinstance(c, Index)}
        address = buffer.layout.address(coords | {d: Index.of(name)}, self.index.ranges)
        vector = ir.VectorType(ir.FloatType(), lane.lanes)
        loaded = self.memory.some(buffer, address, size, vector)
        return permuted(self.memory, [loaded], self._picks(table, lane, start))

    def _start(self, table: Read, lane: Lane, last: int) -> ir.Value:
        """From where on elements are loaded: the first lane's, or so many before the end."""
        key = table.value, "start", self._at(table), lane.key, last
        start = self.kept(key)
        if start is None:
            b = self.builder
            self.index.lane = None
            with self.index.constant(lane.var, lane.base):
                start = self.emit(table)
            self.index.lane = lane
            start = b.select(b.icmp_signed("<", start, i64(last)), start, i64(last))
            self.keep(key, start)
        return start

    def _picks(self, table: Read, lane: Lane, start: ir.Value) -> ir.Value:
        """How far each lane's element is from the first that is loaded."""
        key = table.value, "picks", self._at(table), lane.key, start.ref
        picks = self.kept(key)
        if picks is None:
            b = self.builder
            apart = b.sub(self.emit(table), splat(b, start, lane.lanes))
            picks = b.trunc(apart, ir.VectorType(I32, lane.lanes))
            self.keep(key, picks)
        return picks

    def _at(self, table: Read) -> tuple[Index, ...]:
        return tuple(self.index.resolve(c) for _, c in table.coords if isinstance(c, Index))
