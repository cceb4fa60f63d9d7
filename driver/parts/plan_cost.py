"""Rough counts of what a plan's groups cost, before they have schedules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil

from rutc.base.record import record
from rutc.graph_opt.plan import (
    Choose,
    Fail,
    FillHalo,
    InTurn,
    Invoke,
    Joined,
    Learn,
    Plan,
    PlanStep,
    Repeat,
    RepeatWhile,
    Run,
    Write,
)
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    Cast,
    Expr,
    IndexValue,
    Lit,
    children,
    index_names,
    reads,
    walk,
)
from rutc.tensor_ir.facts.products import terms_of
from rutc.tensor_ir.indices.affine import (
    ZERO,
    FloorDiv,
    Index,
    Range,
    Size,
    maximum,
    minimum,
    plain,
    product,
)
from rutc.tensor_ir.indices.polynomial import of_atom
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.nodes import Nest
from rutc.tensor_ir.running import running_nest
from rutc.tuner.arms import period_of
from rutc.tuner.sharing import MOST_CYCLES

ARMS = 1024
"""How many bodies with arms are remembered with what they take: those of a large model."""
Extents = Mapping[str, Index]


def cycles_of(plan: Plan, machine: Machine) -> Index:
    """A rough count of cycles of one run on one thread, a formula of the graph's symbols."""
    return _cycles(plan.steps, dict(plan.graph.dims), dict(plan.graph.symbols), machine)


def _cycles(
    steps: tuple[PlanStep, ...], extents: Extents, sizes: Mapping[str, Range], machine: Machine
) -> Index:
    work, total = ZERO, ZERO
    for s in steps:
        match s:
            case Run(group):
                work += work_of(group, extents).written
                total += machine.coefficients.sharing.gather * _gathers(group, extents)
            case Repeat():
                total += _cycles(s.steps, extents, sizes, machine) * s.trips
            case RepeatWhile() | InTurn():
                total += _cycles(s.steps, extents, sizes, machine)
            case Choose():
                then, orelse = (_cycles(x, extents, sizes, machine) for x in (s.then, s.orelse))
                total += maximum(then, orelse, sizes)
            case Write(node):
                total += product(extents[d] for d in node.dims)
            case FillHalo() | Invoke() | Learn() | Joined() | Fail():
                pass
    return total + work // int(machine.width * machine.fma_per_cycle)


def no_more(x: Index, limit: int, symbols: Mapping[str, Range]) -> Index | None:
    """`x` where it is less than `limit`, and `limit` or more where it is not, as a run can count.

    c*m*n + a // d + k   ->   min(limit, min(limit, c*m)*n) + min(d*limit, a) // d + k

    Factors may be below 0 where something has no indices; they count as 0. None if terms have
    negative coefficients, or factors are too large for that.
    """
    if _is_counted(x, symbols):
        return x
    if x.const < 0:
        return None
    total = Index.of(x.const)
    for factors, coefficient in x.terms:
        if coefficient < 0:
            return None
        term = Index.of(min(coefficient, limit))
        for a in factors:
            factor: Index | None = of_atom(a)
            if isinstance(a, FloorDiv) and a.den.is_const:
                few = no_more(a.num, limit * a.den.value, symbols)
                factor = None if few is None else few // a.den
            if factor is None:
                return None
            term = term * maximum(factor, 0, symbols)
            if not _is_counted(term, symbols):
                return None
            term = minimum(limit, term, symbols)
        total += term
    return total


def _is_counted(x: Index, symbols: Mapping[str, Range]) -> bool:
    bounds = x.bounds(symbols)
    return bounds is not None and bounds[1] <= MOST_CYCLES


@record
class Work:
    """Floating-point operations of groups, formulas of the graph's symbols.

    Of arms that an index chooses, as a filter's transform has one for every point, `written` has
    all: code of many arms takes longer than what a run does of it, so threads are worth more.
    `done` has each as often as it is chosen.
    """

    written: Index = ZERO
    done: Index = ZERO

    def __add__(self, other: Work) -> Work:
        return Work(self.written + other.written, self.done + other.done)

    def times(self, trips: Index) -> Work:
        """That of so many trips."""
        return Work(self.written * trips, self.done * trips)


def work_of(group: Group, extents: Extents) -> Work:
    """The work of a group: arithmetic in bodies, and one per reduced element.

    All products of the parts of two numbers are one operation, and so is a product of rounded ones.
    """
    extents = _with_slices(group, extents)
    # Most stages are of the same points.
    counts: dict[tuple[str, ...], tuple[int, int]] = {}
    for n in group.stages:
        taken = n.out.dims if running_nest(n, extents.__getitem__) is not None else n.dims
        written, done = _operations(n, extents)
        before = counts.get(taken, (0, 0))
        counts[taken] = before[0] + written, before[1] + done
    total = Work()
    for taken, (written, done) in counts.items():
        points = product(extents[d] for d in taken)
        total += Work(points * written, points * done)
    return total


def _operations(n: Nest, extents: Extents) -> tuple[int, int]:
    """The operations (written, done) of an element."""
    if any(a.dtype is DType.BF16 for a, _ in terms_of(n.reducer, n.body) or ()):
        written = done = 1
    else:
        written = sum(sum(map(_is_operation, walk(e))) for e in n.body)
        done = written
        if any(_chooses(e) for e in n.body):
            named = sorted(frozenset().union(*map(index_names, n.body)))
            done = _of_arms(n.body, tuple([(d, plain(extents[d])) for d in named if d in extents]))
    reduced = 1 if n.reducer is not None else 0
    return written + reduced, done + reduced


def _is_operation(e: Expr) -> bool:
    return isinstance(e, Apply | Cast) and e.dtype.is_float


def _chooses(e: Expr) -> bool:
    """Whether there may be arms in an expression that an index chooses among."""
    return any(isinstance(x, Apply) and x.op == "eq" for x in walk(e))


@lru_cache(ARMS)
def _of_arms(body: tuple[Expr, ...], sizes: tuple[tuple[str, Size], ...]) -> int:
    """The operations done of a body with arms; `sizes` are those of what its indices name.

    Plans are asked three times what their groups take, and alternatives share most of them.
    """
    return ceil(sum(_done(e, dict(sizes)) for e in body))


def _done(e: Expr, sizes: Mapping[str, Size]) -> float:
    """The operations of an element, on average."""
    if not _chooses(e):
        return sum(map(_is_operation, walk(e)))
    found = 0.0
    waiting, seen = [e], set[int]()
    while waiting:
        x = waiting.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        arms = _arms(x, sizes)
        found += sum(share * _done(arm, sizes) for arm, share in arms)
        if not arms:
            found += _is_operation(x)
            waiting += children(x)
    return found


def _arms(e: Expr, sizes: Mapping[str, Size]) -> list[tuple[Expr, float]]:
    """The arms that an index chooses among, and how often each is; none of other expressions.

    select(i == 0, a, select(i == 1, b, c)), i of 6   ->   a: 1/6, b: 1/6, c: 4/6
    """
    found: list[tuple[Expr, float]] = []
    left, chosen = 1.0, None
    while True:
        match e:
            case Apply(
                op="select",
                args=(Apply(op="eq", args=(IndexValue(index=index), Lit())), arm, rest),
            ) if chosen in (None, index) and (period := period_of(index, sizes)[1]):
                share = min(1 / period, left)
                found.append((arm, share))
                left, chosen, e = left - share, index, rest
            case _:
                return [*found, (e, left)] if found else []


def _gathers(group: Group, extents: Extents) -> Index:
    """Elements that a group reads at places that depend on data."""
    extents = _with_slices(group, extents)
    total = ZERO
    for n in group.stages:
        found = sum(not isinstance(c, Index) for e in n.body for r in reads(e) for _, c in r.coords)
        total += product(extents[d] for d in n.dims) * found
    return total


def _with_slices(group: Group, extents: Extents) -> Extents:
    if not group.slices:
        return extents
    return {**extents, **{s.dim: Index.of(s.size) for s in group.slices}}
