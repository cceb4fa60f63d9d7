"""`--precision int8`: calibrated, faster by the estimate, and as near as is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rutc
from rutc.driver.options import METHODS, Calibration, Options
from rutc.driver.plans.estimates import estimate_plan
from rutc.driver.precision import calibration, within_tolerance
from rutc.driver.precision.calibration import Case, RunningLibrary, spans
from rutc.driver.precision.chosen_sums import ChosenSums
from rutc.driver.precision.eight_bits import in_eight_bits
from rutc.emit.targets import target_named
from rutc.emit.targets.saved import save_machine
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives.filtering import SAID_IN_BF16
from rutc.graph_opt.decide import decide
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway
from rutc.graph_opt.quantise import Span, normal, quantised, sites
from rutc.importer import import_model
from rutc.models import digits
from rutc.runtime import load
from rutc.tensor_ir import Graph
from rutc.tensor_ir.textual.parse import parse
from rutc.verify import VerificationFailed
from rutc.verify.judging.budget import relative_error
from rutc.verify.judging.compare import Value
from tests.cli.conftest import invoke
from tests.close import assert_close
from tests.compiled import build, run
from tests.graph_opt.networks import Net
from tests.machines import V3, V4, needs
from tests.precision.test_bf16_pairs import PAIRS as SHORT

PAIRS = replace(SHORT, features=SHORT.features | {"avx512vnni"})
"""A machine that adds up products of bytes, and pairs of bf16."""

DIGITS = Path(digits.__file__).with_name("digits.onnx")
IMAGES = Path(digits.__file__).with_name("images.npz")


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large products, with an activation between them."""
    n = Net()
    x = n.input("batch", 256)
    x = n("Relu", n("Gemm", x, n.weight(256, 512), n.weight(512)))
    return n.save(
        tmp_path_factory.mktemp("layers") / "layers.onnx", n("MatMul", x, n.weight(512, 96))
    )


def cases(folder: Path, values: list[np.ndarray], name: str = "x0") -> Path:
    """A folder of cases."""
    folder.mkdir()
    for number, array in enumerate(values):
        np.savez(folder / f"{number}.npz", **{name: array})
    return folder


def test_large_products_are_summed_in_8_bits(layers: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = cases(tmp_path / "data", [rng.standard_normal((64, 256), np.float32) for _ in range(4)])
    done = rutc.compile(
        layers, tmp_path / "net.so", precision="int8", calibrate=data, dims={"batch": 64}
    )
    assert (done.report.integer_sums, done.report.sums) == (2, 2)
    assert done.verification is not None
    (output,) = done.verification.outputs
    assert output.error is not None
    assert 0 < output.error < 0.05
    assert output.judged == "--tolerance 0.1"
    usual = rutc.compile(layers, tmp_path / "usual.so", dims={"batch": 64}, verify=False)
    assert done.report.weight_bytes < usual.report.weight_bytes / 3
    x = rng.standard_normal((64, 256), np.float32)
    with load(done.library) as ours, load(usual.library) as theirs:
        facts = ours.manifest["eight_bits"]
        assert isinstance(facts, dict)
        assert facts["calibration"] == "4 given cases by mse"
        error = relative_error(ours.run(None, {"x0": x})[0], theirs.run(None, {"x0": x})[0])
    assert error < 0.05


def test_digits_are_read_as_before(tmp_path: Path) -> None:
    images = np.load(IMAGES)
    data = cases(tmp_path / "data", [images["image"]], "image")
    done = rutc.compile(DIGITS, tmp_path / "digits.so", precision="int8", calibrate=data)
    with load(done.library) as session:
        (scores,) = session.run(None, {"image": images["image"]})
    assert (np.asarray(scores).argmax(axis=1) == images["label"]).all()


def test_results_that_are_too_far_off_are_not_taken(layers: Path, tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed) as caught:
        rutc.compile(
            layers, tmp_path / "net.so", precision="int8", tolerance=1e-6, dims={"batch": 64}
        )
    (output,) = caught.value.verification.outputs
    assert "the tolerance 1e-06: calibrate on typical inputs" in output.reason
    assert not (tmp_path / "net.so").exists()


def test_as_many_sums_as_the_tolerance_allows(layers: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    data = cases(tmp_path / "data", [rng.standard_normal((64, 256), np.float32) for _ in range(3)])
    kept = []
    for tolerance in (1e-6, 0.012, 0.1):
        done = rutc.compile(
            layers,
            tmp_path / "net.so",
            precision="auto",
            calibrate=data,
            tolerance=tolerance,
            dims={"batch": 64},
        )
        assert done.verification is not None
        (output,) = done.verification.outputs
        assert output.error is not None
        assert output.error <= tolerance
        kept.append(done.report.integer_sums)
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (0, 2)


@pytest.mark.parametrize("method", METHODS)
def test_ranges_are_found_by_each_method(method: str, tmp_path: Path) -> None:
    g = parse(
        """
        graph "scaled"
        dims i = 2500, k = 16, n = 4
        %x : f32{i,k} = input "x" [i, k]
        %w : f32{k,n} = input "w" [k, n]
        %s : f32{i,k} = %x[i, k] * 2.0
        %y : f32{i,n} = sum{k} %s[i, k] * %w[k, n]
        output "y" [i, n] = %y
        """
    )
    rng = np.random.default_rng(0)
    x = rng.laplace(size=(2500, 16)).astype(np.float32)
    x[0, 0] = 50.0
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(2):
        np.savez(folder / f"{number}.npz", x=x, w=np.ones((16, 4), np.float32))
    found, said = spans(g, ["s"], Calibration(folder, method))
    assert said == f"2 given cases by {method}"
    span, whole = found["s"], Span(float(2 * x.min()), float(2 * x.max()))

    def error(s: Span) -> float:
        """The mean square error of what is stored."""
        steps = np.clip(np.rint(2 * x / s.step) + s.zero, 0, 255) - s.zero
        return float(np.mean((2 * x - steps * s.step) ** 2))

    if method == "minmax":
        assert (span.low, span.high) == (whole.low, whole.high)
    elif method == "percentile":
        # One element in 40,000 is far from all others.
        assert span.high < 0.6 * whole.high
        assert np.mean(2 * x > span.high) < 1e-4
    else:
        assert error(span) <= error(whole)


def test_outputs_are_told_with_ranges(tmp_path: Path) -> None:
    """Those of each case once, also of a value whose range is asked for, whatever their names."""
    g = parse(
        """
        graph "scaled"
        dims i = 5, k = 16, n = 4
        %x : f32{i,k} = input "x" [i, k]
        %w : f32{k,n} = input "w" [k, n]
        %s : f32{i,k} = %x[i, k] * 2.0
        %y : f32{i,n} = sum{k} %s[i, k] * %w[k, n]
        output "value0" [n, i] = %y
        output "twice" [k, i] = %s
        """
    )
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    given = [
        {
            "x": rng.standard_normal((5, 16), np.float32),
            "w": rng.standard_normal((16, 4), np.float32),
        }
        for _ in range(2)
    ]
    for number, case in enumerate(given):
        np.savez(folder / f"{number}.npz", **case)
    told: list[tuple[Case, list[Value]]] = []
    found, _ = spans(
        g, ["s"], Calibration(folder, "percentile"), on_outputs=lambda *own: told.append(own)
    )
    assert set(found) == {"s"}
    for (case, outputs), own in zip(told, given, strict=True):
        np.testing.assert_array_equal(case["x"], own["x"])
        y, s = outputs
        assert_close(y, (2 * own["x"] @ own["w"]).T, reduction=16)
        np.testing.assert_array_equal(s, 2 * own["x"].T)


def test_results_in_float32_are_of_the_library_that_finds_ranges(
    layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is chosen first is within the tolerance: nothing else is compiled to find that out."""
    made: list[Graph] = []

    class Counted(RunningLibrary):
        def __init__(self, graph: Graph, *args: Any) -> None:
            made.append(graph)
            super().__init__(graph, *args)

    for module in (calibration, within_tolerance):
        monkeypatch.setattr(module, "RunningLibrary", Counted)
    values = [np.random.default_rng(s).standard_normal((64, 256), np.float32) for s in range(3)]
    how = Calibration(cases(tmp_path / "data", values))
    found = in_eight_bits(import_model(layers), target_named("native").machine, how, 0.1)
    assert len(found.chosen) == 2
    assert len(made) == 2


def test_values_that_are_not_finite_have_no_range(tmp_path: Path) -> None:
    n = Net()
    x = n.input(8, 64)
    path = n.save(tmp_path / "log.onnx", n("MatMul", n("Log", x), n.weight(64, 64)))
    values = np.abs(np.random.default_rng(0).standard_normal((8, 64), np.float32))
    values[0, 0] = 0.0
    data = cases(tmp_path / "data", [values])
    found = in_eight_bits(import_model(path), V3, Calibration(data))
    assert (found.chosen, found.sums) == ((), 1)
    assert found.graph == import_model(path)


def test_sums_that_would_not_be_faster_stay_in_float32(tmp_path: Path) -> None:
    n = Net()
    x = n.input(1, 3, 8, 8)
    path = n.save(tmp_path / "small.onnx", n("Conv", x, n.weight(4, 3, 1, 3), group=1))
    graph = import_model(path)
    assert len(sites(normal(graph, V3))) == 1
    found = in_eight_bits(graph, V3, Calibration())
    assert found.sums == 1


@pytest.mark.parametrize(
    ("channels", "size", "inner", "faster"), [(24, 56, 144, True), (32, 28, 192, False)]
)
def test_windows_between_products_are_in_8_bits_where_memory_is_far(
    channels: int, size: int, inner: int, faster: bool, tmp_path: Path
) -> None:
    """Three filters one after the other, the second one depthwise, of 24, 9 and 144 terms, or more.

    Measured (Zen 4, AVX-512 code): all of them in 8 bits take 0.93 of the time of those of 32 terms
    and more at 56 x 56, where factors come from the last cache, and 1.06 at 28 x 28.
    """
    n, six = Net(), np.float32(6)
    x = n(
        "Conv", n.input(1, channels, size, size), n.weight(inner, channels, 1, 1), n.weight(inner)
    )
    x = n("Clip", x, n.const(0.0), n.const(six))
    x = n("Conv", x, n.weight(inner, 1, 3, 3), n.weight(inner), pads=[1] * 4, group=inner)
    x = n("Clip", x, n.const(0.0), n.const(six))
    x = n("Conv", x, n.weight(channels, inner, 1, 1), n.weight(channels))
    path = n.save(tmp_path / "block.onnx", x)
    before = normal(import_model(path), PAIRS)
    found = sites(before)
    known = {s.value: Span(-3.0, 3.0) for s in found}

    def cycles(least: int) -> float:
        choice = ChosenSums(tuple(s for s in found if s.terms >= least))
        own = quantised(before, choice.sums, known, PAIRS)
        version = versions(own, PAIRS, choice.leeway_of(USUAL_LEEWAY))[-1]
        return estimate_plan(decide(version.graph, PAIRS, version.assigned), PAIRS).cycles

    assert (cycles(0) < cycles(32)) == faster


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows of neighbours that are alike, between products that are no windows."""
    n = Net()
    x = n("AveragePool", n.input(1, 61, 29, 31), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = n("Relu", n("Conv", x, n.weight(128, 61, 1, 1), n.weight(128)))
    x = n("Relu", n("Conv", x, n.weight(127, 128, 3, 3), n.weight(127), pads=[1, 1, 1, 1]))
    folder = tmp_path_factory.mktemp("windows")
    return n.save(folder / "windows.onnx", n("Conv", x, n.weight(64, 127, 1, 1), n.weight(64)))


def test_windows_are_filtered_in_bf16_where_that_is_faster(windows: Path) -> None:
    graph = import_model(windows)
    found = in_eight_bits(graph, PAIRS, Calibration())
    assert (len(found.chosen), found.sums) == (2, 3)
    ((name, algorithm),) = found.choice.looser
    assert name not in {s.nest for s in found.chosen}
    assert algorithm.endswith(SAID_IN_BF16)
    assert found.facts()["filtered"] == [name]
    (version,) = versions(found.graph, PAIRS, found.choice.leeway_of(USUAL_LEEWAY))
    assert (name, algorithm) in version.assigned.algorithms
    for other in (
        in_eight_bits(graph, PAIRS, Calibration(), leeway=Leeway(exact=True)),
        in_eight_bits(graph, PAIRS, Calibration(), leeway=Leeway(spread=(name,))),
        in_eight_bits(graph, V4, Calibration()),
    ):
        assert not other.choice.looser


@needs(PAIRS)
@pytest.mark.parametrize("precision", ["int8", "auto"])
def test_what_is_filtered_is_no_less_accurate(
    windows: Path, tmp_path: Path, precision: str
) -> None:
    inputs = {"x0": np.random.default_rng(5).standard_normal((1, 61, 29, 31), np.float32)}
    save_machine(PAIRS, V4, tmp_path / "pairs.json")
    target = str(tmp_path / "pairs.json")
    done = rutc.compile(windows, tmp_path / "net.so", precision=precision, target=target)
    told = invoke("inspect", str(done.library)).stdout
    assert "2 of 3 sums of products in 8 bits, 1 filtered instead" in told
    graph = normal(import_model(windows), PAIRS)
    every = sites(graph)
    known, _ = spans(graph, [s.value for s in every], Calibration())
    direct, wanted = (
        run(build(decide(versions(g, PAIRS)[-1].graph, PAIRS), PAIRS, tmp_path), inputs, 1)
        for g in (quantised(graph, every, known, PAIRS), graph)
    )
    with load(done.library) as session:
        (filtered,) = session.run(None, inputs)
    (right,) = wanted.values()
    assert relative_error(filtered, right) <= relative_error(*direct.values(), right)


def test_nothing_is_rounded_where_bf16_alone_is_too_far_off(windows: Path) -> None:
    found = in_eight_bits(import_model(windows), PAIRS, Calibration(), 1e-9)
    assert (found.chosen, found.choice.looser, found.choice.only) == ((), (), ())
    own = found.choice.options_of(Options(precision="auto"))
    assert not own.in_bf16


@needs(PAIRS)
def test_those_factors_are_rounded_that_cost_least_of_the_tolerance(tmp_path: Path) -> None:
    n = Net()
    x = n.input(64, 256)
    # Functions that are steep where inputs are large cost more the earlier they are rounded.
    for wide, width in ((256, 512), (512, 256), (256, 96)):
        x = n("Tanh", n("MatMul", x, n.weight(wide, width)))
    path = n.save(tmp_path / "net.onnx", x)
    rng = np.random.default_rng(3)
    data = cases(tmp_path / "data", [rng.standard_normal((64, 256), np.float32) for _ in range(8)])
    (first, *later) = (s.nest for s in sites(normal(import_model(path), PAIRS)))
    for tolerance, only in ((1e-6, ()), (0.025, (later[1], later[0])), (0.06, None)):
        found = in_eight_bits(import_model(path), PAIRS, Calibration(data), tolerance)
        assert found.choice.only == only
        assert first not in {s.nest for s in found.chosen}
    done = rutc.compile(
        path, tmp_path / "net.so", precision="auto", calibrate=data, tolerance=0.025
    )
    assert done.verification is not None
    assert all(1e-3 < (o.error or 0.0) < 0.025 for o in done.verification.outputs)
    with load(done.library) as session:
        told = str(session.manifest["stored"])
    assert told.count("bf16") == 2
    shown = invoke("inspect", str(done.library)).stdout
    assert "0 of 3 sums of products in 8 bits, factors of 2 in bf16" in shown


@pytest.mark.parametrize("target", [pytest.param(m.name, marks=needs(m)) for m in (V3, V4)])
def test_weights_that_are_waited_for_are_in_16_bits(tmp_path: Path, target: str) -> None:
    n = Net()
    x = n.input(1, 1024)
    path = n.save(tmp_path / "net.onnx", n("MatMul", x, n.weight(1024, 2048)))
    done = rutc.compile(path, tmp_path / "net.so", precision="auto", tolerance=1e-3, target=target)
    assert done.report.integer_sums == 0
    assert done.report.weight_bytes < 0.6 * 4 * 1024 * 2048
    with load(done.library) as session:
        (stored,) = session.manifest["stored"]
    assert stored["type"] == "f16"


def test_bf16_that_cannot_be_measured_here_is_not_used(
    windows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = target_named("x86-64-v3")
    monkeypatch.setattr("rutc.driver.precision.eight_bits.native_target", lambda: own)
    graph = import_model(windows)
    assert in_eight_bits(graph, PAIRS, Calibration()).choice.only is None
    choice = in_eight_bits(graph, PAIRS, Calibration(), 0.5).choice
    assert choice.sums
    assert (choice.looser, choice.only) == ((), ())
    assert not choice.options_of(Options(precision="auto")).in_bf16


def test_other_cases_make_another_artifact(layers: Path, tmp_path: Path) -> None:
    made = []
    for scale in (1.0, 4.0):
        folder = tmp_path / f"data{scale:g}"
        data = cases(folder, [np.full((8, 256), scale, np.float32)])
        done = rutc.compile(
            layers,
            tmp_path / "net.so",
            precision="int8",
            calibrate=data,
            dims={"batch": 8},
            verify=False,
        )
        with load(done.library) as session:
            made.append(json.dumps(session.manifest["eight_bits"]))
    assert made[0] != made[1]


def test_the_command_says_what_was_done(layers: Path, tmp_path: Path) -> None:
    library = tmp_path / "net.so"
    options = ("--precision", "int8", "--calibrate-by", "minmax", "--dim", "batch=64")
    done = invoke("compile", layers, "-o", library, *options)
    assert done.status == 0, done.stderr
    on = "calibrated on 16 generated cases by minmax; --calibrate DIR takes typical inputs"
    assert f"2 of 2 sums of products in 8 bits, {on}\n" in done.stdout
    shown = invoke("inspect", library)
    assert "calibrated on 16 generated cases by minmax; tolerance 0.1" in " ".join(
        shown.stdout.split()
    )
    checked = invoke("verify", layers, library)
    assert checked.status == 0, checked.stderr
    told = invoke("explain", layers, "v0", "--precision", "int8", "--dim", "batch=64")
    assert told.status == 0, told.stderr
    assert "quantise" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--calibrate", "."), "a calibration is for --precision int8, auto or bf16, not for fp32"),
        (
            ("--precision", "bf16", "--calibrate-by", "mse"),
            "ranges are found for --precision int8 or auto, not for bf16",
        ),
        (("--precision", "int8", "--calibrate", "none-there"), "there is no such folder"),
        (("--precision", "int8", "--calibrate-by", "guess"), "there is no calibration by 'guess'"),
        (("--tolerance", "0.5"), "--tolerance is for --precision int8 or auto"),
        (("--precision", "int8", "--tolerance", "-1"), "a tolerance of -1.0 is none"),
        (("--precision", "int8", "--tolerance", "nan"), "a tolerance of nan is none"),
    ],
)
def test_what_cannot_be_asked_for_is_one_error(
    layers: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    done = invoke("compile", layers, "-o", tmp_path / "net.so", *arguments)
    assert done.status == 2
    assert done.stderr.count("error:") == 1
    assert words in done.stderr


def test_a_folder_without_cases_is_one_error(layers: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    options = ("--precision", "int8", "--calibrate", tmp_path / "data")
    done = invoke("compile", layers, "-o", tmp_path / "net.so", *options)
    assert done.status == 2
    assert "holds no case" in done.stderr
    assert "--data" not in done.stderr


@pytest.mark.parametrize(
    ("ours", "reference", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([3.0, 4.4], [3.0, 4.0], 0.08),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([1.0, 1.0], [np.inf, 1.0], np.inf),
        ([np.inf, 1.0], [1.0, 1.0], np.inf),
        ([0.0], [0.0], 0.0),
        ([1.0], [0.0], np.inf),
    ],
)
def test_errors_are_relative_to_the_whole_output(
    ours: list[float], reference: list[float], error: float
) -> None:
    found = relative_error(np.array(ours, np.float32), np.array(reference, np.float32))
    assert found == pytest.approx(error, rel=1e-5)


def test_labels_count_as_they_differ() -> None:
    assert relative_error(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25
