"""What is planned of a model: its graph, and the plans of its versions, usual ones or others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.base.record import record
from rutc.driver.options import AUTO, BF16, FP32, GREEDY, INT8, SEARCH, USUAL, Options
from rutc.driver.parts.build import PlanVersion
from rutc.driver.plans.narrow_values import with_narrow_values
from rutc.driver.plans.narrow_weights import TYPES, with_narrow_weights
from rutc.driver.plans.plan_by_estimate import EstimateSearch
from rutc.driver.plans.plans_by_size import Made, plan_of_one, plans_by_size
from rutc.driver.plans.refine import refined
from rutc.emit.targets import target_named
from rutc.graph_opt.algorithms import Algorithms, Symbols
from rutc.graph_opt.alternatives.bf16_pairs import multiplies_bf16
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.decide import Change
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.pipeline import OnStep
from rutc.graph_opt.plan import Plan
from rutc.graph_opt.versions import Version, versions
from rutc.importer import import_model
from rutc.importer.declared_states import with_states
from rutc.importer.reading.external import ModelFolder
from rutc.tensor_ir import Graph
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.machine import Machine
from rutc.tuner.choice import OnRecord

if TYPE_CHECKING:
    from rutc.driver.tuning.plan_records import RecordedPlans


def machine_for(options: Options) -> Machine:
    """The machine that a model is compiled for."""
    machine = target_named(options.target).machine
    return machine.without_bf16() if options.keep_subnormals else machine


def imported(model: Path, options: Options, folder: ModelFolder | None = None) -> Graph:
    """The graph of a model as it is compiled, before its precision and all rewrites.

    Raises:
        UserError: the model or an option is at fault.
    """
    graph = import_model(
        model,
        shapes=options.shapes,
        dims=options.dims,
        values=options.values,
        folder=folder,
    )
    return with_states(graph, options.states)


def versions_for(
    graph: Graph, machine: Machine, options: Options, on_step: OnStep | None = None
) -> tuple[Version, ...]:
    """The versions of an imported graph, in its precision, as they are compiled."""
    return versions(graph, machine, options.leeway, on_step=on_step)


def in_types_of(machine: Machine, precision: str) -> Change | None:
    """What gives the values of a plan the types of a precision; None: nothing does."""
    dtype = TYPES[precision]
    rounding = precision in (BF16, INT8, AUTO) and multiplies_bf16(machine)
    if dtype is DType.F32 and not rounding:
        return None

    def change(found: Realisation) -> Realisation:
        if dtype is not DType.F32:
            found = with_narrow_weights(found, dtype, machine)
        return with_narrow_values(found, machine, every=precision == INT8) if rounding else found

    return change


def searched(machine: Machine, seconds: float) -> Change:
    """What searches by estimates for a better plan.

    It does so for `seconds`; for 0 as far as on any machine. Plans whose sizes a run tells stay as
    they are: estimates are of one size.
    """

    def change(found: Realisation) -> Realisation:
        if found.graph.symbols:
            return found
        return EstimateSearch(found, machine).run(seconds).found

    return change


def planned(
    found: Sequence[Version],
    machine: Machine,
    precision: str = FP32,
    search: float | None = None,
) -> tuple[Plan, tuple[PlanVersion, ...]]:
    """The plan of the last of the versions, and those of the earlier ones.

    Better ones are searched for by estimates, so many seconds each, if `search` is given.
    """
    change = in_types_of(machine, precision)

    def improve(found: Realisation) -> Realisation:
        usual = refined(found, machine)
        return usual if search is None else searched(machine, search)(usual)

    return decide(found[-1].graph, machine, found[-1].assigned, change, improve), tuple(
        PlanVersion(decide(v.graph, machine, v.assigned, change, improve), v.where)
        for v in found
        if v.where is not None
    )


RECORD = "record"
"""Besides `PLANS`, how a plan is made that is on record."""


@record
class PlanSource:
    """How a plan was made, and why it is not one on record or of a search, where that was asked."""

    way: str
    told: OnRecord | None = None
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.told is not None:
            return f"on record, {self.told}"
        text = "found by a search by estimates" if self.way == SEARCH else USUAL
        return "; ".join([text, *self.why])

    def facts(self) -> dict[str, object]:
        """For the manifest, which is the same whatever was tried and is not taken."""
        return {"from": self.way, "record": self.told and asdict(self.told)}


@record
class ModelPlan:
    """What is compiled of a model: its plan, those of `earlier` versions, where it comes from.

    The `usual` plan is what it would be without records and searches.
    """

    plan: Plan
    earlier: tuple[PlanVersion, ...]
    algorithms: Algorithms
    source: PlanSource
    usual: Plan


def model_plan(
    graph: Graph,
    found: Sequence[Version],
    machine: Machine,
    options: Options,
    algorithms: Algorithms,
    recorded: RecordedPlans | None = None,
) -> ModelPlan:
    """The plan of an imported graph, of its versions: on record, searched for, or the usual one."""
    usual, earlier = planned(found, machine, options.precision)
    why: list[str] = []
    if recorded is not None and not earlier:
        taken = recorded(graph, usual)
        if not isinstance(taken, str):
            source = PlanSource(RECORD, taken.told)
            return ModelPlan(taken.plan, (), taken.algorithms, source, usual)
        why += [taken] if taken else []
    made = Made(found[-1], usual)
    if not earlier:
        earlier = _by_size(plan_of_one, graph, made, machine, options, algorithms)
        why += ["runs of one example have one of their own"] if earlier else []
    if options.search_seconds is None:
        source = PlanSource(GREEDY, None, tuple(why))
        return ModelPlan(usual, earlier, algorithms, source, usual)
    if graph.symbols:
        why.append("plans of symbolic sizes are not searched by estimates")
        if not earlier:
            others = partial(plans_by_size, differ=algorithms.differ)
            earlier = _by_size(others, graph, made, machine, options, algorithms)
            why += ["small or large sizes have one of their own"] if earlier else []
        source = PlanSource(GREEDY, None, tuple(why))
        return ModelPlan(usual, earlier, algorithms, source, usual)
    plan, earlier = planned(found, machine, options.precision, options.search_seconds)
    way = SEARCH
    if plan.assignment == usual.assignment:
        way = GREEDY
        why.append("a search by estimates found none that is faster")
    return ModelPlan(plan, earlier, algorithms, PlanSource(way, None, tuple(why)), usual)


def _by_size(
    sought: Callable[..., tuple[PlanVersion, ...]],
    graph: Graph,
    usual: Made,
    machine: Machine,
    options: Options,
    algorithms: Algorithms,
) -> tuple[PlanVersion, ...]:
    """The plans that are `sought` for other sizes than common ones.

    Their algorithms are told of as well.
    """
    told: dict[Symbols, Algorithms] = {}

    def make(sized: Graph) -> Version | None:
        own = Algorithms(machine, options.leeway)
        version, *others = versions_for(sized, machine, options, own)
        if others:
            return None
        told[version.graph.symbols] = own
        return version

    def plan(version: Version) -> Plan:
        return planned((version,), machine, options.precision)[0]

    plans = sought(graph, usual, machine, make=make, plan=plan)
    for each in plans:
        algorithms.also(told[each.plan.graph.symbols])
    return plans
