"""Kernels compiled into this process and run, their memory surrounded by canaries."""

import ctypes
import mmap
from collections.abc import Mapping

import numpy as np

from benchmarks.in_process import KernelCode
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from tests.machines import emulated, lacking, runnable
from tests.tiles import calling_functions, load

GUARD = 256
"""Bytes on both sides of every buffer."""
CANARY = 0xA5
READ_ON = 64
"""What the host has behind the scratch of threads (`READ_ON_BYTES`)."""


def run_as_interpreted(kernel: Kernel, machine: Machine, given: Mapping[str, np.ndarray]) -> None:
    """Runs the kernel's code, and interprets it, on copies of buffers, which must become equal."""
    found, want = ({name: a.copy() for name, a in given.items()} for _ in range(2))
    run_kernel(kernel, machine, found)
    interpret_kernel(kernel, want)
    for name, array in found.items():
        np.testing.assert_array_equal(array, want[name], name)


def run_kernel(
    kernel: Kernel,
    machine: Machine,
    buffers: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
    parts: int = 1,
    fence: str | None = None,
) -> None:
    """Runs the kernel's code on `buffers`, changed in place, its tasks in `parts` calls.

    With a `fence` at the "begin" or "end" of all buffers, the process dies of reads beyond it.

    Raises:
        AssertionError: This processor cannot run the code, or it wrote outside of the buffers.
    """
    assert runnable(machine), lacking(machine)
    if emulated(machine):
        load()
        code = KernelCode(kernel, machine, calling_functions)
    else:
        code = KernelCode(kernel, machine)
    if fence is None:
        memory = [_guarded(buffers[b.name]) for b in kernel.args]
    else:
        memory = [_fenced(buffers[b.name], fence) for b in kernel.args]
    places = [m.ctypes.data + (GUARD if fence is None else 0) for m in memory]
    # The last part first: tasks may run in any order.
    for run in reversed(code.runs(places, symbols or {}, parts)):
        run()
    for b, m in zip(kernel.args, memory, strict=True):
        array = buffers[b.name]
        if fence is not None:
            array.view(np.uint8)[...] = m
            continue
        inside = m[GUARD : len(m) - GUARD]
        assert (m[:GUARD] == CANARY).all(), f"%{b.name} is written before its begin"
        assert (m[len(m) - GUARD :] == CANARY).all(), f"%{b.name} is written behind its end"
        array.view(np.uint8)[...] = inside


def run_near(
    kernel: Kernel,
    machine: Machine,
    buffers: Mapping[str, np.ndarray],
    near: str,
    parts: int,
    *,
    first: bool = False,
) -> None:
    """Runs the last of `parts` equal parts of a kernel's tasks, on `buffers` changed in place.

    Of the buffer `near` there is memory for the last part alone: the process dies of reads of what
    lies before it. LLVM leaves out no load of what is not used, as it would some of them. If it is
    the `first` part that runs, there is memory for that, and the process dies of reads that go on
    for more than `READ_ON` bytes behind it.
    """
    assert runnable(machine), lacking(machine)
    memory, places = [], []
    code = KernelCode(kernel, machine, lambda text: text.replace(" = load ", " = load volatile "))
    for b in kernel.args:
        array = buffers[b.name]
        absent = array.nbytes - array.nbytes // parts if b.name == near and not first else 0
        if first and b.name == near:
            own = np.append(
                array[: array.size // parts].view(np.uint8), np.zeros(READ_ON, np.uint8)
            )
            memory.append(_fenced(own, "end"))
        else:
            memory.append(_fenced(array[absent // array.itemsize :], "begin"))
        places.append(memory[-1].ctypes.data - absent)
    code.runs(places, {}, parts)[0 if first else -1]()
    for b, m in zip(kernel.args, memory, strict=True):
        if b.name != near:
            buffers[b.name].view(np.uint8)[...] = m


def _guarded(array: np.ndarray) -> np.ndarray:
    """The array's bytes between canaries, at an address that is a multiple of 64."""
    size = array.nbytes + 2 * GUARD
    raw = np.full(size + 64, CANARY, np.uint8)
    shift = -raw.ctypes.data % 64
    memory = raw[shift : shift + size]
    memory[GUARD : GUARD + array.nbytes] = array.view(np.uint8)
    return memory


def _fenced(array: np.ndarray, side: str) -> np.ndarray:
    """The array's bytes, in pages of which the one before the begin or after the end is closed."""
    page = mmap.PAGESIZE
    pages = -(-max(array.nbytes, 1) // page)
    # Arrays of mapped memory keep it mapped.
    raw = np.frombuffer(mmap.mmap(-1, (pages + 2) * page), np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for number in (0, pages + 1):
        place = ctypes.c_void_p(raw.ctypes.data + number * page)
        assert protect(place, ctypes.c_size_t(page), ctypes.c_int(0)) == 0
    start = page if side == "begin" else (pages + 1) * page - array.nbytes
    memory = raw[start : start + array.nbytes]
    memory[...] = array.view(np.uint8)
    return memory
