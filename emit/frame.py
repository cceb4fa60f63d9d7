"""Where a kernel's buffers and registers are: its arguments, its stack, its thread's scratch."""

from __future__ import annotations

from contextlib import ExitStack

from rutc.emit.index import IndexEmitter
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I64, i64
from rutc.emit.loads.storage import memory_type
from rutc.errors import InternalError
from rutc.tensor_ir.indices.affine import ZERO, Index, Size, plain
from rutc.tensor_ir.kernel import Buffer, Kernel, Space

MOST_STACK_BYTES = 32 << 10
"""What all of a kernel's buffers on the stack take together: further ones lie in the scratch that
the host gives each thread. With the registers that a kernel keeps there, and what the host calls on
the way, it stays below `RUTC_STACK_BYTES` (rutc_abi.h), which callers of a model go by."""
MOST_KNOWN_BYTES = 16 << 20
"""Buffers that may be larger have the size that a run needs: most are far smaller than they may be.

More is most cores' share of a third cache."""
STACK_ALIGNMENT = 64
"""Where buffers on the stack and in a thread's scratch begin; they have whole lines."""


class Frame:
    """The stack frame of a kernel's function, and what lies elsewhere."""

    def __init__(
        self,
        function: ir.Function,
        entry: ir.Block,
        kernel: Kernel,
    ) -> None:
        """The buffers of `kernel`, of which the function's arguments are the first.

        Slots are made in the block `entry`.
        """
        self.function = function
        self.entry = entry
        self.kernel = kernel
        self.symbols = function.args[len(kernel.args)]
        self.scratch = scratch_bytes(kernel)
        self.pointers: dict[str, ir.Value] = {
            b.name: a for b, a in zip(kernel.args, function.args, strict=False)
        }
        self.slots: dict[tuple[object, ...], ir.Value] = {}

    def pointer(self, buffer: Buffer) -> ir.Value:
        """The address of a memory or stack buffer's first element."""
        if buffer.name not in self.pointers:
            if buffer.name in self.scratch:
                self.pointers[buffer.name] = self._scratch_pointer(buffer)
                return self.pointers[buffer.name]
            # Of the whole kernel: the code at hand may be of a branch that tells more of sizes.
            most = buffer.most_elements(dict(self.kernel.symbols))
            if most is None:
                raise InternalError(f"%{buffer.name} on the stack has no bound")
            type_ = ir.ArrayType(memory_type(buffer.dtype), room(buffer, max(most, 1)))
            slot = ir.IRBuilder(self.entry).alloca(type_, align=STACK_ALIGNMENT)
            self.pointers[buffer.name] = slot
        return self.pointers[buffer.name]

    def _scratch_pointer(self, buffer: Buffer) -> ir.Value:
        """The address of a buffer in the thread's scratch, which follows the symbols."""
        b = ir.IRBuilder(self.entry)
        place = b.gep(self.symbols, [i64(len(self.kernel.symbols))], type_=I64, inbounds=True)
        base = b.inttoptr(b.load(place, type_=I64), ir.PointerType())
        names = list(self.scratch)
        before = [self.scratch[n] for n in names[: names.index(buffer.name)]]
        offset = self._size(sum(map(Index.of, before), ZERO))
        return b.gep(base, [offset], type_=ir.IntType(8), inbounds=True)

    def _size(self, size: Index) -> ir.Value:
        """What a size is, of the symbols that the function is told."""
        if size.is_const:
            return i64(size.const)
        b = ir.IRBuilder(self.entry)
        index = IndexEmitter(b, hide_divisions=False)
        with ExitStack() as stack:
            for number, (name, bounds) in enumerate(self.kernel.symbols):
                if name in size.names():
                    place = b.gep(self.symbols, [i64(number)], type_=I64, inbounds=True)
                    value = b.load(place, type_=I64)
                    stack.enter_context(index.counter(name, value, bounds))
            return index.emit(size)

    def register(self, buffer: Buffer, key: tuple[object, ...], type_: ir.Type) -> ir.Value:
        """The stack slot of one register."""
        full = buffer.name, key, type_
        if full not in self.slots:
            self.slots[full] = ir.IRBuilder(self.entry).alloca(type_)
        return self.slots[full]


def room(buffer: Buffer, elements: int) -> int:
    """The elements that there is room for in the lines of a local buffer of so many."""
    line = STACK_ALIGNMENT // buffer.dtype.bytes
    return -(-elements // line) * line


def scratch_bytes(kernel: Kernel) -> dict[str, Size]:
    """The stack buffers that a thread's stack has no room for: their bytes, in whole lines.

    Those of which a run tells the size are the last ones.
    """
    symbols = dict(kernel.symbols)
    left = MOST_STACK_BYTES
    known: dict[str, Size] = {}
    told: dict[str, Size] = {}
    for b in kernel.locals:
        size, elements = Index.of(b.layout.size) * b.dtype.bytes, b.most_elements(symbols)
        if b.space is not Space.STACK or elements is None:
            continue
        most = -(-elements * b.dtype.bytes // STACK_ALIGNMENT) * STACK_ALIGNMENT
        if most <= left:
            left -= most
        elif most <= MOST_KNOWN_BYTES or size.is_const:
            known[b.name] = most
        else:
            told[b.name] = plain(
                (size + (STACK_ALIGNMENT - 1)) // STACK_ALIGNMENT * STACK_ALIGNMENT
            )
    return {**known, **told}


def thread_bytes(kernel: Kernel) -> Size:
    """What a kernel needs of a thread's scratch."""
    return plain(sum(map(Index.of, scratch_bytes(kernel).values()), ZERO))
