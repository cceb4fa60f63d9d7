"""The harness of the benchmarks: what peers compute, and what is made of their times."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks import compile_time, layout, regret, store
from benchmarks.compile_time import CHAINS, EXPORTS, FREE, ONE, cases, chain, compiled
from benchmarks.line_times import between
from benchmarks.machine import ROOT, provenance
from benchmarks.native import native_calls
from benchmarks.peak import assembly, measured_peaks
from benchmarks.peers import fastest, installed_peers
from benchmarks.plot import draw, speeds
from benchmarks.protocol import Halves, Page
from benchmarks.readme import README, table, with_table
from benchmarks.store import case_of
from benchmarks.zoo import PAGE as ZOO
from benchmarks.zoo_page import page
from rutc.driver.compiler import Options, compile_model
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.tuner.heuristic import TEMPLATES
from rutc.verify.interleaved import Run
from tests.close import assert_close

PEERS = ("onnxruntime",)
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
ROOM = {"y": ("float32", (3, 7))}


@pytest.fixture
def _processors() -> Iterator[None]:
    """Peers may bind the thread that calls them to one processor."""
    allowed = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("_processors")
@pytest.mark.parametrize("name", [n for n in installed_peers() if n != "torch.compile"])
def test_every_peer_computes_the_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    expected = np.maximum(INPUTS["x"] @ INPUTS["w"], 0)
    for threads, room in ((1, None), (2, ROOM)):
        run = installed_peers()[name](path, threads, INPUTS, room)
        assert_close(first_result(run), expected, reduction=1024)


def first_result(run: Run) -> np.ndarray:
    """A copy of a run's first output, whose own memory goes with the run."""
    found: Any = run()
    first = next(iter(found.values() if hasattr(found, "values") else found))
    return np.array(first.numpy() if hasattr(first, "numpy") else first)


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
    run = measured_peaks().traffic(1000, 2000, 3, 2)
    began = time.perf_counter_ns()
    run()
    assert time.perf_counter_ns() > began


@pytest.mark.skipif(native_target().machine.architecture != "x86_64", reason="code for x86-64")
def test_the_fed_loop_loads_each_vector_once() -> None:
    code = assembly("znver3").partition("\nfed_loop:")[2].partition(".size\tfed_loop")[0]
    sums = [line for line in code.splitlines() if "vfmadd" in line]
    assert len(sums) % 12 == 0 < len(sums)
    assert not [line for line in sums if "(" in line], "operands in memory are loaded anew"


def test_a_model_that_is_no_export_has_no_network(tmp_path: Path) -> None:
    prepare = installed_peers().get("torch.compile")
    if prepare is None:
        pytest.skip("torch is not installed")
    with pytest.raises(ValueError, match="small is no export"):
        prepare(tmp_path / "small.onnx", 1, INPUTS, None)


def test_the_memory_of_a_compilation_is_its_own(tmp_path: Path) -> None:
    shutil.copy(ROOT / "models" / "digits" / "digits.onnx", tmp_path / "model.onnx")
    held = np.ones(1 << 30, np.uint8)
    found = compiled(tmp_path / "model.onnx", tmp_path / "cache", "--no-verify")
    assert held.any()
    assert 30 << 20 < found["peak_bytes"] < 1 << 30
    assert found["seconds"] > 0
    assert found["cpu_seconds"] > 0


def test_chains_that_are_compiled_have_all_their_operators() -> None:
    assert [f"{operators}{compile_time.CHAIN}" for operators in CHAINS] == cases()[-len(CHAINS) :]
    made = chain(7)
    onnx.checker.check_model(made, full_check=True)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds == ["Add", "Relu", "Mul", "Tanh", "Sub", "Add", "Relu"]
    reads = [node.input[0] for node in made.graph.node]
    assert reads == [made.graph.input[0].name, *(node.output[0] for node in made.graph.node)][:-1]


def test_exports_that_are_compiled_have_networks() -> None:
    pytest.importorskip("torch", reason="networks are built in PyTorch")
    from rutc.models.exports import NETWORKS

    assert set(EXPORTS) <= set(NETWORKS)
    assert {name + sizes for name in EXPORTS for sizes in (FREE, ONE)} <= set(cases())


def test_the_fastest_of_several_runs() -> None:
    def work(amount: int) -> Callable[[], object]:
        return lambda: sum(range(amount))

    slow, quick = work(200_000), work(10)
    assert fastest([slow, quick]) is quick
    assert fastest([slow]) is slow


def entry(model: str, threads: int = 1, cpu: str = "a", **median_us: float) -> store.Entry:
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
        "cpu": cpu,
        "processor": "znver9",
        "features": ["avx2"],
        "cpus": 2,
        "commit": "abc",
        "versions": {"onnxruntime": "1.2"},
        "date": "2026-01-02",
        "protocol": "some way",
    }


def test_the_page_has_ratios_shares_and_means() -> None:
    models = [entry(f"m{n}", rutc=100.0, onnxruntime=200.0 * n) for n in range(1, 6)]
    models[0]["failed"] = {"iree": "no"}
    models[1]["times"] = {}
    models[1]["error"] = "cannot compile"
    models[2]["parts"] = True
    models[3]["bound"] = False
    text = page([*models, entry("m1", 2, rutc=100.0, onnxruntime=50.0, iree=400.0)])
    assert "| m1 | 0.1 | 10 % | 0.2 (x0.50) |" in text
    assert "| m2 | cannot compile | | | abc |" in text
    assert "| m3 (bf16 matrix registers) |" in text
    assert "| m4 (unbound) |" in text
    assert "| m1 | 0.1 | 10 % | 0.05 (x2.00) | 0.4 (x0.25) | abc: 9 |" in text
    assert "(n=4)" not in text  # Too few for a mean.
    assert "| m1 | 1.5 | 0.25 |" in text
    assert "## a (znver9), AVX2 only" in text
    assert "- rutc at commit abc; 2 CPUs; onnxruntime 1.2; 2026-01-02; some way." in text


def test_machines_lie_side_by_side() -> None:
    entries = [entry(f"m{n}", cpu=cpu, rutc=1.0, onnxruntime=2.0) for cpu in "ab" for n in range(6)]
    entries.append(entry("m6", cpu="b", rutc=1.0, onnxruntime=9.0))
    text = page(entries)
    assert text.index("## b (znver9)") < text.index("## a (znver9)")
    lines = table(entries).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| b (znver9), AVX2 only", "2.5x (n=7)"],
        ["| a (znver9), AVX2 only", "2.0x (n=6)"],
    ]


def test_the_readme_has_the_table_of_what_is_measured() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_table(text, store.load(ZOO.results)) == text, "run python -m benchmarks.zoo --page"


def test_a_measurement_replaces_its_own_and_is_known_when_a_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored is what this machine measured; of others it keeps everything."""
    monkeypatch.setattr("benchmarks.protocol.ROOT", tmp_path)
    asked: list[tuple[str, float, Sequence[str]]] = []
    written: list[Sequence[store.Entry]] = []

    def measure(name: str, seconds: float, peers: Sequence[str]) -> store.Entry:
        asked.append((name, seconds, peers))
        if name == "two" and len(asked) < 4:
            raise UserError("not today")
        return {"us": len(asked), **asdict(provenance())}

    made = Page("made", "", ["one", "two"], measure, case_of, written.append)
    other: store.Entry = {"case": "one", "us": 7, "cpu": "another"}
    store.save(made.results, [other, {"case": "gone"}])
    assert made.chosen([], resume=True) == ["one", "two"]
    assert made.chosen(["tw"], resume=True) == ["two"]
    made.run(["one", "two"], 0.5, None)
    made.run(["one"], None, ["tvm"])
    assert asked == [("one", 0.5, PEERS), ("two", 0.5, PEERS), ("one", 5.0, ["tvm"])]
    kept = store.load(made.results)
    assert [(e["case"], e.get("us"), e.get("error")) for e in kept] == [
        ("one", 7, None),
        ("one", 3, None),
        ("two", None, "not today"),
    ]
    assert written[-1] == kept
    assert made.chosen([], resume=True) == ["two"]
    assert made.chosen([], resume=False) == ["one", "two"]
    # 60 cases of three runs of 6 s and 12 s beside.
    assert replace(made, prepare_s=12.0, loops=1).minutes(None, 60) == pytest.approx(30)


def test_cases_are_prepared_and_take_turns_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.protocol.ROOT", tmp_path)

    def measure(name: str, seconds: float, peers: Sequence[str]) -> store.Entry:
        raise AssertionError

    def prepare(name: str, folder: Path) -> None:
        (folder / name).write_text(f"{name} compiled")

    def take(name: str, folder: Path, seconds: float, peers: Sequence[str]) -> store.Entry:
        return {"us": seconds, "of": (folder / name).read_text(), **asdict(provenance())}

    written: list[Sequence[store.Entry]] = []
    halves = Halves(prepare, take)
    made = Page("made", "", ["one", "two"], measure, case_of, written.append, halves=halves)

    def asked(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["made", *arguments])
        made.main()

    asked("--prepare", str(tmp_path), "one")
    assert not written
    assert not (tmp_path / "two").exists()
    asked("--prepared", str(tmp_path), "one", "--seconds", "2")
    assert [(e["case"], e["us"], e["of"]) for e in written[-1]] == [("one", 2.0, "one compiled")]
    with pytest.raises(SystemExit):
        asked("--prepare", str(tmp_path), "--prepared", str(tmp_path))


@pytest.mark.usefixtures("_processors")
def test_a_model_of_the_zoo_is_compiled_first_and_timed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("not today")

    halves = ZOO.halves
    assert halves is not None
    one, two = "digits, 1 thread", "digits, 2 threads"
    with pytest.raises(UserError, match="not prepared"):
        halves.take(one, tmp_path, 0.01, PEERS)
    halves.prepare(one, tmp_path)
    monkeypatch.setattr("benchmarks.zoo.compiled", refuse)
    halves.prepare(one, tmp_path)
    halves.prepare(two, tmp_path)
    timed, refused = (halves.take(case, tmp_path, 0.01, PEERS) for case in (one, two))
    assert timed["agrees"]
    times = timed["times"]
    assert isinstance(times, dict)
    assert {"rutc", "onnxruntime"} <= set(times)
    assert refused["error"] == "not today"
    assert [ZOO.key(entry) for entry in (timed, refused)] == [one, two]


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


def test_schedules_of_all_spaces_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default's regret of a softmax, whose rows have no tiles, and of a product."""
    monkeypatch.setattr(regret, "TRIALS", 5)
    monkeypatch.setattr("benchmarks.timer.SPENT_NS", 10_000)
    monkeypatch.setattr(regret, "AGAIN", 3)
    names = (
        "operator Softmax of scores",
        "product 16x3072x768",
        "operator ScatterElements that adds",
    )
    found = [regret.measure(name, 1.0, ()) for name in names]
    known = [k for entry in found for k in entry["kernels"].values()]
    assert {"rows", "tiled", "scatter"} <= {k["template"] for k in known}
    for k in known:
        assert k["regret"] >= 0
        assert k["tried"] > 1
        assert k["best"].partition(":")[0] in {t.name for t in TEMPLATES}
    page = regret.page([{"case": name, **e} for name, e in zip(names, found, strict=True)])
    assert f"{len(known)} kernels: median" in page


def test_rows_of_two_threads_say_how_far_their_cpus_are() -> None:
    with between(2) as two, between(1) as one:
        pass
    assert one == {}
    if len(os.sched_getaffinity(0)) > 1:
        times = two["line_ns"]
        assert isinstance(times, list)
        assert len(times) == 2
        assert all(n > 0 for n in times)
    row = {"commit": "abc", "runs": {"rutc": 7, "onnxruntime": 9}}
    assert layout.origin(row) == "abc: 7 to 9"
    assert layout.origin({**row, "line_ns": [38, 38]}) == "abc: 7 to 9; 38 ns a line"
    assert layout.origin({**row, "line_ns": [210, 38]}) == "abc: 7 to 9; 38 to 210 ns a line"


def test_pages_say_where_other_work_waited() -> None:
    quiet = entry("m1", rutc=100.0) | {"realtime": True}
    (line,) = layout.measured_on([quiet], timed=True)
    assert line.endswith("some way; in real-time priority beside other work.")
    (line,) = layout.measured_on([entry("m1", rutc=100.0)], timed=True)
    assert line.endswith("some way.")
