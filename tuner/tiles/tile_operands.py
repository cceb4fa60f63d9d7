"""The operands of a tile's reductions: what of them its cost asks, and how they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from rutc.base.record import record
from rutc.tensor_ir.expr import Apply, Cast, index_names, operations, reads, walk
from rutc.tensor_ir.facts.products import narrow_factors
from rutc.tensor_ir.machine import PAIR, QUAD, Machine
from rutc.tensor_ir.terms import factors
from rutc.tuner.access import Reduction, Shape, Touch
from rutc.tuner.tiles.tile_loads import far_load, is_sorted, spread_bytes, vector_load, widened
from rutc.tuner.tiles.tile_registers import (
    LONGEST_UNROLLED,
    multiplications,
    product_registers,
    state_registers,
)


def products_per_cycle(r: Reduction, machine: Machine) -> float:
    """Vectors that are multiplied and added to states in a cycle, a product in each lane."""
    paired = r.pairs_bf16(machine)
    return PAIR * machine.bf16_pairs_per_cycle if paired else machine.fma_per_cycle


@record
class Vectors:
    """An operand that differs between lanes, and how vectors of it are loaded."""

    touch: Touch
    far: float | None
    """Loads that take as long as that of a vector; None: one does."""
    far_each: float | None
    """The same of a vector of a single lane."""
    halves: bool
    """Whether what is loaded for one step holds the next one's, too."""

    @staticmethod
    def of(t: Touch, vector: str, order: list[str], machine: Machine) -> Vectors:
        """How vectors along a loop are loaded."""
        near, stride = t.near(vector), t.strides.get(vector, 0)
        return Vectors(
            t,
            None if near else vector_load(t, vector, machine),
            None if near else far_load(stride, 1),
            t.nibbles and t.depends(order[-1]),
        )


@record
class Operands:
    """What the cost of a tile asks of a reduction, whatever vectors and rows the tile has."""

    reduction: Reduction
    steps: float
    """Iterations of its loops, products that are added up together as one."""
    passing: float
    """Products of a step whose bytes may have to be waited for.

    What is added apart takes so much arithmetic that it hides all but those of one."""
    pair: int
    """Products of bf16 that are one."""
    loaded: int
    """Vectors of an operand that are loaded for one in a step: two for pairs of sums of bytes."""
    across: tuple[Touch, ...]
    """What it reads that is the same for all lanes."""
    along: tuple[Vectors, ...]
    """What differs between the lanes."""
    signs: tuple[Touch, ...]
    """What has the signs of factors whose magnitudes are multiplied."""
    widened: tuple[Touch, ...]
    """The bytes of which pairs of products need numbers of 16 bits."""
    moved: tuple[Touch, ...]
    """What is loaded with what lies between its elements."""
    spread: float
    """Bytes of the first cache that a step takes of what differs."""
    width_each: int
    """Registers that hold a vector of its states."""
    multiplications: int
    products: int
    """Registers of sums of products."""
    converting: int
    """Operations that make numbers of a vector of the only operand that differs between lanes."""
    scalars: int
    """Operations whose results are the same for all lanes."""
    chooses: bool
    """Whether it sums no product, but what products are chosen from."""
    products_per_cycle: float
    latency: float
    """Cycles until a sum can be added to again."""
    inner: Mapping[str, int]
    """The innermost loop, if it is short enough to be written out, and its iterations."""

    @staticmethod
    def of(
        r: Reduction,
        shape: Shape,
        vector: str,
        shares: Mapping[str, float],
        order: list[str],
        machine: Machine,
    ) -> Operands:
        """What is asked of a reduction whose loops do such `shares` of their iterations, or all.

        All reductions' loops are in that order.
        """
        products = prod(shape.extents[x.var] * shares.get(x.var, 1.0) for x in r.loops)
        neighbours = 1 if r.nearest is None else shape.extents[r.nearest]
        together = neighbours / ceil(neighbours / r.together(machine))
        loaded = max(r.together(machine) // QUAD, 1) if r.adds_apart(machine) else 1
        passing = loaded if r.adds_apart(machine) else together
        along = tuple(t for t in r.reads if t.depends(vector))
        inner = {v: shape.extents[v] for v in order[-1:]}
        return Operands(
            reduction=r,
            steps=products / together,
            passing=passing,
            pair=PAIR if r.pairs_bf16(machine) else 1,
            loaded=loaded,
            across=tuple(t for t in r.reads if not t.depends(vector)),
            along=tuple(Vectors.of(t, vector, order, machine) for t in along),
            signs=tuple(t for t in along if t.buffer in _signs(r)),
            widened=widened(r, vector, machine),
            moved=tuple(t for t in r.reads if is_sorted(t, vector)),
            spread=max((passing * spread_bytes(t, r, machine) for t in along), default=1),
            width_each=state_registers(r),
            multiplications=multiplications(r, machine),
            products=product_registers(r, machine),
            converting=_converting(r, along, vector, machine),
            scalars=_scalars(r, vector, machine),
            chooses=all(len(factors(e)) == 1 for e in r.update.elements),
            products_per_cycle=products_per_cycle(r, machine),
            # Sums of pairs wait for an addition of integers only, which takes a cycle.
            latency=1 if r.adds_apart(machine) else machine.fma_latency,
            inner={v: extent for v, extent in inner.items() if extent <= LONGEST_UNROLLED},
        )


def _signs(r: Reduction) -> frozenset[str]:
    """The buffers of signs that factors of a sum's products have of their own."""
    found = narrow_factors(r.update) or ()
    return frozenset(x.value for f in found for x in f.reads[1:])


def _scalars(r: Reduction, vector: str, machine: Machine) -> int:
    """The operations of a product that have one result for all lanes.

    What makes a number of a narrow one is among them, unless narrow ones are multiplied.
    """
    kinds = Apply if r.together(machine) > 1 else Apply | Cast
    parts = (x for e in r.update.elements for x in walk(e) if isinstance(x, kinds))
    return sum(vector not in index_names(x) and any(reads(x)) for x in parts)


def _converting(r: Reduction, along: tuple[Touch, ...], vector: str, machine: Machine) -> int:
    """The operations on a vector before it is multiplied, where that is all that is read.

    What is made of several operands may be computed once for all tiles, or summed without scales.
    """
    if len(along) != 1 or r.together(machine) > 1 or len(r.update.elements) != 1:
        return 0
    parts = [f for f in factors(r.update.elements[0]) if vector in index_names(f)]
    return sum(map(operations, parts))
