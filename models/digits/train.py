"""Trains the digit network on scikit-learn's handwritten digits and writes it as ONNX.

Run `python -m rutc.models.digits.train`. It needs the optional packages torch (training only),
scikit-learn (the 1797 real 8x8 images of its `load_digits`) and onnx. The split, the
initial weights and the order of the images come from one seed, and training uses one thread, so
the same package versions give the same file.

    image{16,1,8,8} -> conv 3x3 (1->24), relu, maxpool 2 -> conv 3x3 (24->48), relu, maxpool 2
                    -> flatten -> gemm (192->64), relu -> gemm (64->10) -> scores{16,10}
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from rutc.models.digits import BATCH, FOLDER, IMAGES, MODEL

SEED = 20190513
EPOCHS = 60
TRAIN_BATCH = 64
OPSET = 23

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


def split_digits() -> tuple[Floats, Labels, Floats, Labels]:
    """Returns train images, train labels, test images, test labels.

    Images are {n, 1, 8, 8} in 0..1. A fifth of them, stratified by digit, is held out for testing.
    """
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=SEED, stratify=labels
    )
    return train_x, train_y, test_x, test_y


def network() -> nn.Sequential:
    """Returns the untrained network: `{n, 1, 8, 8}` in 0..1 -> ten scores per image."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(192, 64),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(64, 10),
    )


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Returns the images, each moved by -1, 0 or 1 pixel along y and x, filled up with 0."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    offsets = torch.randint(0, 3, (len(images), 2), generator=generator).tolist()
    return torch.stack(
        [image[:, y : y + 8, x : x + 8] for image, (y, x) in zip(padded, offsets, strict=True)]
    )


def train(images: Floats, labels: Labels) -> nn.Sequential:
    """Returns the network trained on `images` {n, 1, 8, 8} and `labels` {n}, in evaluation mode."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    steps = EPOCHS * -(-len(images) // TRAIN_BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    all_x, all_y = torch.from_numpy(images), torch.from_numpy(labels)
    model.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(all_x), generator=generator)
        for first in range(0, len(order), TRAIN_BATCH):
            chosen = order[first : first + TRAIN_BATCH]
            scores = model(shifted(all_x[chosen], generator))
            loss = nn.functional.cross_entropy(scores, all_y[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return model.eval()


def accuracy(model: nn.Sequential, images: Floats, labels: Labels) -> float:
    """Returns the share of `images` whose highest score is at their label."""
    with torch.no_grad():
        predicted = model(torch.from_numpy(images)).argmax(1).numpy()
    return float((predicted == labels).mean())


def _stage(source: str, number: str) -> list[onnx.NodeProto]:
    """Returns conv 3x3, relu and maxpool 2 of `source`, the last called `pool<number>`."""
    conv, relu, pool = f"conv{number}", f"relu{number}", f"pool{number}"
    weights = [f"{conv}.weight", f"{conv}.bias"]
    return [
        helper.make_node(
            "Conv", [source, *weights], [conv], conv, kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Relu", [conv], [relu], relu),
        helper.make_node("MaxPool", [relu], [pool], pool, kernel_shape=[2, 2], strides=[2, 2]),
    ]


def _gemm(source: str, name: str) -> onnx.NodeProto:
    """Returns the fully connected layer `name` of `source`."""
    weights = [f"{name}.weight", f"{name}.bias"]
    return helper.make_node("Gemm", [source, *weights], [name], name, transB=1)


def to_onnx(model: nn.Sequential) -> onnx.ModelProto:
    """Returns the trained network as an ONNX model of static batch `BATCH`."""
    names = {"0": "conv1", "3": "conv2", "7": "hidden", "10": "scores"}
    weights = [
        numpy_helper.from_array(tensor.numpy(), f"{names[key.split('.')[0]]}.{key.split('.')[1]}")
        for key, tensor in model.state_dict().items()
    ]
    nodes = [
        *_stage("image", "1"),
        *_stage("pool1", "2"),
        helper.make_node("Flatten", ["pool2"], ["flat"], "flatten"),
        _gemm("flat", "hidden"),
        helper.make_node("Relu", ["hidden"], ["relu3"], "relu3"),
        _gemm("relu3", "scores"),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [BATCH, 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [BATCH, 10])],
        weights,
    )
    opset = helper.make_opsetid("", OPSET)
    result = helper.make_model(
        graph, opset_imports=[opset], ir_version=10, producer_name="rutc.models.digits"
    )
    onnx.checker.check_model(result, full_check=True)
    return result


def main(arguments: list[str] | None = None) -> None:
    """Trains, prints the measured accuracies, and writes `digits.onnx` and `images.npz`."""
    parser = argparse.ArgumentParser(description="Train the digit network and write it as ONNX.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    out: Path = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    train_x, train_y, test_x, test_y = split_digits()
    model = train(train_x, train_y)
    train_share = accuracy(model, train_x, train_y)
    test_share = accuracy(model, test_x, test_y)
    print(f"train accuracy {train_share:.2%} on {len(train_x)} images")
    print(f"test accuracy {test_share:.2%} on {len(test_x)} held-out images")
    (out / MODEL.name).write_bytes(to_onnx(model).SerializeToString(deterministic=True))
    np.savez(out / IMAGES.name, image=test_x[:BATCH], label=test_y[:BATCH])


if __name__ == "__main__":
    main()
