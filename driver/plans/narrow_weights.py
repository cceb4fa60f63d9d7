"""Which weights are stored in fewer bits: those whose kernels then take less time.

    %w : f32{k,n} = const [k, n] ..
    %y{m,n} = sum{k} %x[m, k] * %w[k, n]      ->    store %w as bf16      where m is small

A product with few rows waits for its weights, of which fewer bytes then come from memory. One with
many rows does not wait, and has more to do if it widens them: its weights stay as they are. Where a
run counts the rows, and nobody said how many are common, weights of many rows only have to be no
slower by more than what others have to gain: a run may have few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from rutc.base.record import record
from rutc.driver.options import AUTO, BF16, FP16, INT8, W4
from rutc.driver.parts.build import machine_of
from rutc.driver.plans.estimates import Known, estimate_plan
from rutc.graph_opt.alternatives.split_precision import SAID_ROUNDED
from rutc.graph_opt.assignment import Assignment, Stored
from rutc.graph_opt.decide.prepared import Prepared
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.decide.retype import retyped
from rutc.graph_opt.decide.stored_types import (
    STEPS,
    factors_of_sums,
    holds,
    keeps,
    step_dims,
    weights,
)
from rutc.graph_opt.exact_places import places
from rutc.graph_opt.plan import Illegal, Plan
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.graph import Graph, Nest, used, walk_nodes
from rutc.tensor_ir.indices.affine import Index, typical
from rutc.tensor_ir.machine import Machine

TYPES = {
    "fp32": DType.F32,
    BF16: DType.BF16,
    FP16: DType.F16,
    "w8": DType.I8,
    W4: DType.F32,
    INT8: DType.F32,
    AUTO: DType.F16,
}
"""The types that plans may store weights in, by the names of precisions.

`AUTO` has the one of 16 bits that loses least: factors that are rounded to bf16 are so already.
"""


def with_narrow_weights(found: Realisation, dtype: DType, machine: Machine) -> Realisation:
    """An assignment with those weights in a type whose kernels are faster by it.

    A type is given to all that may have it first, and taken from those that gain too little until
    all that are left gain enough, by the estimates of the kernels that read them, on one thread.
    """
    usual, small = found.prepared.extents, found.prepared.few
    waiting = waiting_weights(found.prepared, usual, dtype, machine)
    # Those of small runs, where these are not all runs that are thought of.
    few = set[str]()
    if small != usual:
        few = waiting_weights(found.prepared, small, dtype, machine)
    chosen = list(_candidates(found, dtype, waiting | few))
    if not chosen:
        return found
    machine = machine_of([found.plan], machine)
    least = machine.coefficients.stored_types.least_gain
    known: Known = {}
    reading = frozenset(s.value for s in chosen)
    before = estimate_plan(found.plan, machine, known=known, reading=reading).launches
    while chosen:
        other = stored_so(found, chosen)
        if other is None:
            chosen = [s for s in chosen if stored_so(found, [s]) is not None]
            other = stored_so(found, chosen)
        if other is None:
            break
        after = estimate_plan(other.plan, machine, known=known, reading=reading).launches
        cycles = {s.value: 0.0 for s in chosen}
        gained = dict.fromkeys(cycles, 0.0)
        for a, b in zip(before, after, strict=True):
            for name in a.values & cycles.keys():
                cycles[name] += a.cycles
                gained[name] += a.cycles - b.cycles
        share = {s.value: -least if s.value in few else least for s in chosen}
        kept = [s for s in chosen if gained[s.value] > share[s.value] * cycles[s.value]]
        if kept == chosen:
            return other
        chosen = kept
    return found


def stored_so(found: Realisation, types: Sequence[Stored]) -> Realisation | None:
    """The plan with values in these types; None if it is not legal."""
    other = found.but(retyped(found, (*found.assignment.types, *types)))
    try:
        other.plan  # noqa: B018
    except Illegal:
        return None
    return other


def exact_values(graph: Graph, assignment: Assignment) -> frozenset[str]:
    """The values that lose more by a type than its rounding.

    Other algorithms than the sums' own make them on the way to these, where they enter differences
    of large numbers, or they tell places.
    """
    made = tuple(f"{value}." for value, _ in assignment.algorithms)
    nests = (n for n in walk_nodes(graph.nodes) if isinstance(n, Nest))
    between = {n.out.name for n in nests if made and n.out.name.startswith(made)}
    return places(walk_nodes(graph.nodes)) | between


def _candidates(found: Realisation, dtype: DType, waiting: set[str]) -> Iterator[Stored]:
    """Yields those of the `waiting` weights that lose no more by a type than its rounding, in it.

    Those of sums that are `exact_values` do.
    """
    graph = found.prepared.graph
    exact = exact_values(graph, found.assignment)
    needed = {
        v
        for n in walk_nodes(graph.nodes)
        if isinstance(n, Nest) and n.out.name in exact
        for v in used(n)
    }
    for n in weights(found.prepared):
        by = step_dims(found.copied, n) if dtype is DType.I8 else ()
        stored = Stored(n.out.name, dtype, by)
        if n.out.name not in waiting - needed:
            continue
        if holds(stored, n) and keeps(stored, n):
            yield stored


def waiting_weights(
    prepared: Prepared, sizes: Mapping[str, int], dtype: DType, machine: Machine
) -> set[str]:
    """The weights that may gain enough by a type, where sums of products are over such `sizes`.

    What is gained is at most the time in which the bytes come that are saved.
    """
    points: dict[str, int] = {}
    for s, r in factors_of_sums(prepared.graph):
        own = prod(sizes[d] for d in s.dims)
        points[r.value] = min(own, points.get(r.value, own))
    least = machine.coefficients.stored_types.least_gain
    found: set[str] = set()
    for n in weights(prepared):
        saved = n.data.array.size * (DType.F32.bytes - dtype.bytes) / machine.memory_bytes_per_cycle
        computing = points[n.out.name] / (machine.fma_per_cycle * machine.width)
        if saved >= least * computing:
            found.add(n.out.name)
    return found


@record
class StoredAs:
    """A value that a plan stores in fewer bits than it is computed in: the bytes that this takes.

    `saved` are those that it would take more; where sizes are symbolic, at common ones.
    """

    value: str
    type: str
    bytes: int
    saved: int


def stored_types(plans: Sequence[Plan]) -> tuple[StoredAs, ...]:
    """What the plans of a model store in fewer bits."""
    found: dict[tuple[str, str], StoredAs] = {}
    for plan in plans:
        types = plan.assignment.types if plan.assignment is not None else ()
        narrow = [(s.value, s.dtype) for s in types]
        narrow += [(v, plan.values[v].dtype) for v in _rounded_constants(plan)]
        for value, dtype in narrow:
            own = [value, value + STEPS] if dtype is DType.I8 else [value]
            taken = sum(_bytes(plan, v) for v in own)
            whole = _elements(plan, value) * DType.F32.bytes
            found[value, str(dtype)] = StoredAs(value, str(dtype), taken, whole - taken)
    return tuple(found.values())


def _rounded_constants(plan: Plan) -> Iterator[str]:
    """The constants that sums whose factors are rounded have as factors."""
    algorithms = plan.assignment.algorithms if plan.assignment is not None else ()
    sums = {value for value, name in algorithms if name == SAID_ROUNDED}
    for n in walk_nodes(plan.graph.nodes):
        if isinstance(n, Nest) and n.out.name in sums:
            yield from sorted(plan.graph.constants.keys() & set(used(n)))


def _elements(plan: Plan, value: str) -> int:
    return typical(Index.of(plan.layouts[value].size), dict(plan.graph.symbols))


def _bytes(plan: Plan, value: str) -> int:
    return _elements(plan, value) * plan.values[value].dtype.bytes
