"""What is stated of filtering is what it does, over many magnitudes, and inputs decide on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, nan, prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

import rutc
from rutc.base.files import TEMPORARY
from rutc.cli import app
from rutc.errors import UserError
from rutc.graph_opt import EXACT, optimize
from rutc.graph_opt.algorithms import Algorithms
from rutc.graph_opt.alternatives.filtering import MinimalFiltering
from rutc.graph_opt.alternatives.ways import Way
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.minimal_filter import Filter as Algorithm
from rutc.graph_opt.pipeline import FILTERING, PIPELINE
from rutc.graph_opt.rewrite import Sweep
from rutc.importer import import_model
from rutc.tensor_ir import Graph, Nest
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.verify.filtering import Filter, lossy, measure, refusals
from rutc.verify.reference import Reference
from tests.onnx_files import write_model

Values = np.ndarray
CHANNELS, SIZE, TAPS = 8, 19, 3
ALWAYS = Sweep("filter", (MinimalFiltering(inf, -inf),))
HALVES = MinimalFiltering(inf, -inf, bit=0.3)
U = 2.0**-24


def save(
    path: Path, weights: Values, shape: tuple[int | str, ...], op: str, **attributes: object
) -> None:
    node = helper.make_node(op, ["x", "w"], ["y"], name="layer", **attributes)  # type: ignore[arg-type]
    write_model(path, [node], {"x": shape}, {"y": None}, {"w": weights})


class Layer:
    """A filtered 3 x 3 convolution without padding."""

    def __init__(self, folder: Path, rule: MinimalFiltering, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = rng.standard_normal((24, CHANNELS, TAPS, TAPS)).astype(np.float32)
        path = folder / "model.onnx"
        save(path, self.weights, (1, CHANNELS, SIZE, SIZE), "Conv")
        plain = optimize(import_model(path), pipeline=EXACT)
        editor = Editor(plain)
        ways = [rule.choice(n, editor) for n in plain.nodes if isinstance(n, Nest)]
        (filtered,) = (w.form for w in ways if isinstance(w, Way))
        self.bounds = filtered.bounds()
        axes = plain.outputs[0].axes
        places = [axes.index(w.out) for w in filtered.filters]
        self.reach = dict(zip(places, self.bounds.reach, strict=True))
        outputs = (f.outputs for f in filtered.filters.values())
        self.outputs = dict(zip(places, outputs, strict=True))
        self.graph: Graph = optimize(plain, pipeline=(Sweep("filter", (rule,)),))

    def __call__(self, x: Values) -> Values:
        with np.errstate(all="ignore"):
            return np.asarray(interpret(self.graph, {"x": x})["y"])

    def exact(self, x: Values) -> Values:
        windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (TAPS, TAPS), (2, 3))
        return np.asarray(np.einsum("nchwkl,ockl->nohw", windows, self.weights.astype(float)))

    def top(self, x: Values) -> Values:
        """The largest magnitude of the tile of each output."""
        rows, columns = ([self.tile(axis, i) for i in range(SIZE - TAPS + 1)] for axis in (2, 3))
        largest = np.abs(x).max(axis=(0, 1)).astype(float)
        return np.array([[largest[r, c].max() for c in columns] for r in rows])

    def tile(self, axis: int, place: int) -> slice:
        """What the output at a place is computed from."""
        m = self.outputs.get(axis, 1)
        start = place // m * m
        return slice(start, start + m + TAPS - 1)


@pytest.fixture(scope="module", params=["fastest", "least growth"])
def layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layer:
    rule = MinimalFiltering(inf, -inf) if request.param == "fastest" else HALVES
    return Layer(tmp_path_factory.mktemp("layer"), rule, 0)


def spiky(rng: np.random.Generator, background: float, spike: float) -> Values:
    x = rng.standard_normal((1, CHANNELS, SIZE, SIZE)) * background
    return np.asarray(np.where(rng.random((SIZE, SIZE)) < 0.03, spike * np.sign(x), x), np.float32)


def images() -> Iterator[Values]:
    rng = np.random.default_rng(1)
    for background, spike in ((1, 1), (1e-3, 1e4), (1e-30, 1e30), (1e30, 1e34), (0, 1), (1e-36, 1)):
        yield spiky(rng, background, spike)
    for _ in range(4):
        size = (1, CHANNELS, SIZE, SIZE)
        yield (rng.standard_normal(size) * 10.0 ** rng.uniform(-30, 30, size)).astype(np.float32)


def test_errors_stay_below_the_bound(layer: Layer) -> None:
    sizes = np.abs(layer.weights).astype(float).sum(axis=(1, 2, 3))[:, None, None]
    factor = (CHANNELS + layer.bounds.steps) * U * layer.bounds.growth
    for x in images():
        wrong = np.abs(layer(x) - layer.exact(x))[0]
        assert (wrong <= factor * sizes * layer.top(x) + 1e-37).all()


def test_a_background_beside_spikes_is_lost(layer: Layer) -> None:
    """What the bounds and the refusals are there for: a direct sum keeps it, and small tiles."""
    x = spiky(np.random.default_rng(1), 1e-3, 1e4)
    exact = layer.exact(x)
    lost = (np.abs(layer(x) - exact) > 0.01 * np.abs(exact)).mean()
    assert lost > 0.02 if max(layer.bounds.reach) > TAPS else lost == 0


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_one_number_spoils_its_tiles_only(layer: Layer, odd: float) -> None:
    x = np.ones((1, CHANNELS, SIZE, SIZE), np.float32)
    most = 0
    for place in range(6, 10):
        x[...] = 1
        x[0, 2, place, place] = odd
        spoilt = np.argwhere(~np.isfinite(layer(x)))
        for axis in (2, 3):
            extent = int(np.ptp(spoilt[:, axis])) + 1
            assert TAPS <= extent <= layer.reach.get(axis, TAPS)
            most = max(most, extent)
    assert most == max(layer.bounds.reach)


def test_inputs_up_to_the_largest_do_not_overflow(layer: Layer) -> None:
    rng = np.random.default_rng(2)
    for _ in range(8):
        signs = rng.choice([-1.0, 1.0], (1, CHANNELS, SIZE, SIZE))
        assert np.isfinite(layer((signs * layer.bounds.largest).astype(np.float32))).all()
    # Signs that agree with the weights' make sums as large as they get.
    signs = np.sign(layer.weights[0])[None, :, [0, 1, 2] * 6 + [0]][..., [0, 1, 2] * 6 + [0]]
    assert np.isfinite(layer((signs * layer.bounds.largest).astype(np.float32))).all()
    assert not np.isfinite(layer((signs * 3e38).astype(np.float32))).all()


def test_the_page_states_these_bounds() -> None:
    page = (Path(__file__).parents[2] / "docs/filtering.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == 6
    for row in rows:
        inputs, shape, *numbers = (cell.strip() for cell in row.strip("|").split("|"))
        f = Algorithm(*(int(n) for n in shape.split(",")))
        assert f.inputs == int(inputs)
        stated = [float(n) for n in numbers]
        wanted = [f.growth, f.growth**2, f.typical, f.typical**2, f.reach]
        np.testing.assert_allclose(stated, wanted, rtol=5e-3)


def test_filters_that_save_little_give_way_to_those_that_err_less(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    save(tmp_path / "model.onnx", weights, (1, 64, 56, 56), "Conv", pads=[1] * 4)
    at = [step.name for step in PIPELINE].index(FILTERING)
    graph = optimize(import_model(tmp_path / "model.onnx"), pipeline=PIPELINE[:at])
    editor = Editor(graph)

    def growth(rule: MinimalFiltering) -> float:
        found = (rule.choice(n, editor) for n in graph.nodes)
        (way,) = (w for w in found if isinstance(w, Way))
        return way.form.bounds().growth

    assert growth(MinimalFiltering(bit=0.0)) == growth(MinimalFiltering())
    assert growth(MinimalFiltering(bit=1.0)) < growth(MinimalFiltering())


def test_no_more_window_dims_are_filtered_than_bounds_speak_of(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).random((256, 256, 3, 3, 3), np.float32)
    save(tmp_path / "model.onnx", weights, (1, 256, 16, 16, 16), "Conv", pads=[1] * 6)
    algorithms = Algorithms()
    graph = optimize(import_model(tmp_path / "model.onnx"), on_step=algorithms)
    (fact,) = algorithms.facts()
    assert fact["taps"] == (3, 3)
    assert [v for v in graph.values if v.endswith(".points")] == [
        "w.points",
        "x.points",
        "y.points",
    ]


def test_exact_algorithms_have_none_to_tell_of(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    save(tmp_path / "model.onnx", weights, (1, 64, 56, 56), "Conv")
    algorithms = Algorithms()
    optimize(import_model(tmp_path / "model.onnx"), on_step=algorithms, pipeline=EXACT)
    assert algorithms.facts() == []


def test_weights_that_are_not_finite_are_not_filtered(tmp_path: Path) -> None:
    weights = np.ones((64, 64, 3, 3), np.float32)
    weights[3, 4, 1, 1] = inf
    save(tmp_path / "model.onnx", weights, (1, 64, 56, 56), "Conv")
    algorithms = Algorithms()
    optimize(import_model(tmp_path / "model.onnx"), on_step=algorithms)
    assert algorithms.facts() == []


def test_spread_is_measured_in_tiles_of_the_layer() -> None:
    f = Filter("y", ("layer",), (4, 4), (3, 3), 8.0)
    rng = np.random.default_rng(0)
    even = rng.standard_normal((2, 8, 21, 30)).astype(np.float32)
    assert measure(f, even, None)[1] == 0
    x = even * 1e-3
    x[0, 3, 10, 11] = 1e4
    factor, share = measure(f, x, None)
    assert 1e6 < factor < 1e8
    # Tiles of 4 x 4 outputs, 6 x 6 inputs: one to four of them, less the windows with the spike.
    assert 16 - 9 <= share * 2 * 21 * 30 <= 64 - 9
    # A channel that hardly counts.
    weights = rng.standard_normal((4, 8, 3, 3)).astype(np.float32)
    weights[:, 3] *= 1e-8
    assert measure(f, x, weights)[1] == 0
    assert measure(f, x, weights.swapaxes(0, 1), transposed=True)[1] == 0
    in_groups = weights[:, :4]
    assert measure(f, x, in_groups)[1] == 0
    assert measure(f, x[:, ::-1], in_groups)[1] > 0
    x[0, 0, 10, 11] = nan
    assert measure(f, x, None)[0] == inf


def test_layers_that_real_inputs_spread_in_are_not_filtered(tmp_path: Path) -> None:
    path, library = tmp_path / "model.onnx", tmp_path / "model.so"
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((32, 32, 3, 3)).astype(np.float32)
    save(path, weights, (1, 32, 28, 28), "Conv", pads=[1, 1, 1, 1])
    compiled = rutc.compile(path, library)
    assert compiled.refusals == ()
    (algorithm,) = facts(library)
    assert algorithm["name"] == "minimal filtering"
    x = rng.standard_normal((1, 32, 28, 28)).astype(np.float32) * np.float32(1e-3)
    x[..., ::9, ::9] = 1e4
    np.save(tmp_path / "x.npy", x)
    compiled = rutc.compile(path, library, inputs=[f"x={tmp_path / 'x.npy'}"])
    (refusal,) = compiled.refusals
    assert "'layer'" in str(refusal)
    assert all(a["reach"] == a["taps"] for a in facts(library))
    with rutc.load(library) as session:
        assert session.manifest["spread"] == [algorithm["sum"]]
        (y,) = session.run(None, {"x": x})
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (3, 3), (2, 3))
    exact = np.einsum("nchwkl,ockl->nohw", windows, weights.astype(float))
    sizes = np.einsum("nchwkl,ockl->nohw", np.abs(windows), np.abs(weights).astype(float))
    assert (np.abs(y[..., 1:-1, 1:-1] - exact) <= 32 * 9 * U * sizes).all()


def test_layers_whose_losses_grow_in_what_reads_them_are_not_filtered(tmp_path: Path) -> None:
    """Where a window is zero a filter leaves a trace of its neighbours, which becomes a number.

    So it is with the rows of tokens that pad, which are zero, before they are normalised.
    """
    path, library = tmp_path / "model.onnx", tmp_path / "model.so"
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((32, 32, 3, 3)).astype(np.float32),
        "ones": np.ones(32, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="layer", pads=[1] * 4),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["b", "ones"], ["y"]),
    ]
    write_model(path, nodes, {"x": [1, 32, 28, 28]}, {"y": [1, 28, 28, 32]}, weights)
    assert rutc.compile(path, library).refusals == ()
    (algorithm,) = facts(library)
    assert algorithm["reach"] != algorithm["taps"]
    x = np.zeros((1, 32, 28, 28), np.float32)
    x[..., ::9, ::9] = 30
    np.save(tmp_path / "x.npy", x)
    (refusal,) = rutc.compile(path, library, inputs=[f"x={tmp_path / 'x.npy'}"]).refusals
    assert "'layer'" in str(refusal)
    assert all(a["reach"] == a["taps"] for a in facts(library))
    with rutc.load(library) as session:
        (y,) = session.run(None, {"x": x})
    assert not y[0, 4, 4].any()


def facts(library: Path) -> list[Mapping[str, object]]:
    """What the manifest says of algorithms."""
    with rutc.load(library) as session:
        found = session.manifest["algorithms"]
    assert isinstance(found, list)
    return found


def two_layers(path: Path) -> None:
    """Layers that read an input each."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((32, 32, 3, 3)).astype(np.float32) for name in ("w", "v")}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="far", pads=[1] * 4),
        helper.make_node("Conv", ["z", "v"], ["b"], name="near", pads=[1] * 4),
    ]
    shape = [1, 32, 28, 28]
    write_model(path, nodes, {"x": shape, "z": shape}, {"a": shape, "b": shape}, weights)


def test_only_the_layers_that_lose_accuracy_are_refused(tmp_path: Path) -> None:
    path, library = tmp_path / "model.onnx", tmp_path / "model.so"
    two_layers(path)
    assert rutc.compile(path, library).refusals == ()

    def filtered() -> dict[str, bool]:
        found = {}
        for a in facts(library):
            assert isinstance(a["origin"], list)
            found.update(dict.fromkeys(a["origin"], a["reach"] != a["taps"]))
        return found

    def said(*command: object, status: int = 0) -> str:
        result = CliRunner().invoke(app, [str(c) for c in command])
        assert result.exit_code == status, result.output
        return " ".join(result.stdout.split())

    assert filtered()["far"]
    assert filtered()["near"]
    assert "minimal filtering" in said("inspect", library)
    x = np.full((1, 32, 28, 28), 1e-3, np.float32)
    x[..., ::9, ::9] = 1e4
    np.save(tmp_path / "x.npy", x)
    given = f"x={tmp_path / 'x.npy'}"
    text = said("verify", path, library, "--input", given, status=1)
    assert "filtering costs accuracy in Conv 'far'" in text
    z = np.ones_like(x)
    for name, worst in ("even", z), ("spread", x):
        np.savez(tmp_path / f"{name}.npz", allow_pickle=False, x=worst, z=z)
    text = said("verify", path, library, "--data", tmp_path, status=1)
    assert "filtering costs accuracy in Conv 'far'" in text
    assert "within a tile; compile with the inputs of spread.npz" in text
    (tmp_path / "spread.npz").unlink()
    assert "costs accuracy" not in said("verify", path, library, "--data", tmp_path)
    text = said("compile", path, "-o", library, "--input", given)
    assert "filtered less, for accuracy:" in text
    assert "'far'" in text
    assert "'near'" not in text
    assert not filtered().get("far")
    assert filtered()["near"]
    assert "inputs are spread too far for most filters: a" in said("inspect", library)
    assert "costs accuracy" not in said("verify", path, library, "--input", given)


def test_layers_of_large_pictures_are_looked_at_in_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any size, what a run holds beside may take more memory than there is."""
    path, library = tmp_path / "model.onnx", tmp_path / "m.so"
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    save(path, weights, ("n", 64, "h", "w"), "Conv")
    rutc.compile(path, library, verify=False)
    assert facts(library)
    seen: list[Sequence[int]] = []

    def looking(_model: Path, _filters: object, inputs: Mapping[str, Values], *_: object) -> tuple:
        seen.append(inputs["x"].shape)
        return ()

    monkeypatch.setattr("rutc.verify.filtering.lossy", looking)
    assert not refusals(path, library)
    monkeypatch.setattr("rutc.verify.feeding.sizes.MOST_BYTES", 1 << 20)
    assert not refusals(path, library)
    usual, small = seen
    assert prod(small) < prod(usual)


def test_inputs_that_nothing_is_verified_on_are_refused(tmp_path: Path) -> None:
    two_layers(tmp_path / "model.onnx")
    with pytest.raises(UserError, match="inputs are for the verification"):
        rutc.compile(tmp_path / "model.onnx", tmp_path / "m.so", inputs=["random:1"], verify=False)
    assert not (tmp_path / "m.so").exists()


def test_a_kill_leaves_no_folder_of_layers_that_nothing_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    save(path, np.ones((1, 1, 3, 3), np.float32), (1, 1, 9, 9), "Conv")
    model = onnx.load(path)
    model.graph.node[0].input[0] = "size"
    model.graph.node.insert(0, helper.make_node("Abs", ["x"], ["size"]))
    onnx.save(model, path)
    folders: list[str] = []

    def looking(part: Path, *more: object, **named: object) -> Reference:
        folders.append(part.parent.name)
        return Reference(part, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("rutc.verify.filtering.Reference", looking)
    layer = Filter("sum", ("layer",), (4, 4), (3, 3), 10.0)
    assert lossy(path, [layer], {"x": np.ones((1, 1, 9, 9), np.float32)}) == ()
    (name,) = folders
    assert TEMPORARY.fullmatch(name)
