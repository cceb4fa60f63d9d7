"""Registers of a kernel: one stack slot each, read and written once in a block at most."""

from __future__ import annotations

from collections.abc import Callable

from rutc.emit.llvm import ir
from rutc.emit.loads.load_store import MemoryEmitter
from rutc.emit.scalar import llvm_type
from rutc.emit.site import Sites
from rutc.errors import InternalError
from rutc.tensor_ir.expr import Coord
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Buffer


class RegisterEmitter:
    """Reads and writes registers, of which each block keeps what they hold."""

    def __init__(
        self,
        memory: MemoryEmitter,
        sites: Sites,
        slot: Callable[[Buffer, tuple[object, ...], ir.Type], ir.Value],
    ) -> None:
        """Registers that are read and written beside memory; `slot` gives them their place."""
        self.memory = memory
        self.builder = memory.builder
        self.index = memory.index
        self.sites = sites
        self.slot = slot
        self.private: frozenset[str] = frozenset()
        """Registers that the vector loop at hand writes: every lane has its own."""
        self._held: dict[ir.Block, dict[ir.Value, ir.Value]] = {}
        """What the registers of a block hold that it has read or written, by their stack slots."""

    def read(self, buffer: Buffer, coords: tuple[tuple[str, Coord], ...]) -> ir.Value:
        """What a register holds, one element or one per lane."""
        key, varies = self._key(buffer, coords)
        lane = self.index.lane
        type_ = llvm_type(buffer.dtype)
        if varies and lane is not None:
            type_ = ir.VectorType(type_, lane.lanes)
        slot = self.slot(buffer, key, type_)
        held = self._held.setdefault(self.builder.block, {})
        if slot not in held:
            held[slot] = self.builder.load(slot, type_=type_)
        return held[slot]

    def write(self, buffer: Buffer, coords: tuple[tuple[str, Coord], ...], value: ir.Value) -> None:
        """Put a value into a register, one element or one per lane."""
        key, varies = self._key(buffer, coords)
        lane = self.index.lane
        if varies and lane is not None:
            value = self.memory.widen(value, lane.lanes)
        slot = self.slot(buffer, key, value.type)
        self._held.setdefault(self.builder.block, {})[slot] = value

    def store(self) -> None:
        """Put what the registers hold at the end of each block there, once all blocks have ends."""
        for block, held in self._held.items():
            self.builder.position_at_end(block)
            for slot, value in held.items():
                if not (
                    isinstance(value, ir.Instruction)
                    and value.op == "load"
                    and value.operands == (slot,)
                ):
                    self.builder.store(value, slot)

    def _key(
        self, buffer: Buffer, coords: tuple[tuple[str, Coord], ...]
    ) -> tuple[tuple[object, ...], bool]:
        """The register's number, and whether it has one element per lane."""
        site = self.sites.at(coords, buffer, None)
        if site.names is None:
            raise InternalError("a register at a data-dependent place")
        lane = self.index.lane
        at = (self.index.at(site.names), lane.key if lane is not None else None)
        found = site.registers.get(at)
        if found is None:
            found = site.registers[at] = self._found(coords)
        key, varies = found
        return key, varies or (lane is not None and buffer.name in self.private)

    def _found(self, coords: tuple[tuple[str, Coord], ...]) -> tuple[tuple[object, ...], bool]:
        """The register's number, and whether it differs between the lanes."""
        lane = self.index.lane
        key: list[object] = []
        varies = False
        for _, c in coords:
            assert isinstance(c, Index)
            index = self.index.resolve(c)
            if lane is not None and lane.var in index.names():
                varies = True
                index = index.subs({lane.var: Index.of(lane.base)})
            key.append(index.value)
        return tuple(key), varies
