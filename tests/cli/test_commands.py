"""The commands on a small model: what they answer, write and leave behind."""

import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc as package
from rutc.emit.targets import native_target
from rutc.report.console import Screen
from rutc.verify import OutputComparison, Verification, verify_model
from tests.cli.conftest import Rutc
from tests.close import assert_close
from tests.signals import as_in_foreground


def _expected(model: Path, x: np.ndarray) -> np.ndarray:
    (weight,) = onnx.load(model).graph.initializer
    product: np.ndarray = np.maximum(x @ numpy_helper.to_array(weight), 0)
    return product


def test_version(rutc: Rutc) -> None:
    assert rutc("--version").stdout.strip() == f"rutc {package.__version__}"


def test_the_installed_script_answers() -> None:
    script = Path(sys.executable).with_name("rutc")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"rutc {package.__version__}"


def test_compile_writes_a_library_and_a_header(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--json")
    assert result.status == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.h", "net.so"]
    assert result.json["library"] == str(tmp_path / "net.so")
    assert result.json["header"] == str(tmp_path / "net.h")
    verification = result.json["verification"]
    assert isinstance(verification, dict)
    assert verification["passed"] is True


def test_the_default_output_is_in_the_current_folder(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = rutc("compile", model)
    assert result.status == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.h", "small.so"]
    assert "verified: 1 of 1 outputs agree with float64 and ONNX Runtime" in result.stdout


def test_no_verify_says_so(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--no-verify")
    assert result.status == 0, result.stderr
    assert "not verified" in result.stdout


def test_run_writes_the_outputs(rutc: Rutc, tmp_path: Path, model: Path, artifact: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    output = tmp_path / "y.npz"
    result = rutc("run", artifact, "--input", f"x={tmp_path / 'x.npy'}", "--output", output)
    assert result.status == 0, result.stderr
    assert "float32" in result.stdout
    with np.load(output) as stored:
        assert_close(stored["y"], _expected(model, x), reduction=1024)


def test_run_writes_sequences_and_maps(rutc: Rutc, tmp_path: Path) -> None:
    source = """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
        g (float[4, 3] x) => (seq(float[2, 3]) s, seq(float[2, 3]) none, seq(map(int64, float)) m) {
            s = SplitToSequence <axis = 0> (x, two)
            none = SequenceEmpty <dtype = 1> ()
            m = ai.onnx.ml.ZipMap <classlabels_int64s = [5, 7, 9]> (x) }"""
    built = onnx.parser.parse_model(source)
    built.graph.initializer.append(numpy_helper.from_array(np.array(2), "two"))
    onnx.save(built, tmp_path / "m.onnx")
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", x)
    library, output = tmp_path / "m.so", tmp_path / "y.npz"
    made = rutc("compile", tmp_path / "m.onnx", "-o", library)
    assert made.status == 0, made.stderr
    # The elements of sequences and maps are parts of an output.
    assert "3 of 3 outputs agree" in made.stdout
    header = (tmp_path / "m.h").read_text()
    assert '"m", float32 [4, 3]\n *     values of the keys 5, 7, 9, along the last axis\n' in header
    for path in (tmp_path / "m.onnx", library):
        shown = rutc("inspect", path).stdout
        for kind in ("seq(tensor(float))", "seq(map(int64,tensor(float)))"):
            assert kind in shown
        assert "[]" not in shown
    result = rutc("run", library, "--input", f"x={tmp_path / 'x.npy'}", "--output", output)
    assert result.status == 0, result.stderr
    with np.load(output) as stored:
        rows = [f"m[{k}].{part}" for k in range(4) for part in ("keys", "values")]
        assert list(stored) == ["s[0]", "s[1]", *rows]
        np.testing.assert_array_equal(stored["s[1]"], x[2:])
        np.testing.assert_array_equal(stored["m[3].keys"], [5, 7, 9])
        np.testing.assert_array_equal(stored["m[3].values"], x[3])


def test_a_run_says_which_inputs_it_generates(rutc: Rutc, tmp_path: Path) -> None:
    source = """<ir_version: 9, opset_import: ["" : 20]>
        g (float[2] a, float[2] b) => (float[2] y) { y = Add (a, b) }"""
    onnx.save(onnx.parser.parse_model(source), tmp_path / "m.onnx")
    library = tmp_path / "m.so"
    assert rutc("compile", tmp_path / "m.onnx", "-o", library, "--no-verify").status == 0
    a, b = (tmp_path / f"{name}.npy" for name in "ab")
    np.save(a, np.zeros(2, "f4"))
    np.save(b, np.ones(2, "f4"))
    for sources, line in (
        ((), "on inputs generated from seed 0; --input"),
        ((f"a={a}",), "on inputs generated from seed 0, but for 'a'; --input"),
        (("a=random:3",), "on inputs generated from seed 0, but for 'a'; --input"),
        (("random:3",), ""),
        ((f"a={a}", f"b={b}"), ""),
    ):
        given = [text for source in sources for text in ("--input", source)]
        result = rutc("run", library, *given)
        assert result.status == 0, result.stderr
        assert line in result.stdout
        assert bool(line) is ("generated" in result.stdout)


def test_written_strings_are_read_as_inputs(rutc: Rutc, tmp_path: Path) -> None:
    source = """<ir_version: 9, opset_import: ["" : 20]>
        g (string[2, 2] x) => (string[2, 2] y) { y = StringConcat (x, x) }"""
    onnx.save(onnx.parser.parse_model(source), tmp_path / "m.onnx")
    library, output = tmp_path / "m.so", tmp_path / "y.npz"
    assert rutc("compile", tmp_path / "m.onnx", "-o", library, "--no-verify").status == 0
    np.save(tmp_path / "x.npy", np.array([["a", ""], ["ä b", "c"]]))
    for source, text in (("x.npy", "ä bä b"), ("y.npz", "ä bä bä bä b")):
        result = rutc("run", library, "--input", tmp_path / source, "--output", output)
        assert result.status == 0, result.stderr
        with np.load(output, allow_pickle=False) as stored:
            assert stored["y"][1, 0] == text


def test_a_model_whose_path_is_no_text(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe.onnx")
    path.write_bytes(model.read_bytes())
    result = rutc("compile", path, "-o", tmp_path / "out.so")
    assert result.status == 2
    assert "its path is no UTF-8 text; rename it" in result.stderr
    assert "`rutc compile --no-verify` compiles unchecked" in " ".join(result.stderr.split())
    assert rutc("compile", path, "-o", tmp_path / "out.so", "--no-verify").status == 0


def test_verify_passes_on_given_inputs(rutc: Rutc, model: Path, artifact: Path) -> None:
    result = rutc("verify", model, artifact, "--input", "random:7", "--threads", 2, "--json")
    assert result.status == 0, result.stderr
    assert result.json["passed"] is True
    assert result.json["inputs"] == "given inputs"


def test_compile_verifies_on_given_inputs(rutc: Rutc, tmp_path: Path, model: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((4, 8), 0.5, np.float32))
    given = ("--input", f"x={tmp_path / 'x.npy'}")
    result = rutc("compile", model, "-o", tmp_path / "net.so", *given)
    assert result.status == 0, result.stderr
    assert "\n  on given inputs\n" in result.stdout


def test_verify_compiles_when_there_is_no_artifact(rutc: Rutc, model: Path) -> None:
    before = sorted(model.parent.iterdir())
    assert rutc("verify", model).status == 0
    assert sorted(model.parent.iterdir()) == before


def test_verify_ends_with_status_2_where_a_case_is_skipped(
    rutc: Rutc, tmp_path: Path, model: Path, artifact: Path
) -> None:
    x = np.ones((4, 8), np.float32)
    np.savez(tmp_path / "a.npz", allow_pickle=False, x=x)
    assert rutc("verify", model, artifact, "--data", tmp_path).status == 0
    (tmp_path / "b.npz").write_bytes(b"junk")
    result = rutc("verify", model, artifact, "--data", tmp_path)
    assert result.status == 2
    text = " ".join(result.stdout.split())
    assert "1 of 1 outputs agree" in text
    assert f"skipped: {tmp_path / 'b.npz'} is no numpy file" in text
    result = rutc("verify", model, artifact, "--data", tmp_path, "--json")
    assert result.status == 2
    assert result.json["passed"] is True
    assert len(result.json["skipped"]) == 1
    np.savez(tmp_path / "c.npz", allow_pickle=False, x=x, y=np.zeros((4, 16), np.float32))
    result = rutc("verify", model, artifact, "--data", tmp_path)
    assert result.status == 1
    assert "not what the data expects" in result.stdout
    assert "skipped:" in result.stdout


def test_verify_fails_on_another_model(rutc: Rutc, tmp_path: Path, artifact: Path) -> None:
    result = rutc("verify", _negated(artifact, tmp_path / "other.onnx"), artifact)
    assert result.status == 1
    assert "0 of 1 outputs agree" in result.stdout


def test_bisect_says_when_no_node_is_at_fault(rutc: Rutc, tmp_path: Path, artifact: Path) -> None:
    other = onnx.load(artifact.with_suffix(".onnx"))
    other.graph.node[1].op_type = "Neg"
    onnx.save(other, tmp_path / "other.onnx")
    result = rutc("verify", tmp_path / "other.onnx", artifact, "--bisect")
    assert result.status == 1
    assert "no node could be named" in result.stdout


def test_bench_interleaves_with_onnxruntime(rutc: Rutc, model: Path, artifact: Path) -> None:
    result = rutc(
        *("bench", artifact, "--against", "onnxruntime", "--model", model),
        *("--seconds", 0.1, "--threads", 1, "--threads", 2, "--json"),
    )
    assert result.status == 0, result.stderr
    timings = result.json["timings"]
    assert isinstance(timings, list)
    assert [timing["threads"] for timing in timings] == [1, 2]
    assert all(timing["ratio"] > 0 for timing in timings)


@pytest.mark.parametrize("options", [["--against", "onnxruntime"], ["--against", "tvm"]])
def test_bench_needs_a_known_peer_and_its_model(
    rutc: Rutc, artifact: Path, options: list[str]
) -> None:
    assert rutc("bench", artifact, *options).status == 2


def test_inspect_shows_an_artifact(rutc: Rutc, artifact: Path) -> None:
    result = rutc("inspect", artifact)
    assert result.status == 0, result.stderr
    for word in ("x", "y", "tensor(float)", "product", "FLOP"):
        assert word in result.stdout


def test_more_kernels_than_a_screen_holds_are_listed_on_request(
    rutc: Rutc, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rutc.report.inside_library.MOST_LISTED", 0)
    shown = rutc("inspect", artifact).stdout
    assert "kernels: --kernels lists them, --profile runs and times them" in shown
    assert "FLOP" not in shown
    assert "FLOP" in rutc("inspect", artifact, "--kernels").stdout


def test_inspect_profiles_an_artifact(rutc: Rutc, artifact: Path) -> None:
    result = rutc("inspect", artifact, "--profile", "--json")
    assert result.status == 0, result.stderr
    profile = result.json["profile"]
    assert isinstance(profile, list)
    assert profile
    assert all(step["us"] >= 0 for step in profile)


@pytest.mark.parametrize(
    ("threads", "timed", "line"),
    [(1, "processor", "processor time of the thread"), (2, "elapsed", "time that passes")],
)
def test_a_profile_says_what_is_timed(
    rutc: Rutc, artifact: Path, threads: int, timed: str, line: str
) -> None:
    told = rutc("inspect", artifact, "--profile", "--threads", threads, "--json").json
    assert told["timed"] == timed
    assert line in rutc("inspect", artifact, "--profile", "--threads", threads).stdout


def test_a_profile_says_what_kernels_take_at_least(rutc: Rutc, artifact: Path) -> None:
    """Every kernel has such a time and what limits it, and all together have a line."""
    told = rutc("inspect", artifact, "--profile", "--threads", 1, "--json").json
    steps = told["profile"]
    assert isinstance(steps, list)
    kernels = [step for step in steps if step["kernel"] is not None]
    assert kernels
    assert all(step["least_us"] > 0 and step["limit"] for step in kernels)
    assert told["least_us"] == pytest.approx(sum(step["least_us"] for step in kernels))
    shown = rutc("inspect", artifact, "--profile", "--threads", 1).stdout
    assert "on this machine with these kernels" in shown
    assert all(word in shown for word in ("least us", "reached", "limit"))


def test_inspect_shows_a_model(rutc: Rutc, model: Path) -> None:
    result = rutc("inspect", model)
    assert result.status == 0, result.stderr
    for word in ("ai.onnx", "1 weight of", "tensor(float)", "x", "y", "operator"):
        assert word in result.stdout


def test_inspect_tells_what_a_model_holds(rutc: Rutc, tmp_path: Path) -> None:
    """Weights and operators are counted in branches, too; sizes are those of inputs."""
    floats = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    weight = numpy_helper.from_array(np.ones((4, 6), np.float32), "w")
    packed = helper.make_tensor("p", TensorProto.UINT4, [5, 2], [1] * 10)
    branch = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=weight),
            helper.make_node("MatMul", ["x", "c"], ["t"]),
        ],
        "branch",
        [],
        [floats("t", shape=["n", 6])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("If", ["which"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["m", "i"], ["y"]),
        helper.make_node("Cast", ["p"], ["q"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            floats("x", shape=["n", 4]),
            helper.make_tensor_value_info("which", TensorProto.BOOL, []),
        ],
        [floats("y", shape=["n", 6]), floats("q", shape=[5, 2])],
        [weight, packed],
    )
    path = tmp_path / "m.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path
    )
    found = rutc("inspect", path, "--dim", "n=1..9", "--json").json
    assert found["opsets"] == {"ai.onnx": 21}
    assert found["weights"] == 4
    assert found["weight_bytes"] == 3 * 96 + 5
    assert found["operators"] == {"MatMul": 3, "Constant": 2, "If": 1, "Add": 1, "Cast": 1}
    assert found["sizes"] == {"n": [1, 9]}
    assert found["common_sizes"] == {"n": 1}
    inputs = found["inputs"]
    assert isinstance(inputs, list)
    assert [(i["name"], i["type"], i["shape"]) for i in inputs] == [
        ("x", "tensor(float)", ["n", 4]),
        ("which", "tensor(bool)", []),
    ]
    shown = rutc("inspect", path).stdout
    assert "sizes that a run chooses: n (from 0 on, planned for 1)" in shown
    assert "4 weights of 293 B" in shown


def test_doctor(rutc: Rutc) -> None:
    result = rutc("doctor", "--json")
    assert result.status == 0, result.stderr
    assert result.json["problems"] == []
    assert str(result.json["C compiler"])
    rates = str(result.json.get("in a cycle", ""))
    assert not re.search(r"\b1 [a-z-]+s\b", rates)


def test_doctor_tells_the_features_that_code_is_made_for(
    rutc: Rutc, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = frozenset(["avx2", "sse4.2", "movbe"])
    monkeypatch.setattr("rutc.report.doctor.host_features", lambda: present)
    assert rutc("doctor", "--json").json["CPU features"] == "avx2 sse4.2"


def test_what_code_needs_besides_its_target_is_told(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library for this machine and one for the target that is named may be of one target."""
    path = tmp_path / "net.so"
    assert rutc("compile", model, "-o", path).status == 0
    native = native_target()

    def first_line_beside(*missing: str) -> str:
        machine = replace(native.machine, features=native.machine.features.difference(missing))
        for module in ("inside_library", "doctor"):
            named = f"rutc.report.{module}.target_named"
            monkeypatch.setattr(named, lambda _: replace(native, machine=machine))
        return rutc("inspect", path).stdout.splitlines()[0]

    assert first_line_beside() == f"{path}: target {native.name}, precision fp32"
    assert rutc("doctor", "--json").json["target"] == f"{native.name}: {native.describe}"
    # Of registers for matrices a library says only what it uses.
    two = sorted(native.machine.without_matrices().features)[:2]
    told = first_line_beside(*two)
    assert told == f"{path}: target {native.name} with {', '.join(two)}, precision fp32"
    told = str(rutc("doctor", "--json").json["target"])
    assert told == f"{native.name}: {native.describe} and {', '.join(two)}"


def test_a_wrong_result_does_not_replace_a_good_one(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.so").write_text("an older artifact")

    def disagree(model: Path, library: Path, **more: object) -> Verification:
        real = verify_model(model, library)
        wrong = OutputComparison("y", "float32", (4, 16), passed=False, reason="made to differ")
        return replace(real, outputs=(wrong,))

    monkeypatch.setattr("rutc.verify.verify_model", disagree)
    result = rutc("compile", model, "-o", tmp_path / "net.so")
    assert result.status == 1
    assert "does not agree with ONNX Runtime" in result.stderr
    assert "made to differ" in result.stdout
    assert (tmp_path / "net.so").read_text() == "an older artifact"
    kept = tmp_path / "net.unverified"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "net.so", kept]
    assert sorted(kept.iterdir()) == [kept / "net.h", kept / "net.so"]
    assert str(kept / "net.so") in result.stderr


def test_an_interrupt_leaves_nothing(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **more: object) -> Verification:
        raise KeyboardInterrupt

    monkeypatch.setattr("rutc.verify.verify_model", interrupt)
    result = rutc("compile", model, "-o", tmp_path / "net.so")
    assert result.status == 130
    assert "interrupted" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_leaves_nothing(
    tmp_path: Path, model: Path, number: signal.Signals, status: int
) -> None:
    """The C compiler never finishes, so that the signal comes while the library is linked."""
    started, output = tmp_path / "started", tmp_path / "out"
    output.mkdir()
    slow = tmp_path / "slow_cc"
    answers = 'case "$1" in --version|-dumpmachine) echo slow; exit;; esac'
    slow.write_text(f"{answers}\ntouch {started}\nexec sleep 60\n")
    environment = {**os.environ, "RUTC_CC": f"sh {slow}", "RUTC_CACHE": str(tmp_path / "cache")}
    script = Path(sys.executable).with_name("rutc")
    command = [script, "compile", model, "-o", output / "net.so"]
    with subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        preexec_fn=as_in_foreground,
    ) as process:
        deadline = time.monotonic() + 60
        while not (started.exists() and any(output.iterdir())):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(list(output.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(timeout=30) == status
    assert list(output.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_not_lost_while_an_object_goes(number: signal.Signals, status: int) -> None:
    """Python ignores what is raised in a finalizer."""
    program = f"""
import os, time
import rutc.cli as cli

class Leaving:
    def __del__(self):
        os.kill(os.getpid(), {int(number)})
        time.sleep(0.01)

def app():
    Leaving()
    time.sleep(60)

cli.app = app
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        timeout=30,
        check=False,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == status, done.stderr


def _fail(*arguments: object, **more: object) -> Verification:
    raise RuntimeError("this cannot happen")


def test_a_bug_says_what_to_report(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rutc.verify.verify_model", _fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    output = tmp_path / "out"
    output.mkdir()
    result = rutc("compile", model, "-o", output / "net.so")
    assert result.status == 3
    assert "this is a bug of rutc: RuntimeError: this cannot happen" in result.stderr
    (report,) = tmp_path.glob("rutc-crash-*.txt")
    assert str(report) in result.stderr
    assert "Traceback" in report.read_text()
    assert list(output.iterdir()) == []


def test_debug_shows_the_traceback(
    rutc: Rutc, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rutc.verify.verify_model", _fail)
    result = rutc("compile", model, "-o", tmp_path / "net.so", "--debug")
    assert result.status == 3
    assert "Traceback" in result.stderr


def test_cache(rutc: Rutc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RUTC_CACHE_MIB", "7")
    assert rutc("cache", "--json").json["objects"] == 0
    assert rutc("compile", model, "-o", tmp_path / "net.so", "--no-verify").status == 0
    full = rutc("cache", "--json").json
    assert full["folder"] == str(tmp_path / "cache")
    assert int(str(full["objects"])) > 2
    assert full["artifacts"] == 1
    assert int(str(full["bytes"])) < int(str(full["limit_bytes"])) == 7 << 20
    shown = f"in 1 artifacts and {full['objects']} compiled parts, at most 7 MiB"
    assert shown in rutc("cache").stdout
    cleared = rutc("cache", "--clear", "--json").json
    assert (cleared["objects"], cleared["artifacts"]) == (0, 0)


def test_python_mirrors_the_command_line(tmp_path: Path, model: Path) -> None:
    compiled = package.compile(model, tmp_path / "net.so", threads=1)
    assert compiled.verification is not None
    assert compiled.verification.passed
    x = np.ones((4, 8), np.float32)
    with package.load(compiled.library, threads=1) as session:
        (y,) = session.run(None, {"x": x})
    assert_close(y, _expected(model, x), reduction=1024)


def test_every_process_makes_the_same_bytes(model: Path, tmp_path: Path) -> None:
    made = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RUTC_CACHE": str(folder / "cache")}
        script = Path(sys.executable).with_name("rutc")
        # Both for the same rates: under load, two measurements may differ.
        command = [script, "compile", model, "-o", folder / "net.so", "--no-verify"]
        command += ["--target", native_target().name]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        made.append((folder / "net.so").read_bytes())
    assert made[0] == made[1]


def _negated(artifact: Path, path: Path) -> Path:
    """Writes the model of an artifact with all weights negated."""
    other = onnx.load(artifact.with_suffix(".onnx"))
    changed = -numpy_helper.to_array(other.graph.initializer[0])
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(changed, "w"))
    onnx.save(other, path)
    return path


def test_a_bisection_that_fails_does_not_hide_what_differs(
    rutc: Rutc, tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _negated(artifact, tmp_path / "other.onnx")
    monkeypatch.setattr("rutc.driver.bisect.bisect", _fail)
    result = rutc("verify", other, artifact, "--bisect")
    assert result.status == 1
    assert "0 of 1 outputs agree" in result.stdout
    assert "not bisected: RuntimeError: this cannot happen" in result.stdout
    result = rutc("verify", other, artifact, "--bisect", "--json")
    assert result.status == 1
    assert (result.json["passed"], result.json["divergence"]) == (False, None)
    assert result.json["bisect_error"] == "RuntimeError: this cannot happen"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shape", "x=4,8"], "--shape would change nothing"),
        (["--value", "x=1", "--target", "x86-64-v3"], "--target, --value would change nothing"),
        (["--state", "x=y"], "--state would change nothing"),
        (["--dim", "n=1..4"], "no range can be chosen: write n=N"),
        (["--dim", "n=4"], "--dim n=4: the compiled model has no such size; it runs at one size"),
    ],
)
def test_what_only_compiling_can_heed_is_refused_beside_an_artifact(
    rutc: Rutc, model: Path, artifact: Path, options: list[str], words: str
) -> None:
    result = rutc("verify", model, artifact, *options)
    assert result.status == 2
    assert words in " ".join(result.stderr.split())
    assert result.stderr.count("error:") == 1


def test_json_has_no_numbers_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {"a": math.nan, "b": [math.inf, (-math.inf, 1.5)], "c": np.float32("nan")}
    Screen(as_json=True).result({**numbers, "d": np.float64("inf"), "e": np.int64(3)})
    text = capsys.readouterr().out
    found = json.loads(text, parse_constant=pytest.fail)
    assert found == {"a": "nan", "b": ["inf", ["-inf", 1.5]], "c": "nan", "d": "inf", "e": 3}


def test_outputs_that_are_no_numbers_are_told_as_json(
    rutc: Rutc, tmp_path: Path, artifact: Path
) -> None:
    np.save(tmp_path / "x.npy", np.full((4, 8), np.inf, np.float32))
    result = rutc("run", artifact, "--input", tmp_path / "x.npy", "--json")
    assert result.status == 0, result.stderr
    (y,) = json.loads(result.stdout, parse_constant=pytest.fail)["outputs"]
    assert y["max"] in ("nan", "inf")
