"""What a learned model knows of a scheduled kernel: one vector of numbers, the same for all.

The numbers describe the loop nest and the machine, never the parameters of a schedule, so that
what is measured of one kernel counts for others, for other templates and other machines
[Chen et al. 2018, §4]. They are made of the regions of a summary and of their analytic estimate:
what the time is spent on, the mix of instructions, how often what is near is used before more
comes from farther away, and the two loops that take longest.

Shares are of the estimated cycles. Logarithms are to base 2, of a quantity and a little: what is
not there at all is a finite number, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import log2

import numpy as np

from rutc.base.record import record
from rutc.tensor_ir.cost import Region
from rutc.tensor_ir.cost.estimate import LEVEL_NAMES, TINY, Rates, fitted, norm, region_cycles
from rutc.tensor_ir.cost.fitted import Costs
from rutc.tensor_ir.cost.work import KINDS, LEVELS
from rutc.tensor_ir.facts.matrix_blocks import ROWS
from rutc.tensor_ir.machine import Machine

CORE = ("products", "vectors", "loads", "stores", "instructions", "latency")
FAR = (*LEVEL_NAMES, "evictions")
PARTS = (*CORE, *FAR, "overhead")
"""The parts of an estimate, in the order of their features."""
INSTRUCTIONS = (
    "multiply_adds",
    "arithmetic",
    "shuffles",
    "conversions",
    "dots",
    "loads",
    "stores",
    "scalar",
)
"""The kinds that are counted as instructions, functions beside them.

A row of a matrix register counts as a register does: it is loaded, or has one of so many products.
"""
OF_A_REGION = {
    "": "cycles of the region, by the estimate",
    **dict.fromkeys(PARTS, "cycles of this part in it, by its own"),
    "trip": "log, iterations of its loop each time that it is entered",
    "times": "log, iterations of its loop, all together",
    "each": "log, cycles of an iteration",
    "length": "log, instructions of an iteration",
    "multiply-adds": "log, multiply-adds and dots of an iteration",
    "stored": "log, stores of an iteration",
    "chain": "cycles of operations of an iteration that wait for those of the one before",
    "loaded": "log, loads and broadcasts, by multiply-adds and dots",
}
NAMES: Mapping[str, str] = {
    "cycles": "log, the estimate",
    **{f"share of {p}": "cycles of this part if it were alone, by the estimate" for p in PARTS},
    "share of the call": "cycles of the call, by the estimate",
    "hidden": "cycles of all parts one after the other, by the estimate",
    **{f"mix of {k}": f"{what}, by the instructions of all regions" for k, what in KINDS.items()},
    "core": "cycles of computing, by the estimate",
    "far": "cycles of all levels of memory, by the estimate",
    "lesser": "cycles of computing or of memory, the fewer in each region, by the estimate",
    "second longest": "cycles of the second longest part of computing, by the estimate",
    "without latency": "cycles of the longest other part of computing, by the estimate",
    "mix of functions": "operations of elementary functions, by the instructions",
    "products by loads": "log, multiply-adds and dots, by loads and broadcasts",
    "products by stores": "log, multiply-adds and dots, by stores and scattered lanes",
    "reuse in the first cache": "log, bytes of loads, by those that come from farther away",
    "reuse in the second cache": "log, bytes to and from it, by those of the last one",
    "reuse in the last cache": "log, bytes to and from it, by those of memory",
    "bytes of the second cache": "log, bytes to and from it, by its size",
    "bytes of the last cache": "log, bytes to and from it, by its size",
    "to the second cache": "bytes that go there, by those to and from it",
    "to the last cache": "bytes that go there, by those to and from it",
    "regions": "log, regions that do something",
    "entries": "log, entries of all loops, by a thousand cycles of the estimate",
    "turns": "log, iterations of all loops, by a thousand cycles of the estimate",
    **{f"hottest {n}".strip(): what for n, what in OF_A_REGION.items()},
    **{f"second {n}".strip(): what for n, what in OF_A_REGION.items()},
    "lanes": "log, 32-bit lanes of a register",
    "registers": "log, the machine's registers",
    "multiply-adds by loads": "the machine's rate of them, by that of loads",
    "broadcasts by loads": "the machine's rate of them, by that of loads",
    "division": "multiply-adds in the time of a division",
    "rate of the second cache": "log, registers whose bytes come in a cycle",
    "rate of the last cache": "log, registers whose bytes come in a cycle",
    "rate of memory": "log, registers whose bytes come in a cycle",
}
"""Each feature, in order: its unit and meaning."""


def features(regions: Iterable[Region], machine: Machine) -> np.ndarray:
    """The features of a scheduled kernel, in the order of `NAMES`."""
    constants = fitted()
    rates, functions = Rates.of(machine), constants.functions_of(machine.vector_bits)
    each = [_part(r, rates, constants.costs, functions) for r in regions]
    work: dict[str, float] = {}
    for x in each:
        for kind, count in x.region.work.items():
            work[kind] = work.get(kind, 0.0) + count
    called = sum(n * functions[f] for x in each for f, n in x.region.functions.items())
    moved = [sum(sum(x.region.moved[level]) for x in each) for level in range(LEVELS)]
    written = [sum(x.region.moved[level][1] for x in each) for level in range(LEVELS)]
    call = constants.costs.call
    cycles = call + sum(x.cycles for x in each)
    parts = [sum(x.parts[p] for x in each) for p in PARTS]
    busy = [x for x in each if x.region.work or x.region.functions or x.region.chain]
    busy = sorted(busy, key=lambda x: -x.cycles)
    instructions = _instructions(work) + called
    products, loads = _products(work), work.get("loads", 0.0) + work.get("blocks", 0.0)
    stores = work.get("stores", 0.0) + work.get("scattered", 0.0)
    register = machine.vector_bits / 8
    nothing = _Part(Region("", 0.0, 0.0, {}), 0.0, dict.fromkeys(PARTS, 0.0))
    hot, following = (*busy, nothing, nothing)[:2]
    found = [
        log2(cycles),
        *(x / cycles for x in parts),
        call / cycles,
        sum(parts) / cycles,
        *(work.get(k, 0.0) / (instructions + 1) for k in KINDS),
        *(x / cycles for x in _hidden(each, constants.costs)),
        called / (instructions + 1),
        _ratio(products, loads + work.get("broadcasts", 0.0)),
        _ratio(products, stores),
        _ratio(loads * register, moved[0], machine.line_bytes),
        _ratio(moved[0], moved[1], machine.line_bytes),
        _ratio(moved[1], moved[2], machine.line_bytes),
        _ratio(moved[0], machine.l2, machine.line_bytes),
        _ratio(moved[1], machine.l3, machine.line_bytes),
        written[0] / (moved[0] + machine.line_bytes),
        written[1] / (moved[1] + machine.line_bytes),
        log2(1 + len(busy)),
        _ratio(sum(x.region.entries for x in each), cycles / 1000),
        _ratio(sum(x.region.times for x in each), cycles / 1000),
        *hot.features(cycles),
        *following.features(cycles),
        *_of_machine(machine, rates),
    ]
    return np.array(found)


def _part(r: Region, rates: Rates, costs: Costs, functions: Mapping[str, float]) -> _Part:
    """A region and its estimate, products in matrix registers among the others."""
    cycles, parts = region_cycles(r, rates, costs, functions)
    products = parts["products"] + parts["matrices"]
    return _Part(r, cycles, {**parts, "products": products})


@record
class _Part:
    """A region, and its estimate."""

    region: Region
    cycles: float
    parts: Mapping[str, float]

    def features(self, total: float) -> Iterator[float]:
        """Those of one of the regions that take longest."""
        r, own = self.region, self.cycles + TINY
        times = r.times + TINY
        products = _products(r.work)
        loads = r.work.get("loads", 0.0) + r.work.get("blocks", 0.0)
        yield self.cycles / total
        yield from (self.parts[p] / own for p in PARTS)
        yield _ratio(r.times, r.entries)
        yield log2(1 + r.times)
        yield log2(1 + self.cycles / times)
        yield log2(1 + _instructions(r.work) / times)
        yield log2(1 + products / times)
        yield log2(1 + r.work.get("stores", 0.0) / times)
        yield r.chain / times
        yield _ratio(loads + r.work.get("broadcasts", 0.0), products)


def _products(work: Mapping[str, float]) -> float:
    """Registers full of products."""
    rows = ROWS * work.get("matrices", 0.0)
    return work.get("multiply_adds", 0.0) + work.get("dots", 0.0) + rows


def _instructions(work: Mapping[str, float]) -> float:
    rows = ROWS * work.get("matrices", 0.0) + work.get("blocks", 0.0)
    return sum(work.get(k, 0.0) for k in INSTRUCTIONS) + rows


def _hidden(each: Iterable[_Part], costs: Costs) -> list[float]:
    """Cycles of what hides each other: what decides if it is not hidden as the estimate has it."""
    core = far = lesser = second = without = 0.0
    for x in each:
        own = norm({p: x.parts[p] for p in CORE}, costs.ports)
        other = norm({p: x.parts[p] for p in FAR}, costs.levels)
        core, far, lesser = core + own, far + other, lesser + min(own, other)
        second += sorted(x.parts[p] for p in CORE)[-2]
        without += max(x.parts[p] for p in CORE if p != "latency")
    return [core, far, lesser, second, without]


def _ratio(a: float, b: float, little: float = 1.0) -> float:
    return log2((a + little) / (b + little))


def _of_machine(machine: Machine, rates: Rates) -> list[float]:
    register = machine.vector_bits / 8
    return [
        log2(machine.vector_bits / 32),
        log2(machine.registers),
        rates.multiply_adds / rates.loads,
        rates.broadcasts / rates.loads,
        rates.divide_cycles * rates.multiply_adds,
        *(log2(x / register) for x in rates.level_bytes),
    ]
