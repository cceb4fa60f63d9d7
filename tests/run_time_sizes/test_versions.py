"""Several plans of one model in an artifact: the inputs' sizes choose one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import rutc.driver.plans.planning
from rutc.driver.compiler import Options, compile_model
from rutc.driver.parts.build import Builder, Built, PlanVersion
from rutc.emit.host_program import host_steps as host
from rutc.emit.linking.library import build_library
from rutc.emit.targets import target_named
from rutc.errors import InternalError
from rutc.graph_opt import Version, optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.pipeline import OnStep
from rutc.report.display import step_times
from rutc.report.inside_library import inspect_library
from rutc.runtime import load
from rutc.tensor_ir import Graph, Index
from rutc.tensor_ir.indices.ranges import CommonRange
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import Reference
from tests.close import assert_close

NATIVE = target_named("native").machine
N = Index.of("n")
LEAST = 64
W = (np.arange(256, dtype=np.float32).reshape(16, 16) * 5 + 3) % 7 - 3
SIZES = (0, 1, LEAST - 1, LEAST, 1000, 3, LEAST, LEAST - 1, 0, 2000)


def adding(amount: float) -> Graph:
    """y = x + amount."""
    return parse(f"""
        graph "g"
        symbols n = 0..2000
        dims m = n, k = 3
        %x : f32{{k,m}} = input "x" [m, k]
        %y : f32{{k,m}} = %x[k, m] + {amount} @ "add"
        output "y" [m, k] = %y
    """)


def twice(rows: int) -> Graph:
    """y = relu(x) @ w @ w; of relu(x) that many rows of zeros are stored as well."""
    return parse(f"""
        graph "g"
        symbols n = 0..2000
        dims m = n, k = 16, j = 16, i = 16, p = n + {rows}
        %x : f32{{k,m}} = input "x" [m, k]
        %w : f32{{j,k}} = const [k, j] {W.tolist()}
        %r : f32{{k,p}} = max(%x[k, m=p - {rows} else 0.0], 0.0)
        %s : f32{{j,m}} = sum{{k}} %r[k, p=m + {rows}] * %w[k, j]
        %y : f32{{i,m}} = sum{{j}} %s[j, m] * %w[k=j, j=i]
        output "y" [m, i] = %y
    """)


def built(few: Graph, *many: tuple[Graph, Index]) -> Built:
    """The parts of an artifact with the plans of graphs, which are left as they are."""
    others = tuple(PlanVersion(decide(graph, NATIVE), where) for graph, where in many)
    return Builder(decide(few, NATIVE), NATIVE, "m", 1, earlier=others).build()


def library(parts: Built, folder: Path) -> Path:
    build_library(parts.program, parts.objects, folder / "m.so", {})
    return folder / "m.so"


@pytest.mark.parametrize("threads", [1, 3])
def test_the_size_tells_which_plan_runs(tmp_path: Path, threads: int) -> None:
    """Plans that compute different things, to tell them apart."""
    many = [(adding(3.0), N // 1000), (adding(2.0), N // LEAST)]
    path = library(built(adding(1.0), *many), tmp_path)
    with load(path, threads=threads) as session:
        for size in SIZES:
            x = np.arange(3 * size, dtype=np.float32).reshape(size, 3)
            wanted = x + (3 if size >= 1000 else 2 if size >= LEAST else 1)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    """Dims and values of one name have different extents in the two plans."""
    path = library(built(twice(0), (twice(100), N // LEAST)), tmp_path)
    with load(path, threads=2) as session:
        for size in SIZES:
            x = np.random.default_rng(size).integers(-3, 4, (size, 16)).astype(np.float32)
            wanted = np.maximum(x, 0) @ W @ W
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)


def test_plans_share_kernels_weights_and_memory() -> None:
    alone = built(twice(0))
    same = built(twice(0), (twice(0), N // LEAST))
    assert [f.plan for f in same.facts] == [0] * len(alone.facts) + [1] * len(alone.facts)
    assert len(same.objects) == len(alone.objects)
    assert same.program.weight_bytes == alone.program.weight_bytes
    assert same.program.arena_bytes == alone.program.arena_bytes
    assert same.flops == alone.flops


def test_work_and_memory_are_those_of_the_plans() -> None:
    few, many = built(twice(0)), built(twice(100))
    both = built(twice(0), (twice(100), N // LEAST))
    for size in SIZES:
        env = {"n": Index.of(size)}
        one, other, most = (
            Index.of(x.program.arena_bytes).subs(env).value for x in (few, many, both)
        )
        assert most == max(one, other)
    # Sizes are commonly thought to be 128.
    assert both.flops == many.flops > few.flops
    assert built(twice(0), (twice(100), N // 1000)).flops == few.flops


def test_work_is_that_of_sizes_that_are_told_though_a_plan_is_made_for_others() -> None:
    many = adding(2.0)
    few = replace(many, symbols=(("n", CommonRange(0, 2000, 4)),))
    (alone,) = built(few).facts
    both = built(few, (many, N))
    assert alone.flops < min(f.flops for f in both.facts if f.plan == 0)
    assert both.flops == alone.flops


def test_the_steps_are_a_branch_on_the_size() -> None:
    program = built(adding(1.0), (adding(2.0), N // LEAST)).program
    (branch,) = program.steps
    assert isinstance(branch, host.Branch)
    assert branch.cond == N // LEAST
    assert [len(x) for x in (branch.then, branch.orelse)] == [1, 1]
    assert "  branch size n // 64\n    launch" in str(program)


def test_a_profile_shows_the_plan_that_ran(tmp_path: Path) -> None:
    """One kernel with one origin occurs in both plans."""
    parts = built(twice(0), (twice(0), N // LEAST))
    kernels = [
        {"name": f"{f.plan}", "symbol": f.symbol, "origin": list(f.origin)} for f in parts.facts
    ]
    path = library(parts, tmp_path)
    for size, plan in ((LEAST - 1, "1"), (LEAST, "0")):
        with load(path, profile=True) as session:
            session.run(None, {"x": np.ones((size, 16), np.float32)})
            times = step_times(session.profile(), kernels)
        assert [t.name for t in times] == [plan] * (len(kernels) // 2)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("n = 0..2000", "n = 0..3"),
        ('input "x" [m, k]', 'input "z" [m, k]'),
        ("[m, k] = %y", "[k, m] = %y"),
    ],
)
def test_plans_of_different_models_are_refused(text: str, other: str) -> None:
    graph = adding(1.0)
    changed = parse(str(graph).replace(text, other))
    assert changed != graph
    with pytest.raises(InternalError, match="differ in their inputs, outputs, sizes or strings"):
        built(graph, (changed, N // LEAST))


def _save(path: Path) -> None:
    """x @ w * 0.5, whose factor goes into the weights."""
    w = np.random.default_rng(0).standard_normal((48, 32)).astype(np.float32)
    half = np.full((), 0.5, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Mul", ["p", "half"], ["y"], name="scale"),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 7, 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(half, "half")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)


def test_a_model_in_two_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewritten for many rows, and hardly for few."""

    def two(graph: Graph, *_: Machine, on_step: OnStep, **asked: object) -> tuple[Version, ...]:
        assert not any(asked.values())
        many, few = (optimize(graph, on_step=on_step, limit=n) for n in (None, 2))
        return Version(many, N // 3), Version(few)

    monkeypatch.setattr(rutc.driver.plans.planning, "versions", two)
    path, dump = tmp_path / "model.onnx", tmp_path / "dump"
    _save(path)
    options = Options(dims={"n": (0, 8, 1, 4)}, dump=dump)
    report = compile_model(path, tmp_path / "m.so", options)
    text = (dump / "plan.txt").read_text()
    assert text.startswith("where n // 3 > 0:\nplan ")
    assert "\nelsewhere:\nplan " in text
    assert "branch size n // 3" in (dump / "program.txt").read_text()
    reference = Reference(path, 1)
    with load(str(tmp_path / "m.so"), profile=True) as session:
        kernels = session.manifest["kernels"]
        assert isinstance(kernels, list)
        assert len(kernels) == report.kernels
        assert report.flops == session.manifest["flops"] == _flops(kernels, 0)
        assert report.flops < _flops(kernels, 1)
        assert session.manifest["versions"] == ["n // 3"]
        for size in (0, 1, 2, 3, 8, 2):
            x = np.random.default_rng(size).standard_normal((size, 7, 48)).astype(np.float32)
            (wanted,) = reference.run({"x": x}).values() if size else (np.zeros((0, 7, 32)),)
            (got,) = session.run(None, {"x": x})
            assert_close(got, np.asarray(wanted), level=Level.MODEL)
        calls = [e.calls for e in session.profile()]
    assert {k["plan"]: n for k, n in zip(kernels, calls, strict=True)} == {0: 2, 1: 4}
    _, shown = inspect_library(tmp_path / "m.so")
    console = Console(width=200)
    with console.capture() as capture:
        console.print(*shown)
    said = "kernels of plan 0 run where n // 3 > 0 (made for n=4), of plan 1 elsewhere"
    assert said in capture.get()


def _flops(kernels: Sequence[object], plan: int) -> int:
    return sum(k["flops"] for k in kernels if k["plan"] == plan)  # type: ignore[index]
