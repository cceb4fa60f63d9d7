"""The search for plans: what is changed together, what is timed, and what compilations take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import rutc
from rutc.driver.options import Options
from rutc.driver.parts.launches import Pending
from rutc.driver.parts.lowered_kernels import Lowered
from rutc.driver.parts.plan_steps import PlanSteps
from rutc.driver.parts.weights import Weights
from rutc.driver.plans.planning import planned
from rutc.driver.timing import plan_bench
from rutc.driver.timing import side_by_side as beside
from rutc.driver.timing.answering_process import Unanswered
from rutc.driver.timing.launch_times import Enough, Profiled, run_in_turns, written
from rutc.driver.timing.plan_bench import PlanBench, PlanChange, PlanLaunch, PlanRuns
from rutc.driver.timing.side_by_side import Ratio, thread_counts
from rutc.driver.tuning import plan_search, search_rounds
from rutc.driver.tuning.plan_records import PLAN, RecordedPlans, plan_task, realised, row_of_plan
from rutc.driver.tuning.plan_search import Kept, PlanMemory, PlanSearch, PlanSpace
from rutc.driver.tuning.schedule_search import SearchLimits
from rutc.driver.tuning.search_terms import Searched
from rutc.driver.tuning.tune_model import tune_model
from rutc.driver.tuning.tuning_records import origin_of
from rutc.emit.targets import native_target
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives import Offer
from rutc.graph_opt.alternatives.split_precision import SAID_ROUNDED
from rutc.graph_opt.assignment import Assignment
from rutc.graph_opt.decide.combine import combined
from rutc.graph_opt.decide.neighbours import legal, neighbours
from rutc.graph_opt.decide.realise import Realisation
from rutc.importer import import_model
from rutc.tensor_ir import Graph
from rutc.tuner.database.database import Database
from rutc.verify.judging.compare import Value
from rutc.verify.judging.tolerance import Level
from tests.cli.conftest import build
from tests.close import assert_close
from tests.precision.test_bf16_pairs import PAIRS

MACHINE = native_target().machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of several kernels, which take some microseconds."""
    path = tmp_path_factory.mktemp("plans") / "layers.onnx"
    rng = np.random.default_rng(0)
    shapes = {"u": (8, 256), "v": (256, 256), "w": (256, 128)}
    weights = {n: rng.standard_normal(s).astype(np.float32) / 16 for n, s in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["a"], name="first"),
        helper.make_node("Softmax", ["a"], ["b"], name="shares", axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["c"], name="second"),
        helper.make_node("Tanh", ["c"], ["d"], name="curve"),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="third"),
    ]
    onnx.save(build(nodes, weights), path)
    return path


@pytest.fixture(scope="module")
def graph(model: Path) -> Graph:
    """The graph as it is imported."""
    return import_model(model)


@pytest.fixture(scope="module")
def usual(graph: Graph) -> Realisation:
    """Its usual plan."""
    plan, _ = planned(versions(graph, MACHINE), MACHINE)
    assert plan.assignment is not None
    found = realised(graph, plan.assignment, MACHINE)
    assert found is not None
    assert str(found.plan.assignment) == str(plan.assignment)
    return found


def changed(usual: Realisation) -> Realisation:
    """Another plan for it, with other kernels."""
    bench = Lowered()
    before = {PlanLaunch.of(p) for p in steps_of(usual, bench)}
    for n in neighbours(usual):
        other = legal(usual, n) if n.kind in ("kernel", "layout") else None
        if other is None:
            continue
        if {PlanLaunch.of(p) for p in steps_of(other, bench)} != before:
            return other
    raise AssertionError("the plan has no neighbours")


def steps_of(found: Realisation, lowered: Lowered) -> tuple[Pending, ...]:
    """What a plan launches."""
    steps = PlanSteps(found.plan, Weights(), lowered=lowered)
    return steps.pending


def test_what_was_lowered_before_is_what_is_lowered_now(usual: Realisation) -> None:
    known = Lowered()
    steps_of(usual, known)
    for n in list(neighbours(usual))[::7]:
        other = legal(usual, n)
        if other is not None:
            again, anew = steps_of(other, known), steps_of(other, Lowered())
            assert [p.job for p in again] == [p.job for p in anew], str(n)
            assert [p.canonical for p in again] == [p.canonical for p in anew], str(n)
            assert [p.name for p in again] == [p.name for p in anew], str(n)


def test_changes_that_are_combined_are_all_there(usual: Realisation) -> None:
    base = usual.assignment
    pairs = 0
    some = [n.assignment for n in neighbours(usual) if n.kind in ("layout", "kernel")]
    for a, b in zip(some, some[5:], strict=False):
        both = combined(base, (a, b))
        assert combined(base, (a,)) == a
        for name, arrangement in a.arrangements.items():
            if base.arrangements.get(name) != arrangement and (
                b.arrangements.get(name) == base.arrangements.get(name)
            ):
                assert both.arrangements[name] == arrangement
        gone = set(base.groups) - (set(a.groups) & set(b.groups))
        new = (set(a.groups) | set(b.groups)) - set(base.groups)
        assert set(both.groups) == (set(base.groups) - gone) | new
        pairs += 1
    assert pairs > 10


def test_sequences_keep_their_order() -> None:
    base = Assignment("g", {}, recomputed=("a", "b", "c"))
    first = replace(base, recomputed=("a", "x", "b", "c"))
    second = replace(base, recomputed=("a", "c", "y"))
    assert combined(base, (first, second)).recomputed == ("a", "x", "c", "y")


class Clock:
    """Runs libraries, and tells that those but the first take so much of its time.

    On several threads they may take another `shared` part.
    """

    def __init__(self, share: float, shared: float | None = None) -> None:
        self.share, self.shared = share, share if shared is None else shared

    def __call__(
        self,
        profiled: Sequence[Profiled],
        given: Mapping[str, Value],
        seconds: float,
        enough: Enough,
    ) -> list[np.ndarray]:
        found = run_in_turns(profiled, given, 0.0)
        rng = np.random.default_rng(0)
        times = [1000 * (1 + 0.001 * rng.random(us.shape)) for us in found]
        share = self.share if profiled[0].threads == 1 else self.shared
        return [times[0], *(share * t for t in times[1:])]


def search(
    graph: Graph,
    usual: Realisation,
    folder: Path,
    seed: int = 0,
    known: Callable[[Assignment], frozenset[str]] = lambda base: frozenset(),
) -> tuple[PlanSearch, list[tuple[PlanChange, Ratio | None]]]:
    """A search, and what it has tried."""
    tried: list[tuple[PlanChange, Ratio | None]] = []
    memory = PlanMemory(known, lambda c, r, base: tried.append((c, r)))
    made = PlanSearch(graph, usual, PlanRuns(MACHINE, folder), memory=memory, seed=seed)
    return made, tried


@pytest.mark.parametrize("only", [None, ("c", "y"), ()])
def test_factors_are_rounded_of_no_other_sums_than_may_be(
    graph: Graph,
    usual: Realisation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    only: tuple[str, ...] | None,
) -> None:
    def told(self: PlanSearch, bench: PlanBench, change: str, *rest: object) -> str:
        return change

    monkeypatch.setattr(PlanSearch, "_with_algorithms", lambda self, new: usual)
    monkeypatch.setattr(PlanSearch, "_candidate", told)
    space = PlanSpace(only=None if only is None else frozenset(only))
    found = PlanSearch(graph, usual, PlanRuns(PAIRS, tmp_path), space)
    own = replace(usual.assignment, algorithms=(("y", SAID_ROUNDED),))
    bench = SimpleNamespace(found=SimpleNamespace(assignment=own))
    changes = list(found._by_algorithm(bench))  # type: ignore[arg-type]
    rounded = {str(c) for c in changes if SAID_ROUNDED in str(c)}
    others = {"a", "c"} if only is None else {"c"} & set(only)
    assert rounded == {f"sum of %{value}: {SAID_ROUNDED}" for value in others}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((), ["c: two", "c: one", "y: one", "a: one"]),
        # A sum that has a good algorithm has no use for one that is a fifth slower, nor for none.
        ((("c", "two"),), ["y: one", "a: one"]),
        ((("c", "one"), ("y", "one")), ["c: two", "c: as it stands", "y: as it stands", "a: one"]),
    ],
)
def test_algorithms_of_the_longest_sums_are_tried_first(
    graph: Graph,
    usual: Realisation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: tuple[tuple[str, str], ...],
    expected: list[str],
) -> None:
    def told(self: PlanSearch, bench: PlanBench, change: str, *rest: object) -> str:
        return change

    known = [("a", "one", 9, 10), ("c", "one", 28, 30), ("c", "two", 10, 30), ("y", "one", 19, 20)]
    known += [("y", "two", 25, 20), ("nothing", "one", 0, 0)]
    made = tuple(Offer(v, algorithm, float(x), float(y)) for v, algorithm, x, y in known)
    monkeypatch.setattr(plan_search, "offers", lambda *args, **named: made)
    monkeypatch.setattr(PlanSearch, "_with_algorithms", lambda self, new: usual)
    monkeypatch.setattr(PlanSearch, "_candidate", told)
    found = PlanSearch(graph, usual, PlanRuns(MACHINE, tmp_path))
    bench = SimpleNamespace(found=usual.but(replace(usual.assignment, algorithms=own)))
    changes = list(found._by_algorithm(bench))  # type: ignore[arg-type]
    assert changes == [f"sum of %{each}" for each in expected]


def test_what_is_faster_stays(
    graph: Graph, usual: Realisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "run_in_turns", Clock(0.2))
    found, tried = search(graph, usual, tmp_path)
    list(found.run(inf, 3))
    assert found.outcome.tried == len(tried) == 3
    assert found.outcome.steps
    assert found.outcome.best.assignment != usual.assignment
    assert set(found.outcome.runs) == set(thread_counts())
    assert all(r.faster for r in found.outcome.runs.values())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shared", [1.01, 100.0])
def test_what_is_faster_on_one_thread_only_does_not_stay(
    graph: Graph,
    usual: Realisation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: float,
) -> None:
    monkeypatch.setattr(beside, "thread_counts", lambda cpu: (1, 2))
    monkeypatch.setattr(plan_search, "thread_counts", lambda cpu: (1, 2))
    monkeypatch.setattr(beside, "run_in_turns", Clock(0.2, shared))
    found, tried = search(graph, usual, tmp_path)
    list(found.run(inf, 3))
    assert any(r is not None and r.faster for _, r in tried)
    # A change may also be fewer launches, which are faster where each takes a little longer.
    assert all(len(s.candidate.new) < len(s.candidate.gone) for s in found.outcome.steps)
    if shared > 2 or not found.outcome.steps:
        assert not found.outcome.steps
        assert found.outcome.best.assignment == usual.assignment


def test_nothing_is_tried_where_no_launch_took_any_time(
    graph: Graph, usual: Realisation, tmp_path: Path
) -> None:
    found, _ = search(graph, usual, tmp_path)
    bench = SimpleNamespace(found=usual, us={}, total_us=0.0)
    assert not list(found._by_neighbour(bench))


def test_what_is_not_faster_does_not(
    graph: Graph, usual: Realisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "run_in_turns", Clock(1.0))
    found, tried = search(graph, usual, tmp_path)
    list(found.run(inf, 3))
    assert len(tried) == 3
    # A change may also be fewer launches.
    slower = [c for c, r in tried if r is not None and len(c.new) >= len(c.gone)]
    assert not any(s.candidate in slower for s in found.outcome.steps)


def test_time_in_which_nothing_is_found_is_left_for_schedules(
    graph: Graph, usual: Realisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def round_(search: PlanSearch, bench: PlanBench, tries: Sequence[PlanChange]) -> list[Kept]:
        now[0] += 10.0
        return []

    for module in (plan_search, search_rounds):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(plan_search, "ROUND", 1)
    monkeypatch.setattr(PlanSearch, "_round", round_)
    found, _ = search(graph, usual, tmp_path)
    list(found.run(100.0))
    assert 20.0 <= now[0] <= 60.0
    now[0] = 0.0
    longer, _ = search(graph, usual, tmp_path)
    list(longer.run(300.0))
    assert now[0] > 60.0


def test_time_to_compare_what_was_found_is_left(
    graph: Graph, usual: Realisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes that others leave of the processors: the limit is time that passes."""
    now = [0.0]

    def round_(search: PlanSearch, bench: PlanBench, tries: Sequence[PlanChange]) -> list[Kept]:
        now[0] += 10.0
        search.outcome.steps.append(Kept(tries[0], Ratio(0.5, 0.5, 0.5, 1.0)))
        return []

    real = beside.Beside.runs

    def slow(*given: Any, **options: Any) -> beside.Runs:
        now[0] += 10.0
        return real(*given, **options)

    for module in (plan_search, plan_bench, search_rounds):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(plan_search, "ROUND", 1)
    monkeypatch.setattr(plan_search, "IDLE", inf)
    monkeypatch.setattr(PlanSearch, "_round", round_)
    monkeypatch.setattr(beside.Beside, "runs", slow)
    monkeypatch.setattr(beside, "run_in_turns", Clock(1.0))
    found, _ = search(graph, usual, tmp_path)
    list(found.run(150.0))
    assert found.outcome.runs
    assert 100.0 < now[0] <= 150.0
    # Nothing is tried where there would be no time to compare it.
    began = now[0]
    short, _ = search(graph, usual, tmp_path)
    list(short.run(60.0))
    assert not short.outcome.steps
    assert now[0] - began <= 60.0


def test_what_does_not_run_is_told_from_the_others(
    graph: Graph, usual: Realisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PlanBench.time

    def failing(
        bench: PlanBench,
        found: Realisation,
        tries: Sequence[PlanChange],
        processes: int = 0,
        threads: int = 1,
    ) -> tuple[list[Ratio], Ratio]:
        if any("layout" in c.change for c in tries):
            raise Unanswered("it ended")
        return real(bench, found, tries, processes, threads)

    monkeypatch.setattr(beside, "run_in_turns", Clock(1.0))
    monkeypatch.setattr(PlanBench, "time", failing)
    found, tried = search(graph, usual, tmp_path, seed=1)
    list(found.run(inf, 8))
    failed = [c for c, r in tried if r is None]
    assert len(failed) == found.outcome.failed > 0
    assert all("layout" in c.change for c in failed)


def test_what_is_known_is_not_tried_again(
    graph: Graph, usual: Realisation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "run_in_turns", Clock(1.0))
    found, tried = search(graph, usual, tmp_path)
    list(found.run(inf, 4))
    known = frozenset(str(c) for c, _ in tried)
    again, more = search(graph, usual, tmp_path, known=lambda base: known)
    list(again.run(inf, 4))
    assert len(known) == 4
    assert known.isdisjoint(str(c) for c, _ in more)


def test_every_plan_computes_the_same(model: Path, graph: Graph, usual: Realisation) -> None:
    other = changed(usual)
    x = {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}
    results = []
    for number, found in enumerate((usual, other)):
        path = model.with_name(f"plan{number}.so")
        written(found.plan, MACHINE, path)
        with rutc.load(path, threads=1) as session:
            results.append(session.run(None, x)[0])
    assert_close(*results, level=Level.MODEL)


def put_on_record(
    database: Database, graph: Graph, usual: Realisation, found: Realisation, high: float = 0.9
) -> None:
    """Puts a plan on record that is a tenth faster."""
    task, origin = plan_task(graph, MACHINE, Options()), origin_of(MACHINE)
    ratio = Ratio(0.89, 0.88, high, 1000.0)
    row = row_of_plan(task, origin, found.assignment, ratio, usual.assignment)
    database.add([row], replace=True)


def test_compilations_take_the_plan_on_record(
    model: Path, graph: Graph, usual: Realisation, tmp_path: Path
) -> None:
    other, db = changed(usual), tmp_path / "records.sqlite"
    plain = rutc.compile(model, tmp_path / "model.so", db="none")
    default = plain.library.read_bytes()
    with Database.open(str(db)) as database:
        put_on_record(database, graph, usual, other)
        found = RecordedPlans(database, MACHINE, Options()).look_up(graph, usual.assignment)
        assert found.assignment == other.assignment
    taken = rutc.compile(model, tmp_path / "model.so", db=db).library.read_bytes()
    assert taken != default
    assert rutc.compile(model, tmp_path / "model.so", db=db).library.read_bytes() == taken


def test_plans_that_are_not_faster_or_no_plans_are_not_taken(
    model: Path, graph: Graph, usual: Realisation, tmp_path: Path
) -> None:
    other, db = changed(usual), tmp_path / "records.sqlite"
    default = rutc.compile(model, tmp_path / "model.so", db="none").library.read_bytes()
    with Database.open(str(db)) as database:
        put_on_record(database, graph, usual, other, high=1.01)
        (row,) = database.trials()
        assert row.template == PLAN
        database.add([replace(row, schedule='assignment "layers"\n%nothing [n]\n')])
        database.add([replace(row, schedule="no assignment")])
    assert rutc.compile(model, tmp_path / "model.so", db=db).library.read_bytes() == default


def test_a_search_of_a_model_tries_plans_and_keeps_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "run_in_turns", Clock(0.2))
    with Database.open(str(tmp_path / "records.sqlite")) as database:
        found = tune_model(model, database, SearchLimits(trials=8))
        assert found.plan is not None
        assert found.plan.taken
        kinds = [t.template for t in database.trials()]
        assert kinds.count("plan") == 1
        assert kinds.count("change of a plan") == found.plan.tried == 4
        again = tune_model(model, database, SearchLimits(trials=2))
        assert again.plan is not None
        assert again.plan.tried == 1
        assert [t.template for t in database.trials()].count("change of a plan") == 5
        schedules = Searched(plans=False)
        without = tune_model(model, database, SearchLimits(trials=2), searched=schedules)
        assert without.plan is None
