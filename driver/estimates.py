"""How long the kernels of a plan take, by the cost of each with its default schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rutc.base.record import record
from rutc.driver.compile_job import CompileJob, joined
from rutc.driver.launches import Pending
from rutc.driver.lowered import Lowered
from rutc.driver.plan_steps import PlanSteps
from rutc.driver.weights import Weights
from rutc.emit import program as host
from rutc.graph_opt.plan import Joined, Plan
from rutc.tensor_ir.affine import product, typical
from rutc.tensor_ir.cost import Estimate, Summary, estimate, summarise
from rutc.tensor_ir.graph import used
from rutc.tensor_ir.machine import Machine


@record
class LaunchEstimate:
    """A launch, how often a run does it, and the estimate of one time."""

    name: str
    runs: float
    estimate: Estimate
    values: frozenset[str]
    """The values of the plan that it reads or writes."""
    stored: frozenset[str]
    """Those of them that it writes."""

    @property
    def cycles(self) -> float:
        """Of all times."""
        return self.runs * self.estimate.cycles


@record
class PlanEstimate:
    """The launches of a plan in order, at common sizes."""

    launches: tuple[LaunchEstimate, ...]

    @property
    def cycles(self) -> float:
        """Of a run."""
        return sum(x.cycles for x in self.launches)

    def __str__(self) -> str:
        lines = [f"{self.cycles:.0f} cycles"]
        ordered = sorted(self.launches, key=lambda x: -x.cycles)
        lines += [
            f"{x.cycles:12.0f}  {x.name} ({x.runs:g} times, bound by {x.estimate.bound_by})"
            for x in ordered
        ]
        return "\n".join(lines)


Known = dict[CompileJob, tuple[Summary, dict[str, str]]]
"""What is known of jobs: their summaries, and the buffers that their arguments are."""


def estimate_plan(
    plan: Plan,
    machine: Machine,
    *,
    known: Known | None = None,
    reading: frozenset[str] | None = None,
    lowered: Lowered | None = None,
) -> PlanEstimate:
    """The estimates of a plan's launches, or of those that touch one of the values `reading`.

    They are of one thread. Routines and copies count for nothing.

    A launch finds its operands in the cache that holds what was touched since they last were, in
    the run before this one if need be. What is `known` of jobs is not found out again, and what
    was `lowered` for plans of graphs that have the same nests is not lowered again.
    """
    steps = PlanSteps(plan, Weights(), lowered=lowered)
    runs = [0.0] * len(steps.pending)
    _count(steps.steps, 1.0, runs, steps)
    known = {} if known is None else known
    near = _Recent(machine, _parts(plan))
    touching = [
        None
        if reading is not None and reading.isdisjoint(p.canonical.buffers.values())
        else _summary(p.job, machine, known)
        for p in steps.pending
    ]
    found: list[LaunchEstimate] = []
    for turn in range(2):
        for pending, times, facts in zip(steps.pending, runs, touching, strict=True):
            if facts is None:
                near.touch(_sizes(pending))
                continue
            summary, origin = facts
            values = {n: pending.canonical.buffers[origin[n]] for n in summary.arguments}
            levels = {n: near.level(v) for n, v in values.items()}
            near.touch([(v, summary.arguments[n]) for n, v in values.items()])
            if turn:
                own = estimate(summary, machine, levels=levels)
                touched = frozenset(values.values())
                stored = frozenset(values[n] for n in summary.stored)
                found.append(LaunchEstimate(pending.name, times, own, touched, stored))
    return PlanEstimate(tuple(found))


def _summary(job: CompileJob, machine: Machine, known: Known) -> tuple[Summary, dict[str, str]]:
    """What is known of a job, or is found out now."""
    found = known.get(job)
    if found is None:
        kernel = joined(job, machine)
        origin = {name: buffer for name, (buffer, _) in kernel.packings.items()}
        known[job] = found = summarise(kernel.kernel, machine), origin
    return found


def _count(steps: Sequence[host.Step], times: float, runs: list[float], plan: PlanSteps) -> None:
    """Note how often each launch is done; of branches, both are."""
    for s in steps:
        match s:
            case host.Launch(kernel=number):
                runs[int(number)] += times
            case host.Branch(then=then, orelse=orelse):
                _count(then, times, runs, plan)
                _count(orelse, times, runs, plan)
            case host.Repeat(trips=trips, body=body):
                _count(body, times * max(typical(trips, plan.sizes), 0), runs, plan)
            # What launches do in turn is a part of their tasks.
            case host.InTurn(body=body) | host.While(body=body):
                _count(body, times, runs, plan)
            case _:
                pass


def _sizes(pending: Pending) -> list[tuple[str, float]]:
    """The values that a launch touches, with all of their bytes."""
    kernels = pending.job.kernels
    # Sizes have the names of the job.
    sizes = {name: bounds for k in kernels for name, bounds in k.symbols}
    args = {b.name: b for k in kernels for b in k.args}
    return [
        (pending.canonical.buffers[b.name], float(typical(b.bytes, sizes))) for b in args.values()
    ]


def _parts(plan: Plan) -> dict[str, dict[str, float]]:
    """The values that lie in the memory of others, by these, with their bytes."""
    sizes, found = dict(plan.graph.symbols), dict[str, dict[str, float]]()
    for s in plan.steps:
        if isinstance(s, Joined):
            own = found[s.node.out.name] = {}
            for v in used(s.node):
                size = plan.values[v].dtype.bytes * typical(
                    product(plan.graph.extents[d] for d in plan.values[v].dims), sizes
                )
                own.update(found.get(v, {v: size}))
    return found


class _Recent:
    """Values by when they were touched last; of those that have parts, the parts."""

    def __init__(self, machine: Machine, parts: Mapping[str, Mapping[str, float]]) -> None:
        self.caches = (machine.l1, machine.l2, machine.l3)
        self.sizes: dict[str, float] = {}
        self.parts = parts

    def level(self, value: str) -> int:
        """The cache that has the value, from 0; as many as there are: memory."""
        if value in self.parts:
            return max(map(self.level, self.parts[value]))
        total = 0.0
        for name in reversed(self.sizes):
            total += self.sizes[name]
            if name == value:
                return sum(total > cache for cache in self.caches)
        return len(self.caches)

    def touch(self, values: Sequence[tuple[str, float]]) -> None:
        """Note that values are touched now."""
        for value, whole in values:
            for name, size in self.parts.get(value, {value: whole}).items():
                self.sizes.pop(name, None)
                self.sizes[name] = size
