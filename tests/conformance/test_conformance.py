"""A part of ONNX's backend suite, another one each day, and the runner itself."""

import ctypes
import mmap
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.conformance import results
from tests.conformance.__main__ import compile_times
from tests.conformance.adapter import OnStage, Result, run_case
from tests.conformance.expected import judge, read_expected, revised, write_expected
from tests.conformance.guarded import guarded_copy
from tests.conformance.modes import MODES
from tests.conformance.report import DOCUMENT, operators_document
from tests.conformance.results import ResultFile
from tests.conformance.suite import Case, DataSet, graph_inputs, load_cases
from tests.conformance.workers import run_all
from tests.sampling import SAMPLE

PARTS = 240
"""One of so many cases of the suite runs each day, in every mode; the runner runs them all."""

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """The whole suite."""
    return load_cases()


def case_of(cases: list[Case], name: str) -> Case:
    return next(c for c in cases if c.name == name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES)
def test_a_part_of_the_suite_passes(cases: list[Case], mode: str) -> None:
    part = SAMPLE.share(range(len(cases)), PARTS, mode)

    def work(number: int, on_stage: OnStage) -> Result:
        return run_case(cases[number], mode, on_stage)

    jobs = len(os.sched_getaffinity(0))
    found = list(run_all(part, work, _lost(cases), jobs=jobs, timeout=TIMEOUT_S))
    verdict = judge(found, read_expected(mode))
    assert verdict.holds, str(verdict)


def _lost(cases: list[Case]) -> Callable[[int, str, str], Result]:
    def lost(number: int, stage: str, reason: str) -> Result:
        return Result(cases[number].name, cases[number].kind, stage=stage, reason=reason)

    return lost


# -- lists of expected failures and the document ---------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_expected_failures_name_tests_in_the_suites_order(cases: list[Case], mode: str) -> None:
    reasons = read_expected(mode)
    assert list(reasons) == [c.name for c in cases if c.name in reasons]


def test_names_are_unique(cases: list[Case]) -> None:
    assert [n for n, count in Counter(c.name for c in cases).items() if count > 1] == []


def test_the_document_is_what_the_lists_say(cases: list[Case]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    if f"onnx {version('onnx')}." not in text:
        pytest.skip("docs/operators.md is of another version of onnx")
    assert text == operators_document(cases), "run python -m tests.conformance --report"


def test_a_list_must_be_true() -> None:
    found = [
        Result("test_good", "node", passed=True),
        Result("test_repaired", "node", passed=True),
        Result("test_known", "node", stage="run", reason="r"),
        Result("test_broken", "node", stage="compare", reason="it differs"),
    ]
    expected = {"test_repaired": "was broken", "test_known": "by hand", "test_not_run": "kept"}
    verdict = judge(found, expected)
    assert not verdict.holds
    assert str(verdict) == (
        "test_broken fails in compare: it differs\n"
        "test_repaired passes: take it off the list of expected failures"
    )
    order = ["test_broken", "test_good", "test_known", "test_not_run", "test_repaired"]
    made = revised(expected, found, order)
    assert made == {
        "test_broken": "[compare] it differs",
        "test_known": "by hand",
        "test_not_run": "kept",
    }
    assert list(made) == ["test_broken", "test_known", "test_not_run"]
    assert judge(found, made).holds


def test_lists_are_written_and_read_back(tmp_path: Path) -> None:
    reasons = {"test_b": "[plan] a: b", "test_a": "why"}
    write_expected("plain", reasons, tmp_path)
    assert list(read_expected("plain", tmp_path).items()) == list(reasons.items())
    for bad in ("test_a", "test_a:", "test_a: x\ntest_a: y"):
        (tmp_path / "plain.txt").write_text(bad)
        with pytest.raises(ValueError, match="write `test: reason`"):
            read_expected("plain", tmp_path)


# -- modes and the adapter -------------------------------------------------------------------------
def test_constants_replace_all_but_the_first_input(cases: list[Case]) -> None:
    ((_, model),) = MODES["constant"](case_of(cases, "test_gemm_default_vector_bias"))
    assert [i.name for i in graph_inputs(model)] == ["a"]
    assert {i.name for i in model.graph.initializer} == {"b", "c"}


def test_dynamic_sizes_have_names(cases: list[Case]) -> None:
    names = {
        variant: [
            [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
            for i in graph_inputs(model)
        ]
        for variant, model in MODES["dynamic"](case_of(cases, "test_prelu_broadcast"))
    }
    assert names == {
        "free": [["x_0", "x_1", "x_2"], ["slope_0"]],
        "shared": [["n3", "n4", "n5"], ["n5"]],
        "ones fixed": [["n3", "n4", "n5"], ["n5"]],
        "lists fixed": [["n3", "n4", "n5"], [5]],
        "own": [["n3", "n4", 5], [5]],
        "batch": [["batch", 4, 5], [5]],
    }


def test_only_the_operands_that_must_be_are_fixed() -> None:
    """The axis decides what the result's axes are; a scalar that is added decides nothing."""
    nodes = [
        helper.make_node("Add", ["x", "bias"], ["t"]),
        helper.make_node("ExpandDims", ["t", "axis"], ["y"], domain="com.microsoft"),
    ]
    x, bias, axis = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(2), np.int32(1)
    feed = {"x": x, "bias": bias, "axis": axis}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feed.items()
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 1, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data = DataSet(tuple(feed.values()), ((x + bias)[:, None],))
    case = Case("test_sum", "node", model.SerializeToString(), (data,), 1e-3, 1e-7)
    result = run_case(case, "dynamic", lambda stage: None)
    assert result.passed, result.reason
    assert result.frozen == ("axis",)


def test_wrong_outputs_fail(cases: list[Case]) -> None:
    add = case_of(cases, "test_add")
    (data,) = add.data_sets
    wrong = np.array(data.outputs[0])
    wrong[0, 0, 0] += 0.1
    for output in (wrong, wrong.astype(np.float64), wrong[..., None]):
        with pytest.raises(AssertionError):
            add.compare([output], data.outputs)
    add.compare(data.outputs, data.outputs)


# -- workers ---------------------------------------------------------------------------------------
def test_crashes_and_hangs_concern_one_test_only() -> None:
    def work(number: int, on_stage: OnStage) -> Result:
        on_stage("first")
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        on_stage("second")
        if number == 3:
            time.sleep(600)
        if number == 5:
            os._exit(7)
        return Result(f"{number}", "node", passed=True)

    def lost(number: int, stage: str, reason: str) -> Result:
        return Result(f"{number}", "node", stage=stage, reason=reason)

    found = sorted(run_all(range(8), work, lost, jobs=2, timeout=3), key=lambda r: r.name)
    assert [r.name for r in found] == list("01234567")
    failures = {r.name: (r.stage, r.reason) for r in found if not r.passed}
    assert failures == {
        "1": ("first", "Crash: SIGKILL"),
        "3": ("second", "Timeout: more than 3 s"),
        "5": ("second", "Crash: exit status 7"),
    }


def test_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    file = ResultFile("plain")
    assert file.read() == {}
    first = Result("test_a", "node", passed=True, frozen=("axes",), seconds={"plan": 0.1})
    second = Result("test_a", "simple", stage="run", reason="r")
    file.add(first)
    file.add(second)
    with file.path.open("a") as stream:
        stream.write('{"name": "test_b", "ki')
    assert ResultFile("plain").read() == {("node", "test_a"): first, ("simple", "test_a"): second}
    assert ResultFile("constant").read() == {}
    monkeypatch.setattr(results, "sources_digest", lambda: "other")
    assert ResultFile("plain").read() == {}


def test_times_are_those_of_models_that_were_compiled() -> None:
    def result(name: str, **seconds: float) -> Result:
        return Result(name, "node", seconds=seconds)

    made = [
        result("a", plan=0.1, build=0.2, link=0.3, open=5.0),
        result("refused", plan=9.0),
        result("b", plan=1.0, build=1.0, link=1.0, open=0.0, run=7.0),
        result("c", plan=0.0, build=0.5, link=0.5, open=0.0),
    ]
    said = "compiled 3 models in 1.00 s (median), at most 3.00 s (b)"
    assert compile_times(made) == said
    assert compile_times(made[1:2]) == "nothing was compiled"


# -- guard pages -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "offset"),
    [((), 0), ((), -1), ((3,), 0), ((3,), -1), ((0, 2), 0), ((1025,), 0), ((1025,), -1)],
)
def test_bytes_beside_a_guarded_array_cannot_be_accessed(
    shape: tuple[int, ...], offset: int
) -> None:
    def work(number: int, on_stage: OnStage) -> Result:
        array = guarded_copy(np.ones(shape, np.float32))
        on_stage("inside")
        if array.size:
            ctypes.memset(array.ctypes.data, number, array.nbytes)
        on_stage("outside")
        end = array.ctypes.data + array.nbytes
        page = end - -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        ctypes.memset(end if offset == 0 else page - 1, 0, 1)
        return Result("test", "node", passed=True)

    def lost(number: int, stage: str, reason: str) -> Result:
        return Result("test", "node", stage=stage, reason=reason)

    (result,) = run_all([0], work, lost, jobs=1, timeout=30)
    assert (result.stage, result.reason) == ("outside", "Crash: SIGSEGV")


def test_guarded_copies_are_equal() -> None:
    for array in (np.arange(6.0).reshape(2, 3), np.array(3), np.array(["a", "b"], object)):
        copy = guarded_copy(array)
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)
