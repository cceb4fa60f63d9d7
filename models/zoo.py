"""The zoo: named real models, how to obtain each, the static shapes to use, and realistic inputs.

model = find("ppocr4_rec")
path = model.obtain()        # the ONNX file; downloaded or made once, then cached
model.shapes                 # {"x": (1, 3, 48, 320)}
model.inputs(seed=0)         # {"x": a rendered line of text}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rutc.errors import UserError
from rutc.models import digits, photographs, speech, tokens
from rutc.models.export_source import Export
from rutc.models.sources import Bundled, LightNetwork, Source, WheelFile

Array = NDArray[np.generic]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """One model of the zoo.

    Attributes:
        name: what the command line and the reports call it.
        summary: what it is, in a few words.
        source: where its ONNX file comes from.
        shapes: the shape of each input, with every symbolic dim given an extent.
        make_inputs: returns, for a seed, one array per input, of those shapes.
    """

    name: str
    summary: str
    source: Source
    shapes: Mapping[str, Shape]
    make_inputs: Callable[[int], Mapping[str, Array]]

    def obtain(self) -> Path:
        """Returns the ONNX file, downloading or making it first if it is not on this machine.

        Raises:
            UserError: it cannot be obtained here; the message says why and what to do.
        """
        return self.source.obtain()

    def inputs(self, seed: int) -> dict[str, Array]:
        """Returns realistic values of every input: the same values for the same seed."""
        return dict(self.make_inputs(seed))


def _digits() -> Model:
    def held_out(seed: int) -> dict[str, Array]:
        with np.load(digits.IMAGES) as stored:
            order = np.random.default_rng(seed).permutation(digits.BATCH)
            return {"image": stored["image"][order]}

    shapes = {"image": (digits.BATCH, 1, 8, 8)}
    return Model("digits", "handwritten digits", Bundled(digits.MODEL), shapes, held_out)


def _ocr(name: str, summary: str, file: str, shape: Shape, make: Callable[[int], Array]) -> Model:
    source = WheelFile("rapidocr-onnxruntime", "1.4.4", f"rapidocr_onnxruntime/models/{file}")
    return Model(name, summary, source, {"x": shape}, lambda seed: {"x": make(seed)})


def _ocr_models() -> list[Model]:
    return [
        _ocr(
            "ppocr4_det",
            "where text is in a picture",
            "ch_PP-OCRv4_det_infer.onnx",
            (1, 3, 640, 640),
            lambda seed: photographs.text_page(seed, 640, 640),
        ),
        _ocr(
            "ppocr4_rec",
            "what a line of text says",
            "ch_PP-OCRv4_rec_infer.onnx",
            (1, 3, 48, 320),
            lambda seed: photographs.text_line(seed, 48, 320),
        ),
        _ocr(
            "ppocr_cls",
            "whether text is upside down",
            "ch_ppocr_mobile_v2.0_cls_infer.onnx",
            (1, 3, 48, 192),
            lambda seed: photographs.text_line(seed, 48, 192, upside_down=seed % 2 == 1),
        ),
    ]


def _silero(name: str, file: str, framing: speech.Framing, *, with_rate: bool) -> Model:
    source = WheelFile("silero-vad", "6.2.3", f"silero_vad/data/{file}.onnx")
    shapes: dict[str, Shape] = {"input": (1, framing.context + framing.window)}
    shapes["state"] = (2, 1, speech.RECURRENT_SIZE)
    if with_rate:
        shapes["sr"] = ()

    def make(seed: int) -> dict[str, Array]:
        values: dict[str, Array] = {"input": speech.frame(seed, framing)}
        values["state"] = speech.recurrent_state(seed, 2, 1)
        if with_rate:
            values["sr"] = np.array(framing.rate_hz, np.int64)
        return values

    summary = f"voice activity, {framing.rate_hz // 1000} kHz"
    return Model(name, summary, source, shapes, make)


def _silero_sequence() -> Model:
    source = WheelFile("silero-vad", "6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx")
    count, framing = 32, speech.AT_16_KHZ
    state = (1, 1, speech.RECURRENT_SIZE)
    shapes = {"input": (count, framing.context + framing.window), "h": state, "c": state}
    return Model(
        "silero_vad_16k_sequence",
        "voice activity, 16 kHz, a second at once",
        source,
        shapes,
        lambda seed: {
            "input": speech.frames(seed, count, framing),
            "h": speech.recurrent_state(seed, 1, 1),
            "c": speech.recurrent_state(seed + 1, 1, 1),
        },
    )


def _silero_models() -> list[Model]:
    wide, narrow = speech.AT_16_KHZ, speech.AT_8_KHZ
    return [
        _silero("silero_vad", "silero_vad", wide, with_rate=True),
        _silero("silero_vad_8k", "silero_vad", narrow, with_rate=True),
        _silero("silero_vad_16k_op15", "silero_vad_16k_op15", wide, with_rate=True),
        _silero("silero_vad_half", "silero_vad_half", wide, with_rate=False),
        _silero("silero_vad_op18_ifless", "silero_vad_op18_ifless", wide, with_rate=True),
        _silero("silero_vad_openvino_16k", "silero_vad_openvino_16k", wide, with_rate=False),
        _silero_sequence(),
    ]


def _magika() -> Model:
    source = WheelFile("magika", "1.0.3", "magika/models/standard_v3_3/model.onnx")
    shapes = {"bytes": (1, 2 * tokens.MAGIKA_BYTES)}
    return Model(
        "magika",
        "type of a file",
        source,
        shapes,
        lambda seed: {"bytes": tokens.magika_file(seed)},
    )


def _light_models() -> list[Model]:
    names = {
        "bvlc_alexnet": "data_0",
        "densenet121": "data_0",
        "inception_v1": "data_0",
        "inception_v2": "data_0",
        "resnet50": "gpu_0/data_0",
        "shufflenet": "gpu_0/data_0",
        "squeezenet": "data_0",
        "vgg19": "data_0",
        "zfnet512": "gpu_0/data_0",
    }
    return [_image_model(f"light_{n}", LightNetwork(n), i) for n, i in names.items()]


def _image_model(name: str, source: Source, input_name: str = "pixels", size: int = 224) -> Model:
    return Model(
        name,
        "what a picture shows",
        source,
        {input_name: (1, 3, size, size)},
        lambda seed: {input_name: photographs.imagenet(seed, size, size)},
    )


def _unet() -> Model:
    return Model(
        "unet",
        "which pixels belong together",
        Export("unet", library="torch"),
        {"pixels": (1, 3, 256, 256)},
        lambda seed: {"pixels": photographs.photograph(seed, 256, 256)},
    )


def _bert(name: str, summary: str, length: int) -> Model:
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    return Model(
        name,
        summary,
        Export(name),
        dict.fromkeys(inputs, (1, length)),
        lambda seed: tokens.bert_tokens(seed, length),
    )


def _gpt2() -> Model:
    return Model(
        "gpt2",
        "next token, a text of 64 tokens",
        Export("gpt2"),
        {"input_ids": (1, 64)},
        lambda seed: {"input_ids": tokens.gpt2_tokens(seed, 64)},
    )


def _gpt2_past() -> Model:
    layers, past = 6, (1, 12, 127, 64)
    caches = [f"past_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]

    def make(seed: int) -> dict[str, Array]:
        values: dict[str, Array] = {"input_ids": tokens.gpt2_tokens(seed, 1)}
        for offset, name in enumerate(caches):
            values[name] = tokens.key_values(seed + offset, past)
        return values

    shapes: dict[str, Shape] = {"input_ids": (1, 1), **dict.fromkeys(caches, past)}
    return Model(
        "gpt2_6l_past", "next token, 127 tokens cached", Export("gpt2_6l_past"), shapes, make
    )


def _exported_models() -> list[Model]:
    return [
        _image_model("resnet50", Export("resnet50")),
        _image_model("mobilenet_v2", Export("mobilenet_v2")),
        _image_model("vit_b16", Export("vit_b16")),
        _unet(),
        _bert("bert_base_128", "meaning of a text of 128 tokens", 128),
        _bert("bert_base_384", "meaning of a text of 384 tokens", 384),
        _bert("minilm_l6", "meaning of a text of 128 tokens, small", 128),
        _gpt2(),
        _gpt2_past(),
    ]


def zoo() -> tuple[Model, ...]:
    """Returns every model of the zoo, in the order of reports; obtains nothing."""
    return (
        _digits(),
        *_ocr_models(),
        *_silero_models(),
        _magika(),
        *_light_models(),
        *_exported_models(),
    )


def find(name: str) -> Model:
    """Returns the model called `name`.

    Raises:
        UserError: there is none; the message lists those there are.
    """
    models = {model.name: model for model in zoo()}
    if name not in models:
        raise UserError(f"the zoo has no model {name!r}; it has: {', '.join(models)}")
    return models[name]
