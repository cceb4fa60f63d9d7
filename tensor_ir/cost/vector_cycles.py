"""What expressions by themselves take: rules weigh them before there is a kernel to estimate."""

from __future__ import annotations

from collections.abc import Iterable

from rutc.tensor_ir.cost.estimate import Rates, fitted, region_cycles
from rutc.tensor_ir.cost.operations import kind_of
from rutc.tensor_ir.cost.work import Tally
from rutc.tensor_ir.expr import Apply, Cast, Expr, Read, reads_plainly, walk
from rutc.tensor_ir.machine import Machine


def vector_cycles(elements: Iterable[Expr], machine: Machine) -> float:
    """The cycles in which expressions are computed for each 32-bit lane of a register.

    What they read is in registers, but for elements at places that data tell: these are gathered.
    """
    tally = Tally("expressions", 1.0, 1.0)
    for e in elements:
        for x in walk(e):
            match x:
                case Apply():
                    kind, count = kind_of(x)
                    if kind == "function":
                        tally.call(x.op, count)
                    else:
                        tally.add(kind, count)
                case Cast():
                    tally.add("conversions", 1.0)
                case Read() if not reads_plainly(x):
                    tally.add("gathered", float(machine.width))
                case _:
                    pass
    constants = fitted()
    functions = constants.functions_of(machine.vector_bits)
    region = tally.finished(machine)
    return region_cycles(region, Rates.of(machine), constants.costs, functions)[0]
