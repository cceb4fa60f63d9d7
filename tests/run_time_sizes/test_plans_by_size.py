"""Plans for small sizes and for large ones: which there are, when they run, what they compute."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.narrow import forest
from rutc.driver.options import Options
from rutc.driver.parts.build import Builder
from rutc.driver.plans.estimates import AtSizes, estimate_plan
from rutc.driver.plans.planning import ModelPlan, imported, model_plan, versions_for
from rutc.emit.linking.library import build_library
from rutc.emit.targets import target_named
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.choices import with_algorithms
from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import realise
from rutc.graph_opt.versions import beyond
from rutc.runtime import load
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.indices.ranges import common_sizes, with_common
from rutc.tensor_ir.machine import Machine
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import Reference
from tests.close import assert_close
from tests.window_model import window_model

CHANNELS = 32
COMMON = 16
SIDES = {"h": (4, 512, 1, COMMON), "w": (4, 512, 1, COMMON)}


def of_machine(least_gain: float, target: str = "x86-64-v3") -> Machine:
    """A machine on which a plan has to gain so much."""
    machine = target_named(target).machine
    plans = replace(machine.coefficients.plans, least_gain=least_gain)
    coefficients = replace(machine.coefficients, plans=plans)
    return replace(machine, coefficients=coefficients)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows over pictures of any size."""
    w = np.random.default_rng(0).random((CHANNELS, CHANNELS, 3, 3), np.float32)
    path = tmp_path_factory.mktemp("windows") / "windows.onnx"
    return window_model(path, ["n", CHANNELS, "h", "w"], w)


def planned(model: Path, machine: Machine, plan: str = "search") -> ModelPlan:
    """The plans of a model."""
    options = Options(target="x86-64-v3", dims={"n": 1, **SIDES}, plan=plan)
    graph = imported(model, options)
    algorithms = Algorithms(machine, options.leeway)
    found = versions_for(graph, machine, options, algorithms)
    return model_plan(graph, found, machine, options, algorithms)


@pytest.fixture(scope="module")
def found(model: Path) -> ModelPlan:
    """The plans of the model where estimates are believed that gain anything or lose little."""
    return planned(model, of_machine(-4.0))


def size(x: object, h: int, w: int) -> int:
    assert isinstance(x, Index)
    return int(x.evaluate({"h": h, "w": w}))


def test_small_sizes_have_a_plan_of_their_own(found: ModelPlan) -> None:
    plan = found.earlier[0].plan
    assert plan.assignment.algorithms != found.plan.assignment.algorithms
    common = common_sizes(dict(plan.graph.symbols))
    assert common == {"h": 8, "w": 8}
    where = found.earlier[0].where
    assert size(where, 8, 8) > 0
    assert size(where, COMMON, COMMON) <= 0
    assert size(where, 4, 16) == size(where, 16, 4) == size(where, 8, 8) > size(where, 8, 9)
    assert "small or large sizes have one of their own" in str(found.source)


def test_a_plan_has_to_gain_clearly(model: Path) -> None:
    assert not planned(model, of_machine(1.0)).earlier
    assert not planned(model, of_machine(-4.0), "greedy").earlier


def test_sizes_that_have_several_plans_have_none_of_their_own(model: Path) -> None:
    """Sums in parts, which pay for many rows, are none at common sizes, as they are filtered."""
    machine = of_machine(-4.0, "x86-64-v4")
    able = replace(machine, features=machine.features | {"amx-tile", "amx-bf16"})
    options = Options(target="x86-64-v4", dims={"n": 1, **SIDES})
    graph = imported(model, options)
    small = tuple((name, with_common(limits, 8)) for name, limits in graph.symbols)
    assert len(versions_for(graph, able, options)) == 1
    assert len(versions_for(replace(graph, symbols=small), able, options)) == 2
    assert not planned(model, able).earlier


def test_plans_print_and_are_made_again(found: ModelPlan, model: Path) -> None:
    machine = of_machine(-4.0)
    imports = imported(model, Options(target="x86-64-v3", dims={"n": 1, **SIDES}))
    for plan in (found.plan, found.earlier[0].plan):
        said = parse_assignment(str(plan.assignment))
        assert said == plan.assignment
        sized = replace(imports, symbols=plan.graph.symbols)
        graph = with_algorithms(sized, machine, Assigned(said.algorithms))
        again = realise(prepare(graph), said, machine)
        assert [*again.groups()] == [*plan.groups()]
        assert again.layouts == plan.layouts


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_compute_the_same_at_all_sizes(
    found: ModelPlan, model: Path, tmp_path: Path, threads: int
) -> None:
    machine = of_machine(-4.0)
    built = Builder(found.plan, machine, "m", 1, earlier=found.earlier).build()
    build_library(built.program, built.objects, tmp_path / "m.so", {})
    where = found.earlier[0].where
    edge = next(h for h in range(4, 513) if size(where, h, 8) <= 0)
    reference = Reference(model, 1)
    with load(tmp_path / "m.so", threads=threads) as session:
        for h in (4, edge - 1, edge, COMMON, edge - 1):
            x = np.random.default_rng(h).random((1, CHANNELS, h, 8), np.float32) - 0.5
            (wanted,) = reference.run({"x": x}).values()
            (got,) = session.run(None, {"x": x})
            assert_close(got, np.asarray(wanted), level=Level.MODEL)


def test_estimates_at_common_sizes_are_those_of_the_plan(found: ModelPlan) -> None:
    machine = of_machine(-4.0)
    common = common_sizes(dict(found.plan.graph.symbols))
    own = AtSizes(machine).plan(found.plan)
    assert own.cycles(common) == pytest.approx(estimate_plan(found.plan, machine).cycles)
    small, large = own.cycles({"h": 4, "w": 4}), own.cycles({"h": 256, "w": 256})
    assert small < own.cycles(common) < large


def test_where_runs_are_beyond_some_places() -> None:
    few = {"a": (1, 8), "b": (0, 512)}
    small, large = beyond(few, 100, 40, 10), beyond(few, 100, 200, 1000)
    assert small is not None
    assert large is not None
    assert str(small) == str(Index.of(40) - Index.of("a") * Index.of("b"))
    assert str(large) == str(Index.of("a") * Index.of("b") - 200)
    for a, b in ((1, 0), (1, 39), (8, 5), (1, 200), (1, 201), (8, 512)):
        sizes = {"a": a, "b": b}
        assert (small.evaluate(sizes) > 0) == (a * b < 40)
        assert (large.evaluate(sizes) > 0) == (a * b > 200)


def test_common_sizes_keep_their_plan_whatever_estimates_say() -> None:
    few = {"a": (1, 512)}
    for places in (1, 5, 100, 400):
        small, large = beyond(few, 100, places, 10), beyond(few, 100, places, 300)
        assert small is not None
        assert large is not None
        assert small.evaluate({"a": 100}) <= 0 < small.evaluate({"a": 10})
        assert large.evaluate({"a": 100}) <= 0 < large.evaluate({"a": 300})


def test_places_of_open_sizes_are_no_too_large_numbers() -> None:
    most = 1 << 31
    opened = dict.fromkeys("abc", (0, most))
    where = beyond(opened, 100, 40, 10)
    assert where is not None
    bounds = where.bounds(opened)
    assert bounds is not None
    assert bounds[0] > -(1 << 62)
    assert where.evaluate({"a": most, "b": most, "c": most}) <= 0
    assert where.evaluate({"a": most, "b": 0, "c": 1}) > 0
    assert where.evaluate({"a": 39, "b": 1, "c": 1}) > 0
    assert beyond(opened, most, most // 2, 10) is None


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trees, through which a row goes quickly, and so many rows as a run has."""
    case = forest(1, 100, 5)
    made = case.build()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    path = tmp_path_factory.mktemp("trees") / "trees.onnx"
    onnx.save(made, path)
    return path


def planned_trees(trees: Path, machine: Machine, **options: Any) -> ModelPlan:
    chosen = Options(target="x86-64-v3", **options)
    graph = imported(trees, chosen)
    algorithms = Algorithms(machine, chosen.leeway)
    found = versions_for(graph, machine, chosen, algorithms)
    return model_plan(graph, found, machine, chosen, algorithms)


def test_one_example_of_little_work_has_a_plan_of_its_own(trees: Path, tmp_path: Path) -> None:
    """Its vectors go along trees, of which there are many, not along rows."""
    machine = target_named("x86-64-v3").machine
    found = planned_trees(trees, machine)
    (own,) = found.earlier
    assert own.plan.assignment != found.plan.assignment
    where = own.where
    assert isinstance(where, Index)
    assert [where.evaluate({"rows": n}) > 0 for n in (0, 1, 2, 9)] == [True, True, False, False]
    assert "runs of one example have one of their own" in str(found.source)
    built = Builder(found.plan, machine, "m", 1, earlier=found.earlier).build()
    build_library(built.program, built.objects, tmp_path / "m.so", {})
    reference = Reference(trees, 1)
    with load(tmp_path / "m.so", threads=1) as session:
        for rows in (1, 2, 9, 1):
            x = np.random.default_rng(rows).standard_normal((rows, 20)).astype(np.float32)
            x[0, :3] = np.nan, np.inf, -np.inf
            (wanted,) = reference.run({"x": x}).values()
            (got,) = session.run(None, {"x": x})
            assert_close(got, np.asarray(wanted), level=Level.MODEL)


def test_one_example_has_the_usual_plan_where_its_own_gains_little(trees: Path) -> None:
    assert not planned_trees(trees, of_machine(1.0)).earlier


def test_one_example_has_the_usual_plan_where_that_is_for_one(trees: Path) -> None:
    assert not planned_trees(trees, of_machine(-4.0), dims={"rows": (0, 512, 1, 1)}).earlier
