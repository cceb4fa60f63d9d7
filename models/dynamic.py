"""Models whose sizes vary from run to run, each with the sizes and the inputs to try.

model = find("ppocr4_rec")
model.dims                  # {"p2o.DynamicDimension.1": (16, 1600), ..}: what one artifact serves
for case in model.cases:
    case.results(run)       # what `run` makes of the case's inputs, be it one run or many
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from rutc.errors import UserError
from rutc.models import documents, speech, tokens
from rutc.models.export_source import Export
from rutc.models.sources import Source, WheelFile
from rutc.models.stateful import Arrays, Run, generate, listen

Dims = Mapping[str, int | tuple[int, ...]]

GPT2_LAYERS, GPT2_HEADS, GPT2_HEAD_SIZE = 12, 12, 64
GENERATED = 64
SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """One size of a model.

    Attributes:
        label: the size, as reports show it.
        dims: what the varying dims are in a single run: with them, a static artifact does it.
        inputs: returns the inputs of a single run.
        follow: returns the results of many runs, each with what the one before left; None: the
            results are those of the single run.
        timed: whether the single run is worth timing.
    """

    label: str
    dims: Mapping[str, int]
    inputs: Callable[[], Arrays]
    follow: Callable[[Run], Arrays] | None = None
    timed: bool = True

    def results(self, run: Run) -> Arrays:
        """Returns what `run` makes of the case, by name."""
        return run(self.inputs()) if self.follow is None else self.follow(run)


@dataclass(frozen=True)
class DynamicModel:
    """A model, the ranges of the dims that vary, by the model's own names, and sizes to try."""

    name: str
    summary: str
    source: Source
    dims: Dims
    cases: tuple[Case, ...]


def _ocr(name: str, summary: str, file: str, dims: Dims, cases: tuple[Case, ...]) -> DynamicModel:
    source = WheelFile("rapidocr-onnxruntime", "1.4.4", f"rapidocr_onnxruntime/models/{file}")
    return DynamicModel(name, summary, source, {"p2o.DynamicDimension.0": 1, **dims}, cases)


def _detector() -> DynamicModel:
    sides = {f"p2o.DynamicDimension.{axis}": (32, 960, 32) for axis in (1, 2)}
    pictures = (
        ("page", 192, 384),
        ("page", 288, 576),
        ("page", 480, 960),
        ("coffee", 416, 608),
        ("motorcycle_left", 480, 736),
    )

    def case(name: str, height: int, width: int) -> Case:
        return Case(
            f"{name}, {height} x {width}",
            {"p2o.DynamicDimension.1": height, "p2o.DynamicDimension.2": width},
            lambda: {"x": documents.scaled(name, height, width)},
        )

    return _ocr(
        "ppocr4_det",
        "where text is in a picture",
        "ch_PP-OCRv4_det_infer.onnx",
        sides,
        tuple(case(*picture) for picture in pictures),
    )


def _recogniser() -> DynamicModel:
    height = 48

    def case(line: documents.Line) -> Case:
        left, top, right, bottom = line.box
        width = round((right - left) * height / (bottom - top))
        return Case(
            f'"{line.text}", {height} x {width}',
            {"p2o.DynamicDimension.1": width},
            lambda: {"x": documents.line_picture(line, height)},
        )

    return _ocr(
        "ppocr4_rec",
        "what a line of text says",
        "ch_PP-OCRv4_rec_infer.onnx",
        {"x_2": height, "p2o.DynamicDimension.1": (16, 1600)},
        tuple(case(line) for line in documents.LINES),
    )


def _encoder(source: Export, summary: str, most_tokens: int) -> DynamicModel:
    """BERT: a grid of batches and lengths of at most `most_tokens` tokens together."""
    timed = ((1, 17), (1, 128), (8, 64), (1, 512))
    grid = [
        (batch, length)
        for batch in (1, 2, 3, 5, 7, 8)
        for length in (1, 2, 7, 17, 64, 128, 131, 512)
        if batch * length <= most_tokens
    ]
    ends = (tokens.BERT_START, tokens.BERT_STOP)
    cases = tuple(
        Case(
            f"{batch} x {length}",
            {"batch": batch, "sequence": length},
            partial(documents.texts, batch, length, *ends),
            timed=(batch, length) in timed,
        )
        for batch, length in grid
    )
    dims: Dims = {"batch": (1, 8), "sequence": (1, 512)}
    return DynamicModel(source.network, summary, source, dims, cases)


def _gpt2() -> DynamicModel:
    names = [f"past_{kind}_{layer}" for layer in range(GPT2_LAYERS) for kind in ("key", "value")]

    def caches(past: int) -> Arrays:
        shape = (1, GPT2_HEADS, past, GPT2_HEAD_SIZE)
        return {name: tokens.key_values(k, shape) for k, name in enumerate(names)}

    def inputs(new: int, past: int) -> Arrays:
        return {"input_ids": tokens.gpt2_tokens(0, new), **caches(past)}

    def following(prompt: int, run: Run) -> Arrays:
        return generate(run, tokens.gpt2_tokens(prompt, prompt), caches(0), GENERATED)

    def case(new: int, past: int, follow: Callable[[Run], Arrays] | None = None) -> Case:
        label = f"{new} new, {past} cached"
        if follow is not None:
            label = f"{GENERATED} tokens after {new}, caches from {past} on"
        return Case(label, {"new": new, "past": past}, partial(inputs, new, past), follow)

    return DynamicModel(
        "gpt2_dynamic",
        "the next tokens",
        Export("gpt2_dynamic"),
        {"new": (1, 512), "past": (0, 511)},
        (
            case(1, 0, partial(following, 1)),
            case(7, 0, partial(following, 7)),
            case(1, 63),
            case(1, 127),
            case(32, 64),
        ),
    )


def _silero() -> DynamicModel:
    """One artifact for both rates: an input of 288 samples at 8 kHz, of 576 at 16 kHz."""

    def case(framing: speech.Framing) -> Case:
        samples = framing.context + framing.window
        inputs: Arrays = {
            "input": speech.frame(0, framing),
            "state": speech.recurrent_state(0, 2, 1),
            "sr": np.array(framing.rate_hz, np.int64),
        }
        return Case(
            f"{framing.rate_hz // 1000} kHz, {SECONDS:g} s",
            {"input_1": samples},
            lambda: inputs,
            lambda run: listen(run, 0, SECONDS, framing),
        )

    return DynamicModel(
        "silero_vad",
        "voice activity",
        WheelFile("silero-vad", "6.2.3", "silero_vad/data/silero_vad.onnx"),
        {"input_0": 1, "state_1": 1, "input_1": (288, 576, 288)},
        (case(speech.AT_16_KHZ), case(speech.AT_8_KHZ)),
    )


def dynamic_models() -> tuple[DynamicModel, ...]:
    """Returns every model, in the order of reports; obtains nothing."""
    return (
        _detector(),
        _recogniser(),
        _encoder(
            Export("minilm_l6_dynamic", weights="weights of all-MiniLM-L6-v2"),
            "meaning of a text, small",
            4096,
        ),
        _encoder(Export("bert_base_dynamic"), "meaning of a text", 1100),
        _gpt2(),
        _silero(),
    )


def find(name: str) -> DynamicModel:
    """Returns the model called `name`.

    Raises:
        UserError: there is none; the message lists those there are.
    """
    models = {model.name: model for model in dynamic_models()}
    if name not in models:
        raise UserError(f"no model {name!r} of varying sizes; there are: {', '.join(models)}")
    return models[name]
