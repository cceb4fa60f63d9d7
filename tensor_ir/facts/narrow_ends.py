"""Which registers of vector loops are narrower: the last one, where few lanes are left for it.

    24 lanes of 32 bits, registers of 512 bits   ->   16 lanes, 8 lanes

No lane of it is idle then, so that nothing is masked, and where a register's operation takes two
cycles, that of half of one takes a single one.
"""

from __future__ import annotations

from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Kernel, Merge, Put, Update
from rutc.tensor_ir.machine import FEWEST_LANES, Machine
from rutc.tensor_ir.statements import accesses, exprs, walk_stmts


def has_narrow_ends(kernel: Kernel, machine: Machine) -> bool:
    """Whether the last register of a vector loop may have fewer lanes than the others.

    Not where lanes are merged, which takes whole registers; nor where data choose what lanes read
    or write, which instructions for whole registers find. Nor sums where registers are so few that
    there are none for masks: LLVM keeps narrow ones where a factor was, and spills some.
    """
    merged = Merge | Put if machine.has_masks else Merge | Put | Update
    for s in walk_stmts(kernel.body):
        places = [a.coords for a in accesses(s)]
        places += [r.coords for e in exprs(s) for r in reads(e)]
        told = all(isinstance(c, Index) for coords in places for _, c in coords)
        if isinstance(s, merged) or not told:
            return False
    return True


def end_lanes(machine: Machine, extent: int, lanes: int) -> int:
    """The lanes of the last register of a loop over registers of so many lanes: a power of two."""
    rest = extent % lanes or lanes
    return min(max(machine.lanes(rest), FEWEST_LANES), lanes)
