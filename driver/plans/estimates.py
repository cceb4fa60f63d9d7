"""How long the kernels of a plan take, by the cost of each with its default schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rutc.base.record import record
from rutc.driver.parts import compile_job
from rutc.driver.parts.compile_job import CompileJob, joined
from rutc.driver.parts.launches import Pending
from rutc.driver.parts.lowered_kernels import Lowered
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.emit.host_program import host_steps as host
from rutc.graph_opt.plan import Joined, Plan
from rutc.tensor_ir.cost import Estimate, Summary, estimate, summarise
from rutc.tensor_ir.graph import used
from rutc.tensor_ir.indices.affine import Range, product, typical
from rutc.tensor_ir.indices.ranges import with_common, without_common
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


Facts = tuple[Summary, dict[str, str]]
"""A kernel's summary, and the buffers of its job that its arguments are."""
Known = dict[CompileJob, Facts]
"""What is known of jobs."""


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
    known = {} if known is None else known
    touching = [
        None
        if reading is not None and reading.isdisjoint(p.canonical.buffers.values())
        else _summary(p.job, machine, known)
        for p in steps.pending
    ]
    return _estimates(steps, touching, machine, steps.sizes)


Sizes = Mapping[str, int]


class AtSizes:
    """Estimates of plans of one model in runs at any sizes.

    Their kernels have the schedules for common sizes. Kernels of several plans that differ in what
    is common alone have one schedule, that of the first of them.
    """

    def __init__(self, machine: Machine) -> None:
        """Of plans for a machine."""
        self._machine = machine
        self._kernels: dict[CompileJob, compile_job.Joined] = {}
        self._facts: dict[tuple[CompileJob, tuple[int | None, ...]], Facts] = {}

    def plan(self, plan: Plan) -> PlanAtSizes:
        """The estimates of a plan."""
        return PlanAtSizes(self, plan, self._machine)

    def known(self, pending: Pending, sizes: Sizes) -> Facts:
        """What is known of a launch where symbols of its plan have these sizes."""
        kernels = tuple(
            replace(k, symbols=tuple(without_common(dict(k.symbols)).items()))
            for k in pending.job.kernels
        )
        job = replace(pending.job, kernels=kernels)
        if job not in self._kernels:
            self._kernels[job] = joined(pending.job, self._machine)
        kernel, names = self._kernels[job], pending.canonical.dims
        own = kernel.kernel.symbols
        key = job, tuple([sizes.get(names.get(n, n)) for n, _ in own])
        if key not in self._facts:
            ranges = tuple(
                [(n, with_common(r, size)) for (n, r), size in zip(own, key[1], strict=True)]
            )
            sized = replace(kernel.kernel, symbols=ranges)
            self._facts[key] = summarise(sized, self._machine), _origin(kernel)
        return self._facts[key]


class PlanAtSizes:
    """Estimates of a plan at any sizes."""

    def __init__(self, known: AtSizes, plan: Plan, machine: Machine) -> None:
        """Of a plan for a machine, with what is known of such plans."""
        self._known = known
        self._machine = machine
        self._steps = PlanSteps(plan, Weights())
        self._cycles: dict[tuple[tuple[str, int], ...], float] = {}

    def cycles(self, sizes: Sizes) -> float:
        """What a run on one thread is estimated to take where symbols have these sizes."""
        key = tuple(sizes.items())
        if key not in self._cycles:
            facts = [self._known.known(pending, sizes) for pending in self._steps.pending]
            symbols = {n: with_common(r, sizes.get(n)) for n, r in self._steps.sizes.items()}
            found = _estimates(self._steps, facts, self._machine, symbols)
            self._cycles[key] = found.cycles
        return self._cycles[key]


def _estimates(
    steps: PlanSteps,
    touching: Sequence[Facts | None],
    machine: Machine,
    sizes: Mapping[str, Range],
) -> PlanEstimate:
    """The estimates of launches of which something is known, at common sizes of these ranges."""
    runs = [0.0] * len(steps.pending)
    _count(steps.steps, 1.0, runs, sizes)
    near = _Recent(machine, _parts(steps.plan, sizes))
    found: list[LaunchEstimate] = []
    for turn in range(2):
        for pending, times, facts in zip(steps.pending, runs, touching, strict=True):
            if facts is None:
                near.touch(_sizes(pending))
                continue
            summary, origin = facts
            values = {n: pending.canonical.buffers[origin[n]] for n in summary.arguments}
            levels = near.levels(values)
            near.touch([(v, summary.arguments[n]) for n, v in values.items()])
            if turn:
                own = estimate(summary, machine, levels=levels)
                touched = frozenset(values.values())
                stored = frozenset(values[n] for n in summary.stored)
                found.append(LaunchEstimate(pending.name, times, own, touched, stored))
    return PlanEstimate(tuple(found))


def _summary(job: CompileJob, machine: Machine, known: Known) -> Facts:
    """What is known of a job, or is found out now."""
    found = known.get(job)
    if found is None:
        kernel = joined(job, machine)
        known[job] = found = summarise(kernel.kernel, machine), _origin(kernel)
    return found


def _origin(kernel: compile_job.Joined) -> dict[str, str]:
    return {name: buffer for name, (buffer, _) in kernel.packings.items()}


def _count(
    steps: Sequence[host.Step], times: float, runs: list[float], sizes: Mapping[str, Range]
) -> None:
    """Note how often each launch is done; of branches, both are."""
    for s in steps:
        match s:
            case host.Launch(kernel=number):
                runs[int(number)] += times
            case host.Branch(then=then, orelse=orelse):
                _count(then, times, runs, sizes)
                _count(orelse, times, runs, sizes)
            case host.Repeat(trips=trips, body=body):
                _count(body, times * max(typical(trips, sizes), 0), runs, sizes)
            # What launches do in turn is a part of their tasks.
            case host.InTurn(body=body) | host.While(body=body):
                _count(body, times, runs, sizes)
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


def _parts(plan: Plan, sizes: Mapping[str, Range]) -> dict[str, dict[str, float]]:
    """The values that lie in the memory of others, by these, with their bytes."""
    found = dict[str, dict[str, float]]()
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

    def levels(self, values: Mapping[str, str]) -> dict[str, int]:
        """By the arguments that the values are: the cache that has each, from 0.

        As many as there are caches: memory.
        """
        wanted = {part for v in values.values() for part in self.parts.get(v, (v,))}
        missing, total = len(wanted), 0.0
        found = dict.fromkeys(wanted, len(self.caches))
        for name in reversed(self.sizes):
            if not missing:
                break
            total += self.sizes[name]
            if name in wanted:
                found[name] = sum(total > cache for cache in self.caches)
                missing -= 1
        return {n: max(found[part] for part in self.parts.get(v, (v,))) for n, v in values.items()}

    def touch(self, values: Sequence[tuple[str, float]]) -> None:
        """Note that values are touched now."""
        for value, whole in values:
            for name, size in self.parts.get(value, {value: whole}).items():
                self.sizes.pop(name, None)
                self.sizes[name] = size
