"""Kernels and elementwise functions compiled into this process, which tests and benchmarks run."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rutc.emit.cast import llvm_type
from rutc.emit.kernel import ENTRY as ENTRY_OF_KERNELS
from rutc.emit.kernel import emit_kernel
from rutc.emit.linking.elf import HUGE_PAGE_BYTES
from rutc.emit.llvm import ir
from rutc.emit.llvm.jit import Code
from rutc.emit.loads.storage import from_memory, memory_type, to_memory
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine

ENTRY = "elementwise"
I64 = ir.IntType(64)
REPEAT = "rutc_repeat"
LOOP = f"""
define void @{REPEAT}(ptr %kernel, ptr %calls, i64 %sets, i64 %first, i64 %count, i64 %tasks) {{
entry:
  br label %loop
loop:
  %left = phi i64 [ %count, %entry ], [ %less, %loop ]
  %i = phi i64 [ %first, %entry ], [ %next, %loop ]
  %call = getelementptr [2 x ptr], ptr %calls, i64 %i
  %pointers = load ptr, ptr %call
  %second = getelementptr ptr, ptr %call, i64 1
  %words = load ptr, ptr %second
  call void %kernel(ptr %pointers, ptr %words, i64 0, i64 %tasks)
  %j = add i64 %i, 1
  %last = icmp eq i64 %j, %sets
  %next = select i1 %last, i64 0, i64 %j
  %less = sub i64 %left, 1
  %more = icmp ne i64 %less, 0
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
"""Calls a kernel so often, with sets of arguments in turns from the first one on."""


class KernelCode:
    """A scheduled kernel as code of this process, which runs on memory at given addresses."""

    def __init__(
        self, kernel: Kernel, machine: Machine, change: Callable[[str], str] = lambda text: text
    ) -> None:
        """Compile it; `change` changes the text of the module before."""
        self._emitted, self._machine = emit_kernel(kernel, machine), machine
        self._symbols = [name for name, _ in kernel.symbols]
        self._code = Code(change(self._emitted.text), ENTRY_OF_KERNELS, machine)
        self._numbers = ctypes.create_string_buffer(self._emitted.numbers)
        self._kept: list[Any] = []
        """What calls need that were returned."""
        words, places = (ctypes.c_int64,) * 2, (ctypes.c_void_p,) * 2
        self._call = ctypes.CFUNCTYPE(None, *places, *words)(self._code.address)

    def runs(
        self, addresses: Sequence[int], symbols: Mapping[str, int], parts: int = 1
    ) -> tuple[Callable[[], None], ...]:
        """Returns what runs each part of the tasks, on arguments that begin at these addresses.

        The addresses are multiples of 64.
        """
        pointers, words = self._given(addresses, symbols, self._scratch(symbols))
        tasks = self._tasks(symbols)
        edges = [tasks * i // parts for i in range(parts + 1)]
        return tuple(
            functools.partial(self._call, pointers, words, first, end)
            for first, end in pairwise(edges)
        )

    def repeated(
        self, sets: Sequence[Sequence[int]], symbols: Mapping[str, int]
    ) -> Callable[[int], None]:
        """Returns what runs all tasks so many times, once at least, without Python in between.

        Each run has the next set of addresses, which are multiples of 64: the first one again
        after the last. A call goes on where the one before ended.
        """
        scratch = self._scratch(symbols)
        given = [self._given(addresses, symbols, scratch) for addresses in sets]
        places = [ctypes.addressof(part) for call in given for part in call]
        calls, tasks = (ctypes.c_void_p * len(places))(*places), self._tasks(symbols)
        code, repeat = _repeat(self._machine)
        self._kept += [given, code]
        first = 0

        def run(count: int) -> None:
            nonlocal first
            assert count > 0
            repeat(self._code.address, calls, len(sets), first, count, tasks)
            first = (first + count) % len(sets)

        return run

    def _scratch(self, symbols: Mapping[str, int]) -> int:
        """The address of new scratch of a thread: calls that were returned before keep theirs."""
        needed = int(Index.of(self._emitted.thread_bytes).evaluate(dict(symbols)))
        self._kept.append(scratch := in_huge_pages(needed))
        return int(scratch.ctypes.data)

    def _given(
        self, addresses: Sequence[int], symbols: Mapping[str, int], scratch: int
    ) -> tuple[_Words, _Words]:
        """The pointers and the words that a call takes."""
        words = [*(symbols[name] for name in self._symbols), scratch]
        given = [*addresses, ctypes.addressof(self._numbers)]
        pointers = (ctypes.c_void_p * len(given))(*given)
        return pointers, (ctypes.c_int64 * len(words))(*words)

    def _tasks(self, symbols: Mapping[str, int]) -> int:
        return int(Index.of(self._emitted.tasks).evaluate(dict(symbols)))


def in_huge_pages(size: int) -> np.ndarray:
    """Returns so many bytes, all 0, of which the first one begins a huge page.

    Sessions of compiled models keep theirs so, too.
    """
    memory = mmap.mmap(-1, size + 2 * HUGE_PAGE_BYTES)
    # Advice only: without huge pages the memory works the same.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(memory, np.uint8)
    begin = -found.ctypes.data % HUGE_PAGE_BYTES
    return found[begin : begin + size]


_Words = ctypes.Array[Any]


@functools.lru_cache
def _repeat(machine: Machine) -> tuple[Code, Callable[..., None]]:
    """The function that calls kernels in a loop, and its code, without which it cannot live."""
    code = Code(LOOP, REPEAT, machine)
    words, places = (ctypes.c_int64,) * 4, (ctypes.c_void_p,) * 2
    return code, ctypes.CFUNCTYPE(None, *places, *words)(code.address)


Body = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]
"""Emits the result of one scalar or vector of each argument."""


class Elementwise:
    """A compiled function of arrays, applied `lanes` elements at a time."""

    def __init__(
        self,
        body: Body,
        arguments: Sequence[DType],
        result: DType,
        lanes: int | None,
        machine: Machine,
    ) -> None:
        """Compile `body` for arguments and a result of these types; None lanes mean scalars."""
        self._arguments, self._result, self._lanes = tuple(arguments), result, lanes
        text = str(_module(body, self._arguments, result, lanes, machine))
        self._code = Code(text, ENTRY, machine)
        pointers = [ctypes.c_void_p] * (len(self._arguments) + 1)
        prototype = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64, ctypes.c_int64)
        self._call = prototype(self._code.address)

    def __call__(self, *arrays: np.ndarray, repeats: int = 1) -> np.ndarray:
        """The result for one-dimensional arrays of one length, computed `repeats` times."""
        step = self._lanes or 1
        size = len(arrays[0])
        padded = -(-size // step) * step
        # Ones, because they are in the domain of every function.
        inputs = [np.ones(padded, d.numpy) for d in self._arguments]
        for target, array in zip(inputs, arrays, strict=True):
            target[:size] = array
        output = np.empty(padded, self._result.numpy)
        addresses = [a.ctypes.data for a in (*inputs, output)]
        self._call(*addresses, padded, repeats)
        return output[:size]


def _module(
    body: Body,
    arguments: Sequence[DType],
    result: DType,
    lanes: int | None,
    machine: Machine,
) -> ir.Module:
    """`void elementwise(ptr argument..., ptr result, i64 size, i64 repeats)`."""
    module = ir.Module(ENTRY)
    module.triple = machine.triple
    pointers = [ir.PointerType()] * (len(arguments) + 1)
    function = ir.Function(module, ENTRY, ir.VoidType(), [*pointers, I64, I64])
    function.noalias = len(pointers)
    *sources, target, size, repeats = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    outer = _Loop(builder, repeats, 1)
    inner = _Loop(builder, size, lanes or 1)
    values = []
    for source, dtype in zip(sources, arguments, strict=True):
        element = memory_type(dtype)
        place = builder.gep(source, [inner.index], type_=element)
        type_ = element if lanes is None else ir.VectorType(element, lanes)
        loaded = builder.load(place, type_=type_, align=dtype.bytes)
        values.append(from_memory(builder, loaded, dtype))
    value = body(builder, values)
    if value.type != llvm_type(result, lanes):
        raise TypeError(f"the body gave {value.type}, not {llvm_type(result, lanes)}")
    place = builder.gep(target, [inner.index], type_=memory_type(result))
    builder.store(to_memory(builder, value, result), place, align=result.bytes)
    inner.close()
    outer.close()
    builder.ret_void()
    return module


class _Loop:
    """A loop from 0 while below a limit, open until closed."""

    def __init__(self, builder: ir.IRBuilder, limit: ir.Value, step: int) -> None:
        self._builder, self._limit, self._step = builder, limit, step
        before = builder.block
        self._body = builder.append_basic_block("body")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self.index = builder.phi(I64)
        self.index.add_incoming(ir.Constant(I64, 0), before)

    def close(self) -> None:
        """Ends the body; the builder moves behind the loop."""
        builder = self._builder
        following = builder.add(self.index, ir.Constant(I64, self._step))
        self.index.add_incoming(following, builder.block)
        after = builder.append_basic_block("after")
        more = builder.icmp_signed("<", following, self._limit)
        builder.cbranch(more, self._body, after)
        builder.position_at_end(after)
