"""Which computed values are stored in bf16: those whose kernels wait for them.

    %h : f32{c,x,y} = max(..)        ->    store %h as bf16        where h is large

What does not fit a core's second cache comes from farther away, half as many bytes in bf16. Of what
passes between kernels in turn one index has to fit, which is read before the next one is made.
Where sums are rounded anyway, a value is rounded as well if what it takes to move is much of what
its kernels take: each rounding costs accuracy. Beside sums of bytes it costs none that shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from rutc.driver.parts.build import machine_of
from rutc.driver.plans.estimates import estimate_plan
from rutc.driver.plans.narrow_weights import exact_values, stored_so
from rutc.graph_opt.assignment import Stored
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.plan import InTurn
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.graph import Nest, walk_nodes
from rutc.tensor_ir.indices.affine import Index, typical
from rutc.tensor_ir.machine import Machine


def with_narrow_values(found: Realisation, machine: Machine, *, every: bool = False) -> Realisation:
    """An assignment with large values in bf16: `every` one, or those that save enough time.

    The estimate of a value's kernels is compared with the time in which the bytes come that are
    saved, each time that one of them reads or writes it.
    """
    plan = found.plan
    sizes = dict(_large(found, machine))
    if not sizes:
        return found
    launches = estimate_plan(
        plan, machine_of([plan], machine), known={}, reading=frozenset(sizes)
    ).launches
    least = 0.0 if every else machine.coefficients.stored_types.least_moved
    chosen: list[Stored] = []
    for name, size in sizes.items():
        # To fill a halo touches nothing else; one launch alone has it in slices, which stay near.
        own = [x for x in launches if name in x.values and len(x.values) > 1]
        saved = len(own) * size * (1 - DType.BF16.bytes / DType.F32.bytes)
        moved = saved / machine.memory_bytes_per_cycle
        if len(own) > 1 and moved >= least * sum(x.cycles for x in own):
            chosen.append(Stored(name, DType.BF16))
    all_of_them = stored_so(found, chosen)
    if all_of_them is not None:
        return all_of_them
    for one in chosen:
        found = stored_so(found, [one]) or found
    return found


def _large(found: Realisation, machine: Machine) -> Iterator[tuple[str, int]]:
    """Yields the computed values that the second cache does not hold, and their bytes.

    Those that lose more by a type than its rounding are left out, and those of which kernels in
    turn have no more at a time than it holds.
    """
    plan = found.plan
    exact = exact_values(plan.graph, found.assignment)
    within = {n.out.name for n in walk_nodes(plan.graph.nodes) if isinstance(n, Nest)}
    symbols = dict(plan.graph.symbols)
    turning = (x for s in plan.steps if isinstance(s, InTurn) for x in s.near)
    near = {x.value for x in turning if typical(Index.of(x.bytes), symbols) <= machine.l2}
    for name in sorted(within & plan.layouts.keys() - exact - near):
        size = typical(Index.of(plan.layouts[name].size), symbols) * DType.F32.bytes
        wide = plan.values[name].dtype is DType.F32
        if wide and size > machine.l2:
            yield name, size
