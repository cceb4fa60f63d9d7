"""`--precision w4`: weights in 4 bits, with a scale for each block, where that is faster.

The graph is brought into normal form, and its weights are replaced (`graph_opt.four_bits`). Which
ones are is chosen by what the plan of each choice takes, by the estimate of its kernels: all of few
products each, fewer of them, or none. A product with few rows waits for its weights, of which an
eighth of the bytes then comes from memory; one with many does not wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from rutc.base.record import record
from rutc.driver.parts.build import machine_of
from rutc.driver.plans.estimates import Known, estimate_plan
from rutc.driver.plans.narrow_weights import StoredAs
from rutc.graph_opt import versions
from rutc.graph_opt.decide import decide
from rutc.graph_opt.four_bits import Blocks, candidates, in_blocks_of_four_bits
from rutc.graph_opt.quantise import normal
from rutc.tensor_ir import DType, Graph
from rutc.tensor_ir.machine import Machine


@record
class FourBits:
    """A graph some of whose weights are of 4 bits, and which."""

    graph: Graph
    stored: tuple[StoredAs, ...] = ()


def in_four_bits(graph: Graph, machine: Machine) -> FourBits:
    """An imported graph with weights in 4 bits, where it then takes less time."""
    before = normal(graph, machine)
    sizes = {name: n.data.array.size for name, n in before.constants.items()}
    found = tuple(b for b in candidates(before) if _may_gain(b, machine))
    estimated: Known = {}
    graphs: dict[tuple[Blocks, ...], Graph] = {}

    def cycles(chosen: tuple[Blocks, ...]) -> float:
        own = graphs[chosen] = in_blocks_of_four_bits(before, chosen)
        version = versions(own, machine)[-1]
        plan = decide(version.graph, machine, version.assigned)
        return estimate_plan(plan, machine_of([plan], machine), known=estimated).cycles

    chosen = min(_choices(found), key=lambda own: (cycles(own), len(own)))
    if not chosen:
        return FourBits(graph)
    return FourBits(graphs[chosen], tuple(_stored(b, sizes[b.value]) for b in chosen))


def _may_gain(b: Blocks, machine: Machine) -> bool:
    """Whether the bytes that are saved take as long to come as a share of the products takes."""
    saved = (DType.F32.bytes - DType.I4.bits / 8) / machine.memory_bytes_per_cycle
    computing = b.rows / (machine.fma_per_cycle * machine.width)
    return saved >= machine.coefficients.stored_types.least_gain * computing


def _choices(found: tuple[Blocks, ...]) -> Iterator[tuple[Blocks, ...]]:
    """The weights of so many rows at most, each choice once, and none."""
    for rows in sorted({b.rows for b in found}, reverse=True):
        yield tuple(b for b in found if b.rows <= rows)
    yield ()


def _stored(b: Blocks, size: int) -> StoredAs:
    """What a constant takes: its numbers, two to a byte, and a scale for each block.

    One that others keep saves nothing.
    """
    taken = -(-size // 2) + DType.F32.bytes * -(-size // b.length)
    whole = 0 if b.keep else size * DType.F32.bytes
    return StoredAs(b.value, str(DType.I4), taken, whole - taken)
