"""The harness of the benchmarks: what peers compute, and what is made of their times."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks.native import native_calls
from benchmarks.peak import measured_peaks
from benchmarks.peers import fastest, installed_peers
from benchmarks.plot import draw, speeds
from benchmarks.zoo import with_others
from benchmarks.zoo_page import page, ratio
from rutc.compiler import Options, compile_model

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[3, 5] x, float[5, 7] w) => (float[3, 7] y) {
  p = MatMul (x, w)
  y = Relu (p)
}
"""
INPUTS = {
    "x": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5),
    "w": np.linspace(-2, 3, 35, dtype=np.float32).reshape(5, 7),
}


@pytest.mark.parametrize("name", [n for n in installed_peers() if n != "torch.compile"])
def test_every_peer_computes_the_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    for threads in (1, 2):
        found: Any = installed_peers()[name](path, threads, INPUTS)()
        values = list(found.values()) if hasattr(found, "values") else list(found)
        expected = np.maximum(INPUTS["x"] @ INPUTS["w"], 0)
        np.testing.assert_allclose(np.asarray(values[0]), expected, rtol=1e-5, atol=1e-5)


def test_calls_from_c_take_one_set_of_arrays_after_the_other(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[5] x, float[5] z) => (float[5] y)'
    onnx.save(parser.parse_model(text + " { y = Sub (x, z) }"), tmp_path / "m.onnx")
    library = compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(), None).library
    arrays = [np.arange(5, dtype=np.float32) * k for k in range(6)]
    sets = [
        ({"x": x, "z": z}, {"y": np.zeros(5, np.float32)})
        for x, z in zip(arrays[::2], arrays[1::2], strict=True)
    ]
    run = native_calls(library, sets, 2)
    for done in (2, 3):
        run()
        for k, (inputs, outputs) in enumerate(sets):
            want = inputs["x"] - inputs["z"] if k < done else np.zeros(5)
            np.testing.assert_array_equal(outputs["y"], want)


def test_passes_over_memory_run() -> None:
    measured_peaks().traffic(1000, 2000, 3, 2)()


def test_a_model_that_is_no_export_has_no_network(tmp_path: Path) -> None:
    prepare = installed_peers().get("torch.compile")
    if prepare is None:
        pytest.skip("torch is not installed")
    with pytest.raises(ValueError, match="small is no export"):
        prepare(tmp_path / "small.onnx", 1, INPUTS)


def test_the_fastest_of_several_runs() -> None:
    def work(amount: int) -> Callable[[], object]:
        return lambda: sum(range(amount))

    slow, quick = work(200_000), work(10)
    assert fastest([slow, quick]) is quick
    assert fastest([slow]) is slow


def entry(model: str, threads: int = 1, **median_us: float) -> dict[str, object]:
    summaries = {name: {"runs": 9, "median_us": us} for name, us in median_us.items()}
    return {
        "model": model,
        "threads": threads,
        "agrees": True,
        "compile_s": 1.5,
        "flops": 2_000_000,
        "peak_gflops": 200.0,
        "times": summaries,
        "ready_s": {"onnxruntime": 0.25},
        "failed": {},
        "cpu": "a processor",
        "cpus": 2,
        "commit": "abc",
        "versions": {"onnxruntime": "1.2"},
        "date": "2026-01-02",
    }


def test_the_page_has_ratios_shares_and_means() -> None:
    models = [entry(f"m{n}", rutc=100.0, onnxruntime=200.0 * n) for n in range(1, 6)]
    models[0]["failed"] = {"iree": "no"}
    models[1]["times"] = {}
    models[1]["error"] = "cannot compile"
    text = page([*models, entry("m1", 2, rutc=100.0, onnxruntime=50.0, iree=400.0)])
    assert "| m1 | 0.1 | 10 % | 0.2 (x0.50) |" in text
    assert "| m2 | cannot compile |" in text
    assert "| m1 | 0.1 | 10 % | 0.05 (x2.00) | 0.4 (x0.25) |" in text
    assert "(n=4)" not in text  # Too few for a mean.
    assert "| m1 | 1.5 | 0.25 |" in text
    assert "a processor, 2 CPUs; rutc at commit abc; onnxruntime 1.2; 2026-01-02" in text


def test_peers_of_an_earlier_run_are_kept_and_scaled_by_what_rutc_took() -> None:
    before = entry("m", rutc=120.0, onnxruntime=230.0, tvm=360.0)
    before["failed"] = {"iree": "no", "openvino": "no"}
    before["versions"] = {"onnxruntime": "1.1", "apache-tvm": "0.1"}
    now = entry("m", rutc=100.0, onnxruntime=200.0, openvino=150.0)
    both = with_others(now, before)
    assert ratio(both, "tvm") == pytest.approx(ratio(before, "tvm"))
    assert ratio(both, "onnxruntime") == ratio(now, "onnxruntime")
    assert both["failed"] == {"iree": "no"}
    assert both["versions"] == {"onnxruntime": "1.2", "apache-tvm": "0.1"}
    failed: dict[str, object] = {"model": "m", "threads": 1, "error": "no"}
    assert with_others(failed, before) is failed
    assert with_others(now, failed) is now


def test_plots_are_drawn_from_the_entries_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    entries = [
        entry("quick", rutc=50.0, onnxruntime=200.0, openvino=100.0),
        entry("slow", rutc=400.0, onnxruntime=200.0),
        {"model": "none", "threads": 1, "error": "no"},
    ]
    found = speeds(entries)
    assert found["rutc"] == [("quick", 4.0), ("slow", 0.5)]
    assert found["openvino"] == [("quick", 2.0)]
    (path,) = draw(entries, tmp_path)
    first = path.read_bytes()
    assert draw(entries, tmp_path) == [path]
    assert path.read_bytes() == first
    assert all(word in first for word in (b"quick", b"slow", b"openvino"))
