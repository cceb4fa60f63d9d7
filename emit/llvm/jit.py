"""Code compiled into this process, without a library."""

from __future__ import annotations

import llvmlite.binding as llvm

from rutc.emit.llvm.codegen import optimise, start, target_machine
from rutc.emit.llvm.tile_permission import ask_for_tiles
from rutc.emit.matrix import uses_registers
from rutc.tensor_ir.machine import Machine


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
