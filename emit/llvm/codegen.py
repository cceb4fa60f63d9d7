"""LLVM: module text in, object file out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from rutc.emit.llvm.ir_module import REPEATS
from rutc.emit.llvm.stack_vectors import LOOP_BYTES, stack_vectors
from rutc.tensor_ir.machine import Machine

VERSION = f"12 llvmlite {llvmlite.__version__}"
"""Changes whenever the same module text could become other machine code."""

_lock = threading.RLock()
_started = False
_own = threading.local()
"""What a thread keeps for itself: LLVM's descriptions of machines change while they are used."""
_reduces = True
"""Whether LLVM's code generator looks for other variables of loops than the code has."""


def _begin_fork() -> None:
    """Waits until no other thread is in LLVM: a child would wait for it for ever."""
    _lock.acquire()
    ffi.lib._lock.__enter__()


def _end_fork() -> None:
    """Lets threads into LLVM again, in the parent and in the child."""
    ffi.lib._lock.__exit__(None, None, None)
    _lock.release()


os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork)


def compile_object(text: str, machine: Machine, *, symbol: str, entry: str) -> bytes:
    """The object file of one module, its function `entry` renamed to the hidden `symbol`.

    LLVM reorders instructions so that none waits for another. It may have all that a long block
    reads loaded at once then, more than there are registers for, where the order of the emitted
    code needs few. Where innermost loops have vectors on the stack, the order is taken of which
    they have fewer there.

    Runs in parallel with itself, as every call has an LLVM context of its own, but for making
    machine code: the order is an option that all threads share.
    """
    start()
    module = llvm.parse_assembly(text.replace(entry, symbol), llvm.create_context())
    module.get_function(symbol).visibility = "hidden"
    optimise(module, _kept_target(machine))
    optimised = module.as_bitcode()
    code = _object(module, machine, reordered=True)
    kept = _on_stack(code, machine)
    if kept:
        module = llvm.parse_bitcode(optimised, llvm.create_context())
        other = _object(module, machine, reordered=False)
        if _on_stack(other, machine) < kept:
            return other
    return code


def _object(module: llvm.ModuleRef, machine: Machine, *, reordered: bool) -> bytes:
    """The object file of a module, which is no longer the same then.

    Instructions are in LLVM's order or in that of the module.
    """
    with _order(reordered):
        code: bytes = _kept_target(machine).emit_object(module)
    return code


def _on_stack(code: bytes, machine: Machine) -> int:
    """How many operations on vectors in loops are on the stack; 0 where that is not told."""
    return stack_vectors(code) if machine.architecture == "x86_64" else 0


def compile_assembly(text: str, machine: Machine, *, reordered: bool = True) -> str:
    """The assembly of one module, for reading, in LLVM's order or that of the module."""
    start()
    module = llvm.parse_assembly(text, llvm.create_context())
    target = _kept_target(machine)
    optimise(module, target)
    with _order(reordered):
        assembly: str = target.emit_assembly(module)
    return assembly


def start() -> None:
    """Initialises LLVM once in this process."""
    global _started
    with _lock:
        if not _started:
            # Innermost loops begin at whole cache lines: where they begin decides how fast they
            # are decoded, and must not depend on what stands before them.
            bits = LOOP_BYTES.bit_length() - 1
            llvm.set_option("", f"-x86-experimental-pref-innermost-loop-alignment={bits}")
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _started = True


def target_machine(machine: Machine) -> llvm.TargetMachine:
    """A new description of the machine for LLVM."""
    _reduce_strength(machine.architecture != "x86_64")
    features = [f"+{f}" for f in sorted(machine.features)]
    if machine.architecture == "x86_64":
        # Processors without this hint skip it.
        features.append("+prfchw")
    if machine.vector_bits == 512:
        features.append("-prefer-256-bit")
    if machine.adds_products:
        # LLVM would take products of pairs and their additions apart.
        features.append("+fast-dpwssd")
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.name if machine.triple.startswith("x86_64") else "generic",
        features=",".join(features),
        opt=3,
        reloc="pic",
        codemodel="small",
    )


def _kept_target(machine: Machine) -> llvm.TargetMachine:
    """LLVM's description of the machine, one for all that a thread compiles.

    What LLVM makes of it for the first function takes half as long as all else of a small one.
    """
    _reduce_strength(machine.architecture != "x86_64")
    known: dict[Machine, llvm.TargetMachine] = _own.__dict__.setdefault("targets", {})
    if machine not in known:
        known[machine] = target_machine(machine)
    return known[machine]


def _reduce_strength(wanted: bool) -> None:
    """Lets LLVM's code generator choose the variables of loops, or keep those that there are.

    An operand of x86 adds up an address: a base, a counter and a constant. Emitted code computes
    bases outside of the loops that do not change them, so that there is nothing to gain, and the
    choice takes longer than all else that the generator does.
    """
    global _reduces
    with _lock:
        if _reduces is not wanted:
            llvm.set_option("", f"-disable-lsr={'false' if wanted else 'true'}")
            _reduces = wanted


@contextmanager
def _order(reordered: bool) -> Iterator[None]:
    """Lets LLVM's code generator reorder instructions meanwhile, or not, in all threads."""
    with _lock:
        if not reordered:
            llvm.set_option("", "-enable-misched=false")
        try:
            yield
        finally:
            if not reordered:
                llvm.set_option("", "-enable-misched=true")


def optimise(module: llvm.ModuleRef, target: llvm.TargetMachine) -> None:
    """Runs LLVM's passes on each function, as few as change much.

    Emitted code computes what it needs once, where it is needed and as far outside of loops as can
    be. So slots become values, instructions that do the same as others become those, and tests of
    what is known go, those that loops ask again and again as well. The passes of level 1 would
    take three times as long as these and find next to nothing more, but where loops compute again
    what does not change in them: operations are emitted where their results are needed, and these
    passes move them out of loops. Every loop gets a block before it in the end: sums of two loops
    that follow one branch would begin before that, all of them at once, and some on the stack.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(target, options)
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    if any(REPEATS.encode() in words for f in module.functions for words in f.attributes):
        _run(passes, module, builder)
        passes = builder.getFunctionPassManager()
    passes.add_jump_threading_pass()
    passes.add_loop_simplify_pass()
    _run(passes, module, builder)
    after = llvm.create_new_module_pass_manager()
    after.add_dead_arg_elimination_pass()
    # Functions that are known not to throw need no tables for unwinding.
    after.add_post_order_function_attributes_pass()
    after.run(module, builder)


def _run(
    passes: llvm.newpassmanagers.FunctionPassManager,
    module: llvm.ModuleRef,
    builder: llvm.PassBuilder,
) -> None:
    """Runs passes on all functions that have code."""
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
