"""`--precision bf16`: windows are filtered by more outputs at a time where a case allows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import rutc
from rutc.driver.options import Calibration, Options
from rutc.driver.precision.apply_precision import precedes_rewrites
from rutc.driver.precision.eight_bits import in_eight_bits
from rutc.driver.precision.measured_filters import measured_filters
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.graph_opt.alternatives.bf16_pairs import adds_pairs
from rutc.graph_opt.alternatives.filtering import SAID_IN_BF16
from rutc.graph_opt.larger_filters import may_have_windows
from rutc.importer import import_model
from rutc.runtime import load
from tests.cli.conftest import Rutc, invoke
from tests.graph_opt.networks import Net
from tests.machines import V3, V4
from tests.precision.test_bf16_pairs import PAIRS

CHANNELS, SIZE = 61, (29, 31)

OF_PAIRS = pytest.mark.skipif(
    not adds_pairs(native_target().machine), reason="native code adds up no pairs of bf16"
)


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows of an input."""
    n = Net()
    x = n.input(1, CHANNELS, *SIZE)
    y = n("Relu", n("Conv", x, n.weight(64, CHANNELS, 3, 3), n.weight(64), pads=[1, 1, 1, 1]))
    return n.save(tmp_path_factory.mktemp("windows") / "windows.onnx", y)


def case(folder: Path, array: np.ndarray) -> Path:
    """A folder of one case."""
    folder.mkdir()
    np.savez(folder / "0.npz", x0=array.astype(np.float32))
    return folder


def noise() -> np.ndarray:
    """Neighbours that have nothing in common."""
    return np.random.default_rng(0).standard_normal((1, CHANNELS, *SIZE))


def alike() -> np.ndarray:
    """Neighbours that are alike."""
    rng = np.random.default_rng(0)
    return (
        rng.uniform(1, 2, (1, CHANNELS, 1, 1)) + np.linspace(0, 1, SIZE[1]) + np.zeros(SIZE)[None]
    )


def test_a_case_decides(windows: Path, tmp_path: Path) -> None:
    graph = import_model(windows)
    own = measured_filters(graph, PAIRS, Calibration(case(tmp_path / "alike", alike())))
    (name,) = {value for value, _ in own}
    assert all(algorithm.endswith(SAID_IN_BF16) for _, algorithm in own)
    assert any("by 4" in algorithm for _, algorithm in own)
    given = Calibration(case(tmp_path / "noise", noise()))
    assert not measured_filters(graph, PAIRS, given)
    # Generated inputs are noise.
    assert not measured_filters(graph, PAIRS, Calibration())
    alone = Calibration(tmp_path / "alike")
    assert not measured_filters(graph, PAIRS, alone, (name,))
    assert not measured_filters(graph, V4, alone)


@OF_PAIRS
def test_filters_are_as_many_outputs_long_within_a_tolerance(windows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "alike"
    folder.mkdir()
    for number in range(3):
        scaled = alike().astype(np.float32) * np.float32(1 + number)
        np.savez(folder / f"{number}.npz", x0=scaled)
    graph, given = import_model(windows), Calibration(folder)
    choice = in_eight_bits(graph, PAIRS, given, 0.01).choice
    assert (choice.sums, choice.only) == ((), None)
    assert choice.looser == measured_filters(graph, PAIRS, given)
    assert not in_eight_bits(graph, PAIRS, given, 1e-6).choice.looser


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_values_that_are_not_finite_tell_nothing(
    windows: Path, tmp_path: Path, wrong: float
) -> None:
    x = alike()
    x[0, 0, 0, 0] = wrong
    data = case(tmp_path / "data", x)
    assert not measured_filters(import_model(windows), PAIRS, Calibration(data))


def test_nothing_is_looked_at_in_vain() -> None:
    bf16 = Options(precision="bf16")
    assert precedes_rewrites(bf16, PAIRS)
    assert not precedes_rewrites(bf16, V3)
    assert not precedes_rewrites(Options(precision="bf16", exact_algorithms=True), PAIRS)
    assert not precedes_rewrites(Options(), PAIRS)


@OF_PAIRS
def test_an_artifact_has_the_filters_that_its_case_allows(windows: Path, tmp_path: Path) -> None:
    made = {}
    for make in (alike, noise):
        x = make()
        data = case(tmp_path / make.__name__, x)
        done = rutc.compile(windows, tmp_path / "net.so", precision="bf16", calibrate=data)
        assert done.verification is not None
        assert done.verification.passed
        with load(done.library) as session:
            facts = session.manifest["algorithms"]
        assert isinstance(facts, list)
        made[make] = [a["outputs"] for a in facts if "filtering" in a["name"]]
    assert any(max(outputs) > 2 for outputs in made[alike])
    assert made[noise]
    assert all(max(outputs) == 2 for outputs in made[noise])


@OF_PAIRS
def test_an_explanation_is_of_the_same_case(windows: Path, tmp_path: Path) -> None:
    command: Rutc = invoke
    told = []
    for make in (alike, noise):
        data = case(tmp_path / make.__name__, make())
        how = ("--precision", "bf16", "--calibrate", data)
        done = command("explain", windows, *how)
        assert done.status == 0, done.stderr
        told.append(done.stdout)
    assert told[0] != told[1]


def test_models_without_windows_are_not_looked_at(
    windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise AssertionError("it was brought into normal form")

    monkeypatch.setattr("rutc.driver.precision.measured_filters.normal", fails)
    n = Net()
    y = n("MatMul", n("Relu", n.input(7, 64)), n.weight(64, 61))
    products = import_model(n.save(tmp_path / "products.onnx", y))
    assert not may_have_windows(products)
    assert not measured_filters(products, PAIRS, Calibration(tmp_path / "none"))
    n = Net()
    y = n("Conv", n.input(1, 61, 31, 29), n.weight(64, 61, 3, 3), strides=[2, 2])
    assert not may_have_windows(import_model(n.save(tmp_path / "apart.onnx", y)))
    assert may_have_windows(import_model(windows))


def test_a_model_need_not_run_on_generated_inputs(tmp_path: Path) -> None:
    """One that gathers from a table of one row does not: generated places are 0 or 1."""
    n = Net()
    rows = n("Gather", n.const(alike()[0, :1]), n.input(CHANNELS, type_=TensorProto.INT64))
    x = n("Unsqueeze", rows, n.const([0], np.int64))
    y = n("Relu", n("Conv", x, n.weight(64, CHANNELS, 3, 3), n.weight(64), pads=[1, 1, 1, 1]))
    graph = import_model(n.save(tmp_path / "gathers.onnx", y))
    assert not measured_filters(graph, PAIRS, Calibration())
    for place, folder in ((0, tmp_path / "inside"), (1, tmp_path / "outside")):
        folder.mkdir()
        np.savez(folder / "0.npz", x0=np.full(CHANNELS, place))
    assert measured_filters(graph, PAIRS, Calibration(tmp_path / "inside"))
    with pytest.raises(UserError, match="does not run"):
        measured_filters(graph, PAIRS, Calibration(tmp_path / "outside"))
