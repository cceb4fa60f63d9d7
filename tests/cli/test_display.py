"""Numbers as people read them, and profiles joined with the manifest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from rutc.driver.compiler import Options, Report, compile_model
from rutc.report.display import (
    BYTES,
    profile_table,
    quantity,
    report_text,
    step_times,
)
from rutc.report.inside_library import inspect_library
from rutc.report.shown_values import values_json
from rutc.runtime import ProfileEntry
from rutc.tensor_ir.textual.parse import parse_index


@pytest.mark.parametrize(
    ("value", "unit", "step", "text"),
    [
        (0, "FLOP", 1000.0, "0 FLOP"),
        (999, "FLOP", 1000.0, "999 FLOP"),
        (2_500_000_000, "FLOP", 1000.0, "2.5 GFLOP"),
        (1024, "B", BYTES, "1 KiB"),
        (1_600_000, "B", BYTES, "1.53 MiB"),
        (5e15, "FLOP", 1000.0, "5e+03 TFLOP"),
    ],
)
def test_quantities(value: float, unit: str, step: float, text: str) -> None:
    assert quantity(value, unit, step) == text


def test_steps_of_one_kernel_are_told_apart() -> None:
    """Two launches of one piece of code and a copy, which the manifest does not know."""
    kernels = [
        {"name": "g0", "symbol": "k_1", "origin": ["a", "b"], "flops": 2000, "bytes": 100},
        {"name": "g1", "symbol": "k_1", "origin": ["c"], "flops": 2000, "bytes": 100},
    ]
    entries = [
        ProfileEntry("k_1", "c", 1, 2.0),
        ProfileEntry("copy", "", 1, 0.5),
        ProfileEntry("k_1", "a, b", 1, 1.0),
    ]
    times = step_times(entries, kernels)
    assert [time.name for time in times] == ["g1", "copy", "g0"]
    assert [time.us for time in times] == [2.0, 0.5, 1.0]
    assert [time.gflops for time in times] == [1.0, None, 2.0]


def test_steps_of_loops_count_as_often_as_a_run_takes_them() -> None:
    kernels = [{"name": "g0", "symbol": "k_1", "origin": [], "flops": 2000, "bytes": 100}]
    once, often = step_times(
        [ProfileEntry("k_0", "", 1, 2.0), ProfileEntry("k_1", "", 50, 100.0)], kernels
    )
    assert (once.us, once.calls) == (2.0, 1)
    assert (often.us, often.calls, often.gflops) == (100.0, 50, 1.0)
    table = profile_table([once, often])
    assert [c.header for c in table.columns][2:4] == ["calls", "us"]
    assert "calls" not in [c.header for c in profile_table([once]).columns]


def test_work_of_kernels_in_turn_is_that_of_all_turns() -> None:
    """In a run, and in a loop of three trips."""
    kernels: list[dict[str, object]] = [
        {"name": name, "symbol": "k_1", "origin": [], "flops": 8000, "bytes": 80, "turns": 8}
        for name in ("g0", "g1")
    ]
    entries = [ProfileEntry("k_1", "", calls, 2.0) for calls in (8, 24)]
    run, loop = step_times(entries, kernels)
    assert (run.calls, run.flops, run.bytes) == (8, 8000, 80)
    assert (loop.calls, loop.flops, loop.bytes) == (24, 24000, 240)


def test_a_step_whose_work_depends_on_sizes_has_no_rate() -> None:
    kernels = [
        {"name": "g0", "symbol": "k_1", "origin": [], "flops": 2000, "bytes": 100, "symbols": ["n"]}
    ]
    (time,) = step_times([ProfileEntry("k_1", "", 1, 2.0)], kernels)
    assert (time.us, time.gflops, time.gbytes) == (2.0, None, None)
    (usual,) = step_times([ProfileEntry("k_1", "", 1, 2.0)], kernels, usual=True)
    assert (usual.gflops, usual.gbytes) == (1.0, 0.05)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (1020 * 1024, "1020 KiB"), (1020.4 * 1024, "1020 KiB"), (1536, "1.5 KiB")],
)
def test_quantities_are_written_without_exponents(value: float, said: str) -> None:
    assert quantity(value, "B", BYTES) == said


def test_whole_numbers_are_shown_as_such() -> None:
    values = {"i": np.array([5, 1], np.int64), "f": np.array([0.5, 2], np.float32)}
    whole, real = values_json(values)
    assert [str(whole[key]) for key in ("min", "mean", "max")] == ["1", "3.0", "5"]
    assert [str(real[key]) for key in ("min", "mean", "max")] == ["0.5", "1.25", "2.0"]


@pytest.mark.parametrize(("own", "said"), [(0, "no sums of products in 8 bits: "), (3, "2 of 3 ")])
def test_sums_in_8_bits_are_told_where_there_are_some(own: int, said: str) -> None:
    report = Report(Path("m.so"), Path("m.h"), {}, 3, 2048, 10, 5, precision="int8")
    told = report_text(replace(report, integer_sums=2 if own else 0, sums=own)).splitlines()
    assert told[1].startswith(said)


def test_products_of_other_types_are_told_where_none_are_in_8_bits() -> None:
    report = Report(Path("m.so"), Path("m.h"), {}, 3, 2048, 10, 5, precision="int8")
    assert report_text(report).splitlines()[1].endswith(" of f32 values and constants")
    other = report_text(replace(report, other_types="f16, f64")).splitlines()[1]
    assert other.endswith(" of f32 values and constants, but of f16, f64")


def test_memory_of_a_model_of_many_sizes_is_that_of_some() -> None:
    def said(**more: Any) -> str:
        report = Report(Path("m.so"), Path("m.h"), {}, 3, 2048, 10, 5)
        return report_text(replace(report, **more)).splitlines()[0]

    assert said().endswith(", 2 KiB of working memory")
    assert said(kernels=1).startswith("m.so: 1 kernel, ")
    for_threads = said(thread_bytes=1536)
    assert for_threads.endswith(", 2 KiB of working memory, 1.5 KiB for each thread")
    several: dict[str, Any] = {"sizes": "n=8 h=320", "thread_bytes": 1536, "arena_most": 1 << 20}
    common = (
        "m.so: 3 kernels, 10 B of weights, 1.5 KiB for each thread; at n=8 h=320 5 FLOP per run, "
        "2 KiB of working memory"
    )
    assert said(**several) == common
    assert said(**several, largest="n=64 h=640") == f"{common}, 1 MiB at n=64 h=640"


def test_the_memory_at_the_least_and_the_largest_sizes_is_what_a_session_takes(
    tmp_path: Path,
) -> None:
    values = [make_tensor_value_info(n, TensorProto.FLOAT, ["n", 100]) for n in "xy"]
    nodes = [make_node("MatMul", ["x", "w"], ["z"]), make_node("Softmax", ["z"], ["s"])]
    nodes.append(make_node("MatMul", ["s", "w"], ["y"]))
    weights = numpy_helper.from_array(np.eye(100, dtype=np.float32), "w")
    graph = make_graph(nodes, "g", values[:1], values[1:], [weights])
    onnx.save(
        make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx"
    )
    options = Options(dims={"n": (3, 500, 1, 50)})
    report = compile_model(tmp_path / "m.onnx", tmp_path / "m.so", options)
    assert report.arena_formula is not None
    memory = parse_index(report.arena_formula)
    assert report.arena_least == memory.evaluate({"n": 3})
    assert report.arena_most == memory.evaluate({"n": 500})
    assert report.arena_least < report.arena_bytes < report.arena_most
    assert (report.sizes, report.largest) == ("n=50", "n=500")
    _, shown = inspect_library(tmp_path / "m.so")
    common = quantity(report.arena_bytes, "B", BYTES)
    assert f"{common} of working memory at common sizes" in str(shown[1])


def test_more_filtered_sums_than_a_screen_holds_are_listed_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [make_tensor_value_info(n, TensorProto.FLOAT, [1, 64, 56, 56]) for n in "xy"]
    nodes = [make_node("Conv", ["x", "w"], ["y"], "filtering", pads=[1, 1, 1, 1])]
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((64, 64, 3, 3)).astype("f4"), "w")
    graph = make_graph(nodes, "g", values[:1], values[1:], [weights])
    onnx.save(
        make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx"
    )
    compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(target="x86-64-v4"))
    monkeypatch.setattr("rutc.report.inside_library.MOST_LISTED", 0)
    line = "sums that other algorithms compute: 1 by"
    for every in (False, True):
        _, shown = inspect_library(tmp_path / "m.so", all_kernels=every)
        told = [item for item in shown if isinstance(item, str) and item.startswith(line)]
        assert len(told) == (not every)
