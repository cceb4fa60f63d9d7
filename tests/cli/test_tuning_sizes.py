"""Models of symbolic sizes are tuned at common sizes or those that are given, and stay right."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc as package
from rutc.driver.options import Options
from rutc.driver.plans.planning import imported, planned
from rutc.driver.timing.launch_times import written
from rutc.driver.timing.model_bench import HandedOut, Planned, timed_sizes
from rutc.driver.timing.plan_bench import PlanChange
from rutc.driver.timing.side_by_side import Ratio
from rutc.driver.tuning.plan_records import (
    known_changes,
    plan_task,
    realised,
    row_of_change,
    row_of_plan,
)
from rutc.driver.tuning.schedule_search import SearchLimits
from rutc.driver.tuning.search_terms import Searched, TimedRuns
from rutc.driver.tuning.tune_model import tune_model
from rutc.driver.tuning.tuning_records import known_of, origin_of
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.graph_opt.decide.neighbours import legal, neighbours
from rutc.tuner.analysis import analyse
from rutc.tuner.database.database import Database
from rutc.tuner.heuristic import spaces
from rutc.verify.judging.tolerance import Level
from tests.cli.conftest import Rutc
from tests.close import assert_close

MACHINE = native_target().machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, a depthwise one, a softmax and a product, of any batch and width."""
    rng = np.random.default_rng(0)
    shapes = {"u": (32, 3, 3, 3), "v": (32, 1, 3, 3), "w": (32, 64)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 8, n)
        for n, s in shapes.items()
    ]
    pads = [1, 1, 1, 1]
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["a"], name="filter", pads=pads),
        helper.make_node("Relu", ["a"], ["b"], name="positive"),
        helper.make_node("Conv", ["b", "v"], ["c"], name="each", pads=pads, group=32),
        helper.make_node("Softmax", ["c"], ["d"], name="shares", axis=3),
        helper.make_node("ReduceMean", ["d"], ["e"], name="mean", axes=[2], keepdims=0),
        helper.make_node("Transpose", ["e"], ["f"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["f", "w"], ["y"], name="product"),
    ]
    shape = ["batch", 3, 16, "width"]
    made = helper.make_graph(
        nodes,
        "free",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "width", 64])],
        weights,
    )
    path = tmp_path_factory.mktemp("free") / "free.onnx"
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=9), path)
    return path


OPTIONS = Options(dims={"batch": (1, 8), "width": (8, 200)})


@pytest.fixture(scope="module")
def free(model: Path) -> Planned:
    """The model as it is planned for all sizes."""
    graph = imported(model, OPTIONS)
    return Planned(*planned(versions(graph, MACHINE), MACHINE), MACHINE)


@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_is_right_at_all_sizes(free: Planned, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    choices = {}
    for s in free.launches():
        own = spaces(s.kernel, s.machine, s.constants, fixed=("parallel",))
        drawn = rng.choice(own).draw(rng) if own else None
        if drawn is not None:
            choices[s] = (drawn[1],)
    assert sum(bool(analyse(s.kernel, s.constants).symbolic) for s in choices) >= 4
    made = [
        written(free.plan, MACHINE, tmp_path / f"{n}.so", chooser=HandedOut(c))
        for n, c in enumerate((choices, {}))
    ]
    values = np.random.default_rng(seed)
    with package.load(made[0].library, threads=1) as own, package.load(made[1].library) as usual:
        for batch, width in ((1, 8), (1, 37), (3, 64), (5, 9), (8, 200)):
            x = {"x": values.standard_normal((batch, 3, 16, width)).astype(np.float32)}
            assert_close(own.run(None, x)[0], usual.run(None, x)[0], level=Level.MODEL)


def test_kernels_are_tuned_at_the_sizes_that_are_given(model: Path, tmp_path: Path) -> None:
    with Database.open(str(tmp_path / "records.sqlite")) as database:

        def tuned(**sizes: int) -> str:
            found = tune_model(
                model,
                database,
                SearchLimits(trials=24),
                OPTIONS,
                Searched(plans=False),
                TimedRuns(sizes=sizes or {}),
            )
            assert found.trials >= 24
            assert any(t.trials for t in found.tuned)
            return found.sizes

        assert tuned() == "batch=1 width=128"
        assert tuned(batch=4) == "batch=4 width=128"
        with pytest.raises(UserError, match=r"--size batch=9: .* batch 1\.\.8"):
            tuned(batch=9)
        graph = imported(model, OPTIONS)
        own = Planned(*planned(versions(graph, MACHINE), MACHINE), MACHINE, {"batch": 4})
        origin = origin_of(MACHINE)
        here = {s: known_of(s, origin, database, at) for s, at in own.timed().items()}
        assert any(len(known) > 1 for known in here.values())
        # What was timed at other sizes is no measurement at these.
        assert not any(
            known_of(s, origin, database, dict.fromkeys(at, 7)) for s, at in own.timed().items()
        )


def test_a_compilation_takes_what_was_found_for_all_sizes(
    rutc: Rutc, model: Path, tmp_path: Path
) -> None:
    db, dims = tmp_path / "records.sqlite", ("--dim", "batch=1..8", "--dim", "width=8..200")
    found = rutc("tune", model, *dims, "--size", "batch=2", "--db", db, "--trials", 24, "--json")
    assert found.status == 0, found.stderr
    assert found.json["sizes"] == "batch=2 width=128"
    compiled = rutc("compile", model, *dims, "--db", db, "-o", tmp_path / "free.so")
    assert compiled.status == 0, compiled.stderr
    assert "verified: " in compiled.stdout
    wrong = rutc("tune", model, *dims, "--size", "height=2", "--db", db)
    assert wrong.status == 2
    assert "--size height=2" in wrong.stderr


def test_plans_of_symbolic_sizes_are_taken(model: Path, tmp_path: Path) -> None:
    graph = imported(model, OPTIONS)
    usual = planned(versions(graph, MACHINE), MACHINE)[0]
    assert usual.assignment is not None
    first = realised(graph, usual.assignment, MACHINE)
    assert first is not None
    other = next(f for n in neighbours(first, types=False) if (f := legal(first, n)) is not None)
    task, origin, took = plan_task(graph, MACHINE, OPTIONS), origin_of(MACHINE), 0.8
    sizes = timed_sizes(dict(graph.symbols), {"batch": 4})
    assert sizes == {"batch": 4, "width": 128}
    ratio = Ratio(took, took, took, 100.0)
    db = tmp_path / "records.sqlite"
    with Database.open(str(db)) as database:
        change = PlanChange("another", other, frozenset(), frozenset())
        base = usual.assignment
        database.add(
            [
                row_of_change(task, origin, change, ratio, base, sizes),
                row_of_plan(task, origin, other.assignment, ratio, base, sizes),
            ]
        )
        assert known_changes(task, origin, base, database, sizes) == {"another"}
        assert not known_changes(task, origin, base, database, {**sizes, "batch": 1})
    made = package.compile(model, tmp_path / "free.so", dims=OPTIONS.dims, db=db)
    assert made.report.plan_source.startswith("on record, 1.25 times as fast")
    assert made.verification is not None
    assert made.verification.passed


def test_sizes_at_which_no_run_can_be_timed_have_advice(rutc: Rutc, tmp_path: Path) -> None:
    """A mask has a column for each of two parts, which the model does not say."""
    kinds = {"x": "past", "z": "new", "mask": "total"}
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, size])
        for name, size in kinds.items()
    ]
    nodes = [
        helper.make_node("Concat", ["x", "z"], ["both"], axis=1),
        helper.make_node("Mul", ["both", "mask"], ["seen"]),
        helper.make_node("Softmax", ["seen"], ["y"], axis=0),
    ]
    made = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    command = ["tune", tmp_path / "m.onnx", "--trials", "1", "--db", tmp_path / "d.sqlite"]
    for plans in ("--plans", "--no-plans"):
        refused = rutc(*command, plans)
        assert refused.status == 2, refused.stderr
        assert "Inputs were generated at past=" in refused.stderr
        assert "say --dim total=past+new, as it runs so" in refused.stderr
    done = rutc(*command, "--dim", "total=past+new")
    assert done.status == 0, done.stderr
