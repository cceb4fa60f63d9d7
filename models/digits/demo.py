"""Recognises held-out handwritten digits with the compiled network and draws them as text."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rutc
from rutc.errors import UserError
from rutc.models.digits import BATCH, IMAGES, MODEL
from rutc.runtime import ModelError

SHADES = " .:-=+*#%@"
DRAWN_PER_ROW = 4
GAP = "   "


def draw(image: NDArray[np.float32]) -> list[str]:
    """Returns the lines of one image {8, 8} in 0..1, two characters per pixel."""
    levels = np.rint(np.clip(image, 0.0, 1.0) * (len(SHADES) - 1)).astype(int)
    return ["".join(SHADES[level] * 2 for level in row) for row in levels]


def render(
    images: NDArray[np.float32], labels: NDArray[np.int64], predicted: NDArray[np.int64]
) -> str:
    """Returns the pictures of `images` {n, 1, 8, 8}, each above its label and what was read."""
    rows: list[str] = []
    for first in range(0, len(images), DRAWN_PER_ROW):
        chosen = range(first, min(first + DRAWN_PER_ROW, len(images)))
        pictures = [draw(images[i, 0]) for i in chosen]
        rows += [GAP.join(lines).rstrip() for lines in zip(*pictures, strict=True)]
        captions = [
            f"label {labels[i]} read {predicted[i]}" + ("" if labels[i] == predicted[i] else " X")
            for i in chosen
        ]
        rows += [GAP.join(f"{caption:<16}" for caption in captions).rstrip(), ""]
    return "\n".join(rows)


def recognise(artifact: Path, images: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns the digit with the highest score for each of `images` {16, 1, 8, 8}.

    Raises:
        UserError: the artifact cannot be loaded, or is not the digit network.
    """
    try:
        (scores,) = rutc.load(str(artifact)).run(["scores"], {"image": images})
    except ModelError as error:
        raise UserError(str(error)) from error
    digits: NDArray[np.int64] = np.argmax(scores, axis=1)
    return digits


def main(arguments: list[str] | None = None) -> None:
    """Compiles the network (or takes a compiled one), runs it, and prints digits beside labels.

    Raises:
        UserError: the artifact named on the command line is missing or of no use.
    """
    parser = argparse.ArgumentParser(
        prog="python -m rutc.models.digits",
        description="Recognise held-out handwritten digits with a compiled network.",
    )
    parser.add_argument(
        "artifact",
        type=Path,
        nargs="?",
        help="what `rutc compile digits.onnx` wrote; without it the network is compiled first",
    )
    parser.add_argument("--draw", type=int, default=8, help=f"how many to draw, up to {BATCH}")
    options = parser.parse_args(arguments)
    with np.load(IMAGES) as stored:
        images, labels = stored["image"], stored["label"]
    if options.artifact is None:
        with tempfile.TemporaryDirectory() as folder:
            artifact = Path(folder) / "digits.so"
            rutc.compile(str(MODEL), str(artifact))
            predicted = recognise(artifact, images)
    elif options.artifact.is_file():
        predicted = recognise(options.artifact, images)
    else:
        message = (
            f"no compiled network at {options.artifact}: "
            f"make it with `rutc compile {MODEL} -o {options.artifact}`, or name none"
        )
        raise UserError(message)
    shown = max(0, min(options.draw, BATCH))
    print(render(images[:shown], labels[:shown], predicted[:shown]))
    print("label", *labels)
    print("read ", *predicted)
    print(f"{int((predicted == labels).sum())} of {len(labels)} held-out images recognised")


if __name__ == "__main__":
    main()
