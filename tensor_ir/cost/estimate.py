"""`estimate`: the cycles that a summary takes on a machine, and what they are spent on.

In each region the operations of one kind follow each other at the machine's rate, and kinds hide
each other but for what `Costs.ports` says; so do computing and what comes from each level of
memory, by `Costs.levels`. Loops and their beginnings come on top. Regions follow each other.

    region = |arithmetic, loads, stores, instructions, chain|_ports
    cycles = sum |region, second cache, memory|_levels + blocks + overhead
    blocks = matrices * products of blocks
    overhead = loop * times + entry * entries + tested * tested reads + evicted * lines
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from rutc.base.record import record
from rutc.tensor_ir.cost.fitted import Costs, Fitted, load
from rutc.tensor_ir.cost.summary import Summary
from rutc.tensor_ir.cost.work import Region
from rutc.tensor_ir.machine import Machine


@record
class Rates:
    """What a machine does in a cycle, as far as an estimate depends on it."""

    multiply_adds: float
    loads: float
    broadcasts: float
    divide_cycles: float
    level_bytes: tuple[float, ...]
    """Of the second cache, the last one and memory."""

    @staticmethod
    def of(machine: Machine) -> Rates:
        """Those of a machine."""
        return Rates(
            machine.fma_per_cycle,
            machine.loads_per_cycle,
            machine.scalar_loads_per_cycle,
            machine.divide_cycles,
            (
                machine.l2_bytes_per_cycle,
                machine.l3_bytes_per_cycle,
                machine.memory_bytes_per_cycle,
            ),
        )


@record
class Estimate:
    """The cycles of a kernel, the bytes that pass from level to level, and what takes longest."""

    cycles: float
    bytes: Mapping[str, float]
    bound_by: str
    parts: Mapping[str, float]
    """The cycles of each part if it were alone."""

    @property
    def multiplying(self) -> float:
        """The cycles in which products are computed, those in matrix registers among them."""
        return self.parts.get("products", 0.0) + self.parts.get("matrices", 0.0)

    @property
    def computing(self) -> float:
        """The cycles in which the units for arithmetic are busy."""
        return max(self.multiplying, self.parts.get("vectors", 0.0))


def parts_of(
    work: Callable[[str], float], polynomial: float, chain: float, rates: Rates, costs: Costs
) -> dict[str, float]:
    """The cycles of each kind of work of a region, `polynomial` operations of functions among it.

    All may be arrays of numpy, one element for each region.
    """
    products = (
        work("multiply_adds") + costs.dots * work("dots") + costs.functions * polynomial
    ) / rates.multiply_adds
    vectors = (
        work("multiply_adds")
        + costs.dots * work("dots")
        + polynomial
        + work("arithmetic")
        + costs.shuffles * work("shuffles")
        + costs.conversions * work("conversions")
    ) / rates.multiply_adds
    loads = (
        (work("loads") + costs.crossing * work("crossing") + costs.spills * work("spills"))
        / rates.loads
        + work("broadcasts") / rates.broadcasts
        + costs.gathered * work("gathered")
        + costs.guarded * work("guarded")
        + costs.prefetches * work("prefetches")
        + costs.blocks * work("blocks")
    )
    instructions = (
        work("multiply_adds")
        + work("arithmetic")
        + work("shuffles")
        + work("conversions")
        + work("dots")
        + polynomial
        + work("loads")
        + work("stores")
        + work("prefetches")
        + costs.scalar * work("scalar")
    )
    return {
        "products": products + work("divisions") * rates.divide_cycles,
        "vectors": costs.vectors * vectors,
        "loads": loads,
        "stores": (costs.stores * work("stores") + costs.masked * work("masked")) / rates.loads
        + costs.scattered * work("scattered"),
        "instructions": instructions / costs.issue,
        "latency": chain,
    }


def norm(parts: Mapping[str, float], sharpness: float) -> float:
    """A little more than the longest of times that hide each other."""
    total = sum((x + TINY) ** sharpness for x in parts.values())
    return float(total ** (1 / sharpness)) if isinstance(total, float) else total ** (1 / sharpness)


TINY = 1e-9


def levels_of(
    moved: Sequence[tuple[float, float]], waiting: float, rates: Rates, costs: Costs
) -> dict[str, float]:
    """The cycles in which a region's bytes come from each level of memory, and go there.

    Lines that are stored in full sets of the first cache wait for room meanwhile.
    """
    shares = (
        (costs.l2_in, costs.l2_out),
        (costs.l3_in, costs.l3_out),
        (costs.memory_in, costs.memory_out),
    )
    found = {
        name: (share[0] * bytes_[0] + share[1] * bytes_[1]) / rate
        for name, share, bytes_, rate in zip(
            LEVEL_NAMES, shares, moved, rates.level_bytes, strict=True
        )
    }
    return {**found, "evictions": costs.waiting * waiting}


LEVEL_NAMES = ("second cache", "last cache", "memory")


def overhead_of(
    work: Callable[[str], float], times: float, entries: float, evicted: float, costs: Costs
) -> float:
    """The cycles that nothing hides.

    Lines that are loaded into full sets of the first cache are among them: those behind wait, too.
    """
    loops = costs.loop * times + costs.entry * entries
    return loops + costs.tested * work("tested") + costs.evicted * evicted


def blocks_of(work: Callable[[str], float], costs: Costs) -> float:
    """The cycles of products in matrix registers, which hide nothing else either.

    There are too few registers to fill some while others are multiplied, and what becomes of sums
    waits for the last of them (Emerald Rapids: of 56 kernels of bf16 with default schedules, the
    median estimate is 0.96 of the cycles, not 0.62).
    """
    return costs.matrices * work("matrices")


@functools.cache
def fitted() -> Fitted:
    """The constants that rutc comes with."""
    return load()


def estimate(
    summary: Summary,
    machine: Machine,
    constants: Fitted | None = None,
    *,
    threads: int = 1,
    levels: Mapping[str, int] | None = None,
) -> Estimate:
    """The cycles of a kernel, by threads that share its tasks evenly.

    It is as if the kernel ran just before, but that arguments named in `levels` first come from
    that level of memory: 1 is the second cache, 2 the last one, 3 memory.
    """
    constants = constants or fitted()
    costs, rates = constants.costs, Rates.of(machine)
    functions = constants.functions_of(machine.vector_bits)
    cycles, seen = costs.call, {"overhead": costs.call}
    moved = dict.fromkeys(LEVEL_NAMES, 0.0)
    for r in summary.regions:
        own, parts = region_cycles(r, rates, costs, functions)
        cycles += own
        for name, bytes_ in zip(LEVEL_NAMES, r.moved, strict=True):
            moved[name] += sum(bytes_)
        for name, part in parts.items():
            seen[name] = seen.get(name, 0.0) + part
    first = _first(summary, levels or {}, moved, rates, costs)
    if first:
        cycles = norm({"warm": cycles, "first": first}, costs.levels)
        seen["first touch"] = first
    if threads > 1 and summary.tasks > 1:
        share = -(-summary.tasks // threads) / summary.tasks
        cycles = cycles * share + machine.launch_cycles
    bound_by = max(seen, key=lambda name: seen[name])
    return Estimate(cycles, moved, bound_by, seen)


def region_cycles(
    r: Region, rates: Rates, costs: Costs, functions: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """The cycles of a region, and those of each of its parts if it were alone."""
    polynomial = sum(n * functions[f] for f, n in r.functions.items())

    def work(kind: str) -> float:
        return r.work.get(kind, 0.0)

    parts = parts_of(work, polynomial, r.chain, rates, costs)
    levels = levels_of(r.moved, work("waiting"), rates, costs)
    overhead = overhead_of(work, r.times, r.entries, r.evicted, costs)
    hidden = norm({"core": norm(parts, costs.ports), **levels}, costs.levels)
    alone = {"matrices": blocks_of(work, costs), "overhead": overhead}
    return hidden + sum(alone.values()), {**parts, **levels, **alone}


def _first(
    summary: Summary,
    levels: Mapping[str, int],
    moved: dict[str, float],
    rates: Rates,
    costs: Costs,
) -> float:
    """Cycles in which arguments come that loops do not bring from so far, which are noted."""
    total = 0.0
    for name, bytes_ in summary.arguments.items():
        level = levels.get(name, 0)
        if level and name not in summary.stored:
            known = LEVEL_NAMES[level - 1]
            more = max(bytes_ - moved[known], 0.0)
            moved[known] += more
            share = (costs.l2_in, costs.l3_in, costs.memory_in)[level - 1]
            total += share * more / rates.level_bytes[level - 1]
    return total
