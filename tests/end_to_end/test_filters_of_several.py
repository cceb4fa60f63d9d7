"""Sums that pay by filters in runs of several images, not of one: such runs have their own plan."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from rutc.driver.compiler import Options, compile_model
from rutc.driver.plans.planning import imported
from rutc.emit.targets import target_named
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.versions import Version, versions
from rutc.runtime import load
from rutc.tensor_ir import Data, Graph
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.indices.ranges import SOME, common_sizes
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import Reference
from tests.close import assert_close
from tests.machines import V4, lacking, weighing
from tests.window_model import window_model

CHANNELS, SIDE = 32, 8
MACHINE = V4
WEIGHTS = Data(np.random.default_rng(0).random((64, 3, 64), np.float32))


def filters(version: Version) -> set[str]:
    """The sums that are filtered."""
    return {value for value, name in version.assigned.algorithms if name.startswith("filter")}


def of(path: Path, *batch: int) -> tuple[Version, ...]:
    """The versions for a batch, or for a range of it."""
    dims = {"batch": batch[0] if len(batch) == 1 else batch} if batch else {}
    return versions(imported(path, Options(dims=dims)), MACHINE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small windows over small pictures, as many as a run has."""
    w = np.random.default_rng(0).random((CHANNELS, CHANNELS, 3, 3), np.float32) - 0.5
    path = tmp_path_factory.mktemp("windows") / "windows.onnx"
    return window_model(path, ["batch", CHANNELS, SIDE, SIDE], w)


def test_a_run_of_several_is_filtered_as_a_fixed_number_is(model: Path) -> None:
    several, usual = of(model)
    assert (filters(usual), filters(several)) == (set(), {"y"})
    assert common_sizes(dict(several.graph.symbols)) == {"batch": SOME}
    assert common_sizes(dict(usual.graph.symbols)) == {"batch": 1}
    assert isinstance(several.where, Index)
    for batch in range(1, SOME + 1):
        (fixed,) = of(model, batch)
        assert bool(filters(fixed)) == (int(several.where.evaluate({"batch": batch})) > 0)
    (one,), (eight,) = of(model, 1), of(model, SOME)
    assert not filters(one)
    assert filters(eight)


def test_there_is_one_version_where_several_are_never_run(model: Path) -> None:
    (few,) = of(model, 1, 2, 1, 1)
    assert not filters(few)
    (many,) = of(model, SOME, 64, 1, SOME)
    assert filters(many)


def test_filters_that_save_little_of_all_sums_make_no_version(model: Path) -> None:
    machine = weighing(MACHINE, "plans", least_of_few=0.9)
    (usual,) = versions(imported(model, Options()), machine)
    assert not filters(usual)


def test_what_is_commonly_as_much_is_filtered_in_all_runs(model: Path) -> None:
    (told,) = of(model, 0, 64, 1, SOME)
    assert filters(told) == {"y"}


def test_steps_of_both_are_told_and_their_algorithm_once(model: Path) -> None:
    seen: list[str] = []
    algorithms = Algorithms(MACHINE, after=lambda name, graph, changed: seen.append(name))
    versions(imported(model, Options()), MACHINE, on_step=algorithms)
    (fact,) = algorithms.facts()
    assert (fact["name"], fact["sum"]) == ("minimal filtering", "y")
    assert "plan for several" in seen
    assert seen.index("filter with fewer products") < seen.index(
        "filter with fewer products for several"
    )


def grid(more: str = "", output: str = "") -> Graph:
    """Windows over pictures, of which there are as many as two sizes tell."""
    return parse(
        f"""
        graph "g"
        symbols a = 0..99@1, b = 0..99@1
        dims n = a, m = b, c = 64, o = 64, t = 16, u = 18, k = 3
        %x : f32{{c,m,n,u}} = input "x" [n, m, c, u]
        %w : f32{{c,k,o}} = const [c, k, o] data "{WEIGHTS.digest}"
        %y : f32{{m,n,o,t}} = sum{{c,k}} %x[n, m, c, u=t + k] * %w[c, k, o]
        {more}
        output "y" [n, m, o, t] = %y
        {output}
        """,
        {WEIGHTS.digest: WEIGHTS},
    )


def test_sizes_count_together() -> None:
    several, usual = versions(grid(), MACHINE)
    assert (filters(usual), filters(several)) == (set(), {"y"})
    where = several.where
    assert isinstance(where, Index)

    def runs(a: int, b: int) -> bool:
        return int(where.evaluate({"a": a, "b": b})) > 0

    assert not any(runs(a, b) for a, b in ((0, 99), (1, 1), (1, 2)))
    assert runs(SOME, SOME)
    least = next(n for n in range(99) if runs(n, 1))
    assert all(runs(a, b) == (a * b >= least) for a in range(9) for b in range(9))


def test_what_has_state_has_one_version() -> None:
    """Two versions would not go on from one another."""
    random = grid("%v : f64{n} = call uniform(seed=1) -> [n]", 'output "v" [n] = %v')
    assert [v.where for v in versions(random, MACHINE)] == [None]


def test_what_the_program_counts_chooses_no_version() -> None:
    """It is known only once the plan runs."""
    counted = parse(
        f"""
        graph "g"
        symbols a = 0..99@1, b = 0..99@1
        dims n = a, m = b, c = 64, o = 64, t = 64, u = 66, k = 3
        %x : f32{{c,n,u}} = input "x" [n, c, u]
        %count : i64{{}} = i64(%x[n=0, c=0, u=0 else 0.0])
        %size : i64{{}} = bind b = %count
        %z : f32{{c,m,u}} = exp(%x[n=m, c, u else 0.0])
        %w : f32{{c,k,o}} = const [c, k, o] data "{WEIGHTS.digest}"
        %y : f32{{m,o,t}} = sum{{c,k}} %z[m, c, u=t + k] * %w[c, k, o]
        output "y" [m, o, t] = %y
        """,
        {WEIGHTS.digest: WEIGHTS},
    )
    assert [v.where for v in versions(counted, MACHINE)] == [None]


def test_sizes_may_be_computed_beside(model: Path, tmp_path: Path) -> None:
    """Each of the plans computes them in its own runs."""
    found = onnx.load(model)
    found.graph.node.append(helper.make_node("NonZero", ["y"], ["places"]))
    places = helper.make_tensor_value_info("places", onnx.TensorProto.INT64, [4, "number"])
    found.graph.output.append(places)
    onnx.save(found, tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options())
    reference = Reference(tmp_path / "m.onnx", 1)
    with load(tmp_path / "m.so", threads=1) as session:
        assert len(session.manifest["versions"]) == 1
        for batch in (SOME, 1, SOME, 0, 2):
            x = np.zeros((batch, CHANNELS, SIDE, SIDE), np.float32)
            x[:, :, : batch // 2] = np.random.default_rng(batch).random(x[:, :, : batch // 2].shape)
            wanted = reference.run({"x": x})
            y, at = session.run(None, {"x": x})
            assert_close(y, np.asarray(wanted["y"]), level=Level.MODEL)
            np.testing.assert_array_equal(at, np.asarray(np.nonzero(y)))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_versions_compute_the_same(model: Path, tmp_path: Path, target: str) -> None:
    if why := lacking(target_named(target).machine):
        pytest.skip(why)
    compile_model(model, tmp_path / "m.so", Options(target=target))
    reference = Reference(model, 1)
    inputs = {
        batch: np.random.default_rng(batch).random((batch, CHANNELS, SIDE, SIDE), np.float32) - 0.5
        for batch in (0, 1, 3, 4, 5, 6, 7, SOME, 33)
    }
    wanted = {batch: np.asarray(reference.run({"x": x})["y"]) for batch, x in inputs.items()}
    for threads in (1, 2):
        with load(tmp_path / "m.so", threads=threads) as session:
            assert len(session.manifest["versions"]) == 1
            for batch in (1, SOME, *inputs):
                (got,) = session.run(None, {"x": inputs[batch]})
                assert_close(got, wanted[batch], level=Level.MODEL)


def test_a_run_of_several_has_the_filter_of_a_fixed_number(tmp_path: Path) -> None:
    channels, side = 192, 7
    w = np.random.default_rng(0).random((channels, channels, 3, 3), np.float32) - 0.5
    model = window_model(tmp_path / "windows.onnx", ["batch", channels, side, side], w)
    (one,), (eight,) = of(model, 1), of(model, SOME)
    assert one.assigned != eight.assigned
    assert filters(one) == filters(eight)
    several, usual = of(model)
    assert usual.assigned == one.assigned
    assert several.assigned == eight.assigned
    assert isinstance(several.where, Index)
    assert (
        int(several.where.evaluate({"batch": SOME}))
        > 0
        >= int(several.where.evaluate({"batch": 1}))
    )
