"""What `rutc explain` shows of a kernel is what compiling makes of it."""

from contextlib import ExitStack

import pytest

from rutc.driver.parts.build import Builder, machine_of, plans_of
from rutc.driver.parts.launches import KernelFacts
from rutc.driver.plans.planning import planned
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.importer import import_model
from rutc.models.zoo import zoo
from rutc.report.explain import launches
from tests.lock.models import Locked, models
from tests.lock.texts import TARGETS

SMALL = {m.name: m for m in models(["operator ", "kernel ", "layer "])}
WHOLE = {m.name: m for m in models([model.name for model in zoo()])}


def _same(model: Locked, target: str) -> None:
    with ExitStack() as stack:
        try:
            path = stack.enter_context(model.file())
        except UserError as error:
            pytest.skip(f"the zoo's model cannot be had here: {error}")
        graph = import_model(path, shapes=model.shapes, dims=model.dims)
    plan, earlier = planned(versions(graph, TARGETS[target]), TARGETS[target])
    machine = machine_of(plans_of(plan, earlier), TARGETS[target])
    compiled: dict[str, KernelFacts] = {}
    builder = Builder(plan, TARGETS[target], "m", 1, earlier=earlier, code=False)
    for fact in builder.build().facts:
        if fact.plan == len(earlier):
            assert fact.name not in compiled
            compiled[fact.name] = fact
    parts: dict[str, list[tuple[str, ...]]] = {}
    shown = launches(plan, machine)
    assert shown.keys() == {g.name for g in plan.groups()}
    for launch in shown.values():
        parts.setdefault(launch.launch, []).append(launch.schedule)
    for name, schedules in parts.items():
        steps = [step for schedule in schedules for step in schedule]
        made = compiled[name].schedule.split("; ") if compiled[name].schedule else []
        # Kernels that fill halos come first in some chains, and belong to no group.
        assert steps == made[len(made) - len(steps) :]
        assert len(steps) == len(made) or "halo" in name


@pytest.mark.sampled(40)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SMALL)
def test_schedules_of_small_models_are_those_that_are_compiled(name: str, target: str) -> None:
    _same(SMALL[name], target)


@pytest.mark.sampled(120)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WHOLE)
def test_schedules_of_the_zoo_are_those_that_are_compiled(name: str, target: str) -> None:
    _same(WHOLE[name], target)
