"""What emitters of reads have in common that keep what they made of a buffer's memory."""

from __future__ import annotations

from collections.abc import Callable

from rutc.emit.index import IndexEmitter
from rutc.emit.llvm import ir
from rutc.emit.loads.load_store import MemoryEmitter


class KeptReads:
    """Emits reads of memory; what was made of it is not made again until it may have changed."""

    def __init__(
        self,
        memory: MemoryEmitter,
        kept: Callable[[tuple[object, ...]], ir.Value | None],
        keep: Callable[[tuple[object, ...], ir.Value], None],
    ) -> None:
        """Load with `memory`; `kept` and `keep` are what is known of each buffer's memory."""
        self.memory = memory
        self.builder = memory.builder
        self.index: IndexEmitter = memory.index
        self.kept = kept
        self.keep = keep
