"""What expressions by themselves take: rules weigh them before there is a kernel to estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rutc.tensor_ir.cost.estimate import Rates, fitted, region_cycles
from rutc.tensor_ir.cost.operations import kind_of
from rutc.tensor_ir.cost.work import Tally
from rutc.tensor_ir.expr import Apply, Cast, Expr, Read, reads_plainly, walk
from rutc.tensor_ir.machine import WORD, Machine

NO_ROWS: Mapping[str, int] = MappingProxyType({})


def vector_cycles(
    elements: Iterable[Expr], machine: Machine, rows: Mapping[str, int] = NO_ROWS
) -> float:
    """The cycles in which expressions are computed for each 32-bit lane of a register.

    What they read is in registers, but for elements at places that data tell: these are gathered,
    or picked from registers where the value is a row that these have room for. `rows` are such
    values, by their elements.
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
                    row = rows.get(x.value)
                    parts = max(WORD // x.dtype.bytes, 1)
                    picks = machine.picks(x.dtype.bytes, row, parts * machine.width) if row else 0
                    tally.add("shuffles", picks / parts)
                    tally.add("gathered", 0.0 if picks else float(machine.width))
                case _:
                    pass
    constants = fitted()
    functions = constants.functions_of(machine.vector_bits)
    region = tally.finished(machine)
    return region_cycles(region, Rates.of(machine), constants.costs, functions)[0]
