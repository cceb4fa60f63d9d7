"""A short, always equal run of the generator, and what it is made of.

The long run is `python -m tests.fuzz` (docs/fuzzing.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import sleep

import numpy as np
import pytest
from hypothesis import Phase
from onnx import helper

import tests.fuzz.child as child_module
from rutc.driver import compiler
from rutc.driver.options import BF16, FP32, Options
from rutc.errors import UserError
from tests.fuzz.campaign import Campaign, Hunt
from tests.fuzz.cases import Case, DataSet, operators
from tests.fuzz.check import Verdict, beyond, differs, judge
from tests.fuzz.child import INTERPRETED, Answer, Child
from tests.fuzz.findings import Finding
from tests.fuzz.graph import MOST_ELEMENTS, RUNS
from tests.fuzz.own_process import PATIENCE
from tests.fuzz.shrink import cut

Phases = Sequence[Phase]
BATCHES = 4
SEED = 20


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    made = Campaign(SEED, shrink_seconds=0)
    yield made
    made.close()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_generated_models_agree(campaign: Campaign, batch: int) -> None:
    tally = campaign.run(batch)
    assert not tally.findings, "\n\n".join(f.text() for f in tally.findings)
    assert tally.verdicts["pass"] > 0


def test_a_batch_is_the_same_every_time() -> None:
    def models() -> list[bytes]:
        found: list[bytes] = []
        generator = Campaign(3)
        generator.generate(5, 3, lambda case: found.append(case.model), [Phase.generate])
        return found

    assert models() == models()


def test_making_a_finding_smaller_ends_with_its_time() -> None:
    case = model([("Abs", ["x"], ["y"])], np.array([-1.5, 2.0], np.float32), "y")
    finding = Finding(case, Verdict("wrong", "values"), "", 3, 5)
    generator = Campaign(3, shrink_seconds=-1.0)
    made: list[Case] = []
    plain = generator.generate

    def counted(batch: int, count: int, look: Callable[[Case], None], phases: Phases) -> None:
        def seen(case: Case) -> None:
            made.append(case)
            look(case)

        plain(batch, count, seen, phases)

    generator.generate = counted  # type: ignore[method-assign]
    assert generator.smaller(finding, 10, Hunt(generator.child)) == finding
    assert len(made) == 1


def test_all_families_are_known() -> None:
    assert len(operators(())) > 150


def model(nodes: list[tuple[str, list[str], list[str]]], x: np.ndarray, output: str) -> Case:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(*n) for n in nodes],
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info(output, kind, x.shape)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    right = {output: (np.abs(x),) * RUNS}
    return Case(made.SerializeToString(), {}, (DataSet({"x": x}, right),))


def test_a_wrong_result_is_found_and_cut() -> None:
    x = np.array([-1.5, 2.0], np.float32)
    case = model([("Abs", ["x"], ["a"]), ("Neg", ["a"], ["y"]), ("Neg", ["y"], ["z"])], x, "z")

    def check(c: Case) -> Verdict:
        """As if every Neg were compiled wrong."""
        wrong = any(n.op_type == "Neg" for n in c.proto().graph.node)
        return Verdict("wrong", "values") if wrong else Verdict("pass")

    small, verdict = cut(case, check(case), check)
    assert [n.op_type for n in small.proto().graph.node] == ["Neg"]
    assert verdict.kind == "wrong"
    (data,) = small.sets
    np.testing.assert_array_equal(data.feeds["a"], [1.5, 2.0])


def test_results_are_compared() -> None:
    x = np.array([-1.5, 2.0], np.float32)
    case = model([("Abs", ["x"], ["y"])], x, "y")
    good = Answer("ran", results=[{"1 threads": {"y": np.abs(x)}}])
    assert judge(case, good).kind == "pass"
    bad = Answer("ran", results=[{"1 threads": {"y": x}}])
    assert judge(case, bad).kind == "wrong"
    missing = Answer("ran", results=[{"1 threads": {}}])
    assert judge(case, missing).kind == "wrong"


def test_a_result_may_be_as_far_away_as_the_oracles_are_apart() -> None:
    runs = [np.array([1.0, 5.0], np.float32), np.array([1.0, 5.5], np.float32)]
    assert not differs(np.array([1.0, 6.0], np.float32), runs, 1)
    assert differs(np.array([1.1, 5.0], np.float32), runs, 1)
    assert differs(np.array([1.0, 9.0], np.float32), runs, 1)


@pytest.mark.parametrize(
    ("way", "limit_s", "kind", "reason"),
    [
        ("ends", 1.0, "crash", "SIGABRT in import"),
        ("works", 0.5, "hang", "more than 0.5 s of processor time in import"),
        ("waits", 0.1, "hang", f"more than {0.1 * PATIENCE:g} s in import"),
    ],
)
def test_a_lost_child_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, way: str, limit_s: float, kind: str, reason: str
) -> None:
    def broken(*parts: object, **options: object) -> None:
        while way != "ends":
            sleep(60 if way == "waits" else 0)
        os.abort()

    answer = answered(monkeypatch, broken, limit_s)
    assert (answer.kind, answer.stage, answer.reason) == (kind, "import", reason)


def test_a_case_that_others_keep_from_the_processor_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(*parts: object, **options: object) -> None:
        sleep(2.5)
        raise UserError("done")

    answer = answered(monkeypatch, late, 0.5)
    assert (answer.kind, answer.reason) == ("refused", "done")


def answered(monkeypatch: pytest.MonkeyPatch, work: Callable[..., None], limit_s: float) -> Answer:
    """What comes of a case that is compiled so."""
    monkeypatch.setattr(child_module, "compile_model", work)
    case = model([("Abs", ["x"], ["y"])], np.array([-1.5, 2.0], np.float32), "y")
    child = Child(limit_s)
    answer = child.answer(case)
    child.close()
    return answer


def test_a_case_says_how_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(
        model: object, output: object, options: Options, *rest: object, **more: object
    ) -> None:
        how = (options.target, options.precision, options.exact_algorithms, *options.dims)
        raise UserError(repr((*how, options.keep_subnormals)))

    monkeypatch.setattr(child_module, "compile_model", told)
    case = model([("Abs", ["x"], ["y"])], np.array([-1.5, 2.0], np.float32), "y")
    other = replace(case, dims={"n": (1, 2)}, target="x86-64-v3", exact=True, precision=BF16)
    child = Child(60.0)
    answers = [child.answer(c) for c in (case, other)]
    child.close()
    assert [a.kind for a in answers] == ["refused"] * 2
    wanted = [("native", FP32, False, True), ("x86-64-v3", BF16, True, "n", False)]
    assert [a.reason for a in answers] == [repr(w) for w in wanted]


@pytest.mark.parametrize("eager", [False, True])
def test_threads_may_share_kernels_however_small(
    monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    def told(
        model: object, output: object, options: Options, *rest: object, **more: object
    ) -> None:
        raise UserError(repr(compiler.machine_for(options).launch_cycles == 0))

    monkeypatch.setattr(child_module, "compile_model", told)
    case = model([("Abs", ["x"], ["y"])], np.array([-1.5, 2.0], np.float32), "y")
    child = Child(60.0)
    answer = child.answer(replace(case, eager=eager))
    child.close()
    assert (answer.kind, answer.reason) == ("refused", repr(eager))


def test_of_rounded_results_without_bounds_types_and_shapes_count() -> None:
    case = model([("Abs", ["x"], ["y"])], np.array([-1.5, 2.0], np.float32), "y")

    def kind(case: Case, way: str, got: np.ndarray) -> str:
        return judge(case, Answer("ran", results=[{way: {"y": got}}])).kind

    other = np.array([1.0, 2.0], np.float32)
    narrow = replace(case, precision=BF16)
    assert kind(case, "1 threads", other) == "wrong"
    assert kind(narrow, "1 threads", other) == "pass"
    assert kind(narrow, INTERPRETED, other) == "wrong"
    for unlike in (other[:1], other.astype(np.float64)):
        assert kind(narrow, "1 threads", unlike) == "wrong"


def test_nothing_is_asked_of_results_whose_shape_roundings_tell() -> None:
    """The length of a Range, for one, may be a sum of floats."""
    longer, shorter = np.arange(4, dtype=np.float32), np.arange(3, dtype=np.float32)
    assert not beyond(0.1, longer, [longer, shorter])
    assert beyond(0.1, longer, [2 * longer, 2 * longer])


def test_two_sizes_of_a_model_may_be_symbols() -> None:
    found: list[Case] = []
    generator = Campaign(5, operators(("Add", "MatMul", "Concat")))
    for batch in range(40):
        generator.generate(batch, 10, found.append, [Phase.generate])
    both = [c for c in found if len(c.dims) == 2]
    assert both
    for case in both:
        shapes = [i.type.tensor_type.shape.dim for i in case.proto().graph.input]
        assert {d.dim_param for dims in shapes for d in dims} >= set(case.dims)
    several = [c for c in both if len(c.sets) > 1]
    assert several
    for case in several:
        names = case.sets[0].feeds
        assert any(len({data.feeds[n].shape for data in case.sets}) > 1 for n in names)


def test_chains_of_layers_are_of_several_operators() -> None:
    for op in ("layers.Image", "layers.Tokens"):
        found: list[Case] = []
        Campaign(5, operators((op,))).generate(0, 15, found.append, [Phase.generate])
        names = {n.op_type for c in found for n in c.proto().graph.node}
        assert len(names) >= 5
        assert max(a.size for c in found for a in c.sets[0].feeds.values()) > MOST_ELEMENTS
