"""From plans to an artifact's parts: every group's kernel, the weights' image, the host program.

The steps come first, which name kernels by ids. While they are made, other processes make code of
the kernels that are known, of equal ones (up to names, see `tensor_ir.canonical`) once. At last
comes the program, of the steps and a table of what was made: kernels say how they want constants
packed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rutc.base.record import record
from rutc.driver.parts.compilation import Compilation, OnDraft
from rutc.driver.parts.compile_job import Chooser, Made
from rutc.driver.parts.launches import KernelFacts, Launched, Pending
from rutc.driver.parts.outline import Outline, outline
from rutc.driver.parts.plan_cost import cycles_of, no_more
from rutc.driver.parts.plan_ports import ports_of
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.emit.host_program import host_steps as host
from rutc.emit.host_program.kernel_call import KernelCall, KernelId
from rutc.emit.host_program.program import Program
from rutc.errors import InternalError
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.graph import bound_symbols
from rutc.tensor_ir.indices.affine import (
    ONE,
    ZERO,
    Index,
    Size,
    fewest,
    maximum,
    minimum,
    plain,
    typical,
)
from rutc.tensor_ir.indices.ranges import without_common
from rutc.tensor_ir.machine import Machine
from rutc.tuner.sharing import large, share


@record
class PlanVersion:
    """A plan of a version of a model, which runs where a size, `where`, is positive."""

    plan: Plan
    where: Size


def plans_of(plan: Plan, earlier: Iterable[PlanVersion]) -> list[Plan]:
    """All plans of a model: those of `earlier` versions, and the last one."""
    return [*(version.plan for version in earlier), plan]


@dataclass
class Built:
    """The parts of an artifact. `flops` are those of a run at common sizes."""

    program: Program
    objects: list[bytes]
    facts: list[KernelFacts]
    flops: int
    outline: Outline


@dataclass
class Builder:
    """Builds a model for one machine: the first `earlier` version that applies, or its plan."""

    plan: Plan
    machine: Machine
    name: str
    jobs: int
    keep_subnormals: bool = False
    on_kernel: Callable[[int, int], None] = lambda done, total: None
    on_routines: Callable[[Sequence[str]], None] = lambda routines: None
    on_draft: OnDraft | None = None
    earlier: tuple[PlanVersion, ...] = ()
    chooser: Chooser | None = None
    """Gives kernels other schedules than their default ones."""
    code: bool = True
    """Whether kernels become machine code: texts alone are drafted without it, all anew."""
    once: bool = False
    """Whether nobody builds from these graphs again: what kernels have of constants is enough."""

    def build(self) -> Built:
        """Schedule, emit and compile all kernels, pack all weights, write the host program.

        Raises:
            InternalError: the plans have different inputs, outputs, sizes or strings.
        """
        plans = plans_of(self.plan, self.earlier)
        cycles = [cycles_of(p, self.machine) for p in plans]
        self.machine = _machine_of(cycles, self.plan, self.machine)
        weights = Weights()
        parts: list[PlanSteps] = []
        with Compilation(
            self.machine,
            self.jobs,
            chooser=self.chooser,
            code=self.code,
            on_kernel=self.on_kernel,
            on_draft=self.on_draft,
        ) as kernels:
            for number, p in enumerate(plans):
                first = sum(len(x.pending) for x in parts)
                parts.append(PlanSteps(p, weights, number, first, on_pending=kernels.add))
            _check_alike(parts)
            self.on_routines(host.routines(chain.from_iterable(p.steps for p in parts)))
            packing = _Packing(parts, self.once)
            launched: dict[KernelId, Launched] = {}
            for pending, code in kernels.made(packing.pack):
                packing.pack(pending, code)
                launched[pending.id] = packing.owner(pending).launched(pending, code)
        own = [[launched[pending.id] for pending in part.pending] for part in parts]
        made = [x.made for x in launched.values()]
        graph = self.plan.graph
        bound = bound_symbols(graph.nodes)
        machine = self.machine.with_matrices({name for m in made for name in m.matrices})
        ports = ports_of(self.plan)
        program = Program(
            name=self.name,
            inputs=ports.inputs,
            outputs=ports.outputs,
            states=ports.states,
            arena_bytes=self._arena_bytes(plans),
            steps=self._steps(parts),
            symbols=tuple((s, r) for s, r in graph.symbols if s not in bound),
            bound=tuple((s, r) for s, r in graph.symbols if s in bound),
            weights=tuple(weights.images),
            weight_bytes=weights.bytes,
            features=tuple(sorted(machine.features)),
            keep_subnormals=self.keep_subnormals,
            small=self._small(cycles),
            strings=self.plan.strings,
            kernels=tuple(chain.from_iterable(map(self._calls, own, plans))),
        )
        objects = list({m.symbol: m.code for m in made}.values())
        facts = [x.facts for x in launched.values()]
        conditions = [str(version.where) for version in self.earlier]
        told = outline(self.machine, parts, conditions, launched)
        return Built(program, objects, facts, self._common_flops(parts), told)

    def _calls(self, launched: Sequence[Launched], plan: Plan) -> Iterator[KernelCall]:
        """What the program's table has of a plan's launches."""
        sizes = dict(plan.graph.symbols)
        turns = share([x.shared for x in launched], self.machine)
        for x, n in zip(launched, turns, strict=True):
            own = ONE if x.tasks == 1 else large(x.work, x.moved, sizes, self.machine)
            yield x.call(plain(n * own))

    def _steps(self, parts: Sequence[PlanSteps]) -> tuple[host.Step, ...]:
        """The plan's steps, or before them those of the first earlier version that applies."""
        *others, steps = (p.steps for p in parts)
        for version, own in zip(reversed(self.earlier), reversed(others), strict=True):
            steps = (host.Branch(version.where, own, steps),)
        return steps

    def _small(self, cycles: Sequence[Index]) -> Size:
        """1 where a run is so small that no thread is woken for it, and 0 where it is not.

        It takes so many cycles, which sizes of inputs decide. What others decide is large, and what
        no run can count.
        """
        graph, least = self.plan.graph, least_shared(self.machine)
        sizes, bound = dict(graph.symbols), bound_symbols(graph.nodes)
        few = without_common(sizes)
        most = ZERO
        for c in cycles:
            if fewest(c, few) >= least or not c.names().isdisjoint(bound):
                return 0
            counted = no_more(c, least, sizes)
            if counted is None:
                return 0
            most = maximum(most, counted, sizes)
        return plain(ONE - minimum(ONE, most // least, sizes))

    def _arena_bytes(self, plans: Sequence[Plan]) -> Size:
        """What the plan asks for that asks for most: one runs at a time."""
        most, *others = (p.arena_bytes for p in plans)
        for bytes_ in others:
            most = plain(maximum(most, bytes_, dict(self.plan.graph.symbols)))
        return most

    def _common_flops(self, parts: Sequence[PlanSteps]) -> int:
        """Floating-point operations at common sizes, of the plan that runs there.

        Other sizes may be common for that plan: one for many rows is not made for a batch of 1.
        """
        sizes = dict(self.plan.graph.symbols)
        applies = (typical(a.where, sizes) > 0 for a in self.earlier)
        runs = next((p for p, yes in zip(parts, applies, strict=False) if yes), parts[-1])
        return sum(typical(p.work.done, runs.sizes | sizes) for p in runs.pending)


class _Packing:
    """Constants packed for kernels in any order, while others are still being made.

    They get their places later, in the order of the kernels. What is read `once` is freed when all
    kernels that read it have what they want of it.
    """

    def __init__(self, parts: Sequence[PlanSteps], once: bool) -> None:
        self._owners = {pending.id: part for part in parts for pending in part.pending}
        self._done: set[KernelId] = set()
        read = (data for part in parts for p in part.pending for data in part.constants_of(p))
        self._left = Counter(map(id, read)) if once else None

    def owner(self, pending: Pending) -> PlanSteps:
        """The steps that launch a kernel."""
        return self._owners[pending.id]

    def pack(self, pending: Pending, made: Made) -> None:
        """Packs the constants of a kernel that is made, once."""
        if pending.id in self._done:
            return
        self._done.add(pending.id)
        part = self.owner(pending)
        for b in part.operands(pending, made):
            if b.name in part.constants:
                part.weights.pack(part.constants[b.name], b.layout)
        if self._left is None:
            return
        for data in part.constants_of(pending):
            self._left[id(data)] -= 1
            if not self._left[id(data)]:
                data.forget()


def least_shared(machine: Machine) -> int:
    """Cycles of a run from which on several threads pay."""
    return max(1, machine.coefficients.sharing.wakes * machine.wake_cycles)


def machine_of(plans: Sequence[Plan], machine: Machine) -> Machine:
    """The machine that kernels of a model are for.

    Threads have no parts of one that is small at common sizes, unless its sizes are fixed.
    """
    return _machine_of([cycles_of(p, machine) for p in plans], plans[-1], machine)


def _machine_of(cycles: Sequence[Index], plan: Plan, machine: Machine) -> Machine:
    """The same, of plans that take so many cycles."""
    shared = not plan.graph.symbols or _is_large(cycles, plan, machine)
    return machine if shared else machine.alone()


def _is_large(cycles: Sequence[Index], plan: Plan, machine: Machine) -> bool:
    """Whether runs are commonly so large that it pays to wake threads for them."""
    many = without_common(dict(plan.graph.symbols))
    return max(typical(c, many) for c in cycles) >= least_shared(machine)


def _check_alike(parts: Sequence[PlanSteps]) -> None:
    """Raises InternalError if the plans are not of one model."""
    found = [
        (
            ports_of(part.plan),
            without_common(dict(part.plan.graph.symbols)),
            bound_symbols(part.plan.graph.nodes),
            part.plan.strings,
        )
        for part in parts
    ]
    if any(x != found[0] for x in found):
        raise InternalError("plans of one model differ in their inputs, outputs, sizes or strings")
