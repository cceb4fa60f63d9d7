"""Code compiled into this process, for tests and benchmarks."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import llvmlite.binding as llvm
import numpy as np

from rutc.emit import ir
from rutc.emit.cast import llvm_type
from rutc.emit.codegen import optimise, start, target_machine
from rutc.emit.kernel import ENTRY as ENTRY_OF_KERNELS
from rutc.emit.kernel import emit_kernel
from rutc.emit.matrix import uses_registers
from rutc.emit.storage import from_memory, memory_type, to_memory
from rutc.emit.tile_permission import ask_for_tiles
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine

ENTRY = "elementwise"
I64 = ir.IntType(64)


class Code:
    """LLVM's textual code, compiled as for a library and linked into this process while it lives.

    JITLink links it: MCJIT may map the sections of a module further apart than addresses that
    are relative to the code can say, and then ends the process.
    """

    def __init__(self, text: str, entry: str, machine: Machine) -> None:
        """Compile the module and look up the function `entry`.

        Raises:
            UserError: it uses registers for matrices, which this process may not.
        """
        if uses_registers(text):
            ask_for_tiles()
        start()
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
        target = target_machine(machine)
        optimise(module, target)
        library = llvm.JITLibraryBuilder().add_current_process().export_symbol(entry)
        library.add_object_img(target.emit_object(module))
        self._linker = llvm.create_lljit_compiler(target, use_jit_link=True)
        self._linked = library.link(self._linker, entry)
        self.address = int(self._linked[entry])


class KernelCode:
    """A scheduled kernel as code of this process, which runs on memory at given addresses."""

    def __init__(
        self, kernel: Kernel, machine: Machine, change: Callable[[str], str] = lambda text: text
    ) -> None:
        """Compile it; `change` changes the text of the module before."""
        self._emitted = emit_kernel(kernel, machine)
        self._symbols = [name for name, _ in kernel.symbols]
        self._code = Code(change(self._emitted.text), ENTRY_OF_KERNELS, machine)
        self._scratch: list[np.ndarray] = []
        words, places = (ctypes.c_int64,) * 2, (ctypes.c_void_p,) * 2
        self._call = ctypes.CFUNCTYPE(None, *places, *words)(self._code.address)

    def runs(
        self, addresses: Sequence[int], symbols: Mapping[str, int], parts: int = 1
    ) -> tuple[Callable[[], None], ...]:
        """Returns what runs each part of the tasks, on arguments that begin at these addresses.

        The addresses are multiples of 64.
        """
        pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        words = [symbols[name] for name in self._symbols]
        needed = int(Index.of(self._emitted.thread_bytes).evaluate(dict(symbols)))
        # What was returned before goes on with the scratch that it has.
        scratch = np.empty(needed + 64, np.uint8)
        self._scratch.append(scratch)
        words.append(-(-scratch.ctypes.data // 64) * 64)
        table = (ctypes.c_int64 * len(words))(*words)
        tasks = int(Index.of(self._emitted.tasks).evaluate(dict(symbols)))
        edges = [tasks * i // parts for i in range(parts + 1)]
        return tuple(
            functools.partial(self._call, pointers, table, first, end)
            for first, end in pairwise(edges)
        )


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
