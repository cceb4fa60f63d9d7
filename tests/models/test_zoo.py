"""The zoo: every model runs in ONNX Runtime on its stated inputs, with sane and varied results."""

import ast
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from rutc.errors import UserError
from rutc.models import speech, tokens
from rutc.models.__main__ import main
from rutc.models.photographs import line_text, text_line
from rutc.models.sources import LightNetwork
from rutc.models.zoo import Model, find, zoo

pytest.importorskip("PIL")
pytest.importorskip("sklearn")

LARGE_BYTES = 150_000_000
MODELS = {model.name: model for model in zoo()}


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _check_runs(model: Model, path: Path) -> None:
    session = _session(path)
    assert {value.name for value in session.get_inputs()} == set(model.shapes)
    inputs = model.inputs(1)
    for result in session.run(None, inputs):
        assert np.isfinite(result).all()
        assert result.size == 1 or np.ptp(result) > 0


def _present(name: str) -> Path:
    path = MODELS[name].source.present()
    if path is None:
        pytest.skip(f"not obtained; get it with `python -m rutc.models {name}`")
    return path


def test_names_are_unique() -> None:
    assert len(MODELS) == len(zoo())


@pytest.mark.parametrize("name", MODELS)
def test_inputs_have_the_stated_shapes_and_follow_the_seed(name: str) -> None:
    model = MODELS[name]
    first, again, other = model.inputs(3), model.inputs(3), model.inputs(4)
    assert {key: value.shape for key, value in first.items()} == dict(model.shapes)
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])
    assert any(not np.array_equal(value, other[key]) for key, value in first.items())


@pytest.mark.parametrize("name", MODELS)
def test_an_obtained_model_runs_on_its_inputs(name: str) -> None:
    path = _present(name)
    if path.stat().st_size > LARGE_BYTES:
        pytest.skip("a large model; see the slow test")
    _check_runs(MODELS[name], path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_obtained_large_model_runs_on_its_inputs(name: str) -> None:
    path = _present(name)
    if path.stat().st_size <= LARGE_BYTES:
        pytest.skip("a small model; see the fast test")
    _check_runs(MODELS[name], path)


@pytest.mark.parametrize("network", ["squeezenet", "shufflenet", "densenet121", "inception_v2"])
def test_light_networks_can_always_be_made_and_run(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    model = MODELS[f"light_{network}"]
    assert model.source == LightNetwork(network)
    path = model.obtain()
    assert path.is_relative_to(tmp_path)
    _check_runs(model, path)


def _read_line(path: Path, picture: NDArray[np.float32]) -> str:
    """Returns the text in `picture` {1, 3, y, x}: the best character per column, repeats merged."""
    properties = {item.key: item.value for item in onnx.load(path).metadata_props}
    characters = ["", *properties["character"].splitlines(), " "]
    (scores,) = _session(path).run(None, {"x": picture})
    best = scores[0].argmax(axis=1)
    merged = [int(c) for i, c in enumerate(best) if i == 0 or c != best[i - 1]]
    return "".join(characters[c] for c in merged)


@pytest.mark.parametrize("seed", range(4))
def test_rendered_lines_are_read_by_the_recogniser(seed: int) -> None:
    text = _read_line(_present("ppocr4_rec"), text_line(seed, 48, 320))
    assert text.replace(" ", "") == line_text(seed).replace(" ", "")


def test_rendered_pages_hold_text_for_the_detector() -> None:
    path = _present("ppocr4_det")
    (score,) = _session(path).run(None, MODELS["ppocr4_det"].inputs(0))
    assert 0.02 < (score > 0.5).mean() < 0.5


@pytest.mark.parametrize(("seed", "upside_down"), [(0, 0), (1, 1), (2, 0), (3, 1)])
def test_the_classifier_tells_which_lines_are_upside_down(seed: int, upside_down: int) -> None:
    path = _present("ppocr_cls")
    (scores,) = _session(path).run(None, MODELS["ppocr_cls"].inputs(seed))
    assert int(scores[0].argmax()) == upside_down


@pytest.mark.parametrize("framing", [speech.AT_16_KHZ, speech.AT_8_KHZ])
def test_synthesised_speech_is_taken_for_speech_and_noise_is_not(framing: speech.Framing) -> None:
    session = _session(_present("silero_vad"))
    spoken = speech.frames(0, 60, framing)
    noise = 0.001 * np.random.default_rng(0).standard_normal(spoken.shape).astype(np.float32)
    shares = []
    for audio in (spoken, noise):
        state = np.zeros((2, 1, speech.RECURRENT_SIZE), np.float32)
        rate = np.array(framing.rate_hz, np.int64)
        voiced = 0
        for frame in audio:
            values = {"input": frame[None], "state": state, "sr": rate}
            score, state = session.run(None, values)
            voiced += bool(score[0, 0] > 0.5)
        shares.append(voiced / len(audio))
    assert shares[0] > 0.3
    assert shares[1] == 0.0


def test_magika_tokens_are_padded_on_the_inside() -> None:
    (row,) = tokens.magika_tokens(b"  some text \n")
    assert bytes(row[:9].tolist()) == b"some text"
    assert bytes(row[-9:].tolist()) == b"some text"
    assert (row[9:-9] == tokens.MAGIKA_PADDING).all()
    (row,) = tokens.magika_tokens(bytes(range(200)) * 100)
    assert row[:3].tolist() == [0, 1, 2]
    assert row[-2:].tolist() == [198, 199]
    assert tokens.MAGIKA_PADDING not in row


def test_magika_tells_real_files_apart() -> None:
    session = _session(_present("magika"))
    found = []
    for file in tokens.real_files():
        (scores,) = session.run(None, {"bytes": tokens.magika_tokens(file.read_bytes())})
        assert scores.max() > 0.5
        found.append(int(scores.argmax()))
    types = {file.suffix: label for file, label in zip(tokens.real_files(), found, strict=True)}
    assert len(set(types.values())) == len(types)
    assert found[0] == found[-1], "two Python files"


def test_real_files_are_what_they_claim() -> None:
    files = tokens.real_files()
    ast.parse(files[0].read_text("utf-8"))
    assert all(file.is_file() for file in files)


def test_the_listing_names_every_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in MODELS)


def test_obtaining_prints_the_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["digits"]) == 0
    assert str(MODELS["digits"].obtain()) in capsys.readouterr().out


def test_an_unknown_model_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"no model 'resnet51'; it has: digits, "):
        find("resnet51")
    assert main(["resnet51"]) == 2
    assert "no model 'resnet51'" in capsys.readouterr().err
