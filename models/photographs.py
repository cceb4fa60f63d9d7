"""Pictures for image models: crops of real photographs, and rendered text for text readers."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CROP_SHARE = (0.5, 1.0)
"""A crop's height, as a share of its photograph's."""

WORDS = (
    "compile", "tensor", "loop", "kernel", "layout", "schedule", "fusion", "memory", "vector",
    "batch", "stride", "named", "graph", "tile", "2019", "1024", "paper", "machine", "learning",
)  # fmt: skip


@cache
def _photographs() -> tuple[NDArray[np.uint8], ...]:
    """Returns scikit-learn's sample photographs, each {y, x, 3} in 0..255."""
    from sklearn.datasets import load_sample_images

    return tuple(load_sample_images().images)


def photograph(seed: int, height: int, width: int) -> Floats:
    """Returns a random crop {1, 3, height, width} of a real photograph, RGB in 0..1."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    photographs = _photographs()
    picture = photographs[int(draw.integers(len(photographs)))]
    crop_y = int(picture.shape[0] * draw.uniform(*CROP_SHARE))
    crop_x = min(picture.shape[1], crop_y * width // height)
    y = int(draw.integers(picture.shape[0] - crop_y + 1))
    x = int(draw.integers(picture.shape[1] - crop_x + 1))
    crop = Image.fromarray(picture[y : y + crop_y, x : x + crop_x])
    resized = np.asarray(crop.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    return np.ascontiguousarray(resized.transpose(2, 0, 1)[None]) / np.float32(255)


def imagenet(seed: int, height: int = 224, width: int = 224) -> Floats:
    """Returns a photograph {1, 3, height, width}, normalised by ImageNet's mean and deviation."""
    mean = np.array(IMAGENET_MEAN, np.float32)[:, None, None]
    std = np.array(IMAGENET_STD, np.float32)[:, None, None]
    return (photograph(seed, height, width) - mean) / std


def centred(pixels: NDArray[np.uint8]) -> Floats:
    """Returns RGB pixels {y, x, 3} as PP-OCR wants them: BGR {1, 3, y, x} in -1..1."""
    planes = pixels[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32)
    return np.ascontiguousarray(planes / np.float32(127.5) - np.float32(1))


def line_text(seed: int) -> str:
    """Returns the words that `text_line(seed)` shows."""
    draw = np.random.default_rng(seed)
    return " ".join(str(word) for word in draw.choice(WORDS, size=3, replace=False))


def text_line(seed: int, height: int, width: int, *, upside_down: bool = False) -> Floats:
    """Returns a picture {1, 3, height, width} of the line `line_text(seed)`, BGR in -1..1.

    The line fills the height; to its right the picture is 0, as PP-OCR fills short lines up.
    """
    from PIL import Image, ImageDraw, ImageFont

    draw = np.random.default_rng([seed, 1])
    font = ImageFont.load_default(size=height * 5 / 8)
    paper = tuple(int(v) for v in draw.integers(215, 256, 3))
    ink = tuple(int(v) for v in draw.integers(0, 90, 3))
    text = line_text(seed)
    left, top, right, bottom = font.getbbox(text)
    size = (int(right - left) + height // 3, height)
    image = Image.new("RGB", size, paper)
    origin = (height // 6 - left, (height - top - bottom) / 2)
    ImageDraw.Draw(image).text(origin, text, fill=ink, font=font)
    if upside_down:
        image = image.rotate(180)
    if image.width > width:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    noise = draw.normal(0, 3, (image.height, image.width, 3))
    pixels = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
    result = np.zeros((1, 3, height, width), np.float32)
    result[..., : image.width] = centred(pixels)
    return result


def text_page(seed: int, height: int, width: int) -> Floats:
    """Returns a picture {1, 3, height, width} of a page of text lines, BGR in -1..1."""
    from PIL import Image, ImageDraw, ImageFont

    draw = np.random.default_rng([seed, 2])
    shade = np.linspace(235, 205, width) + draw.normal(0, 3, (height, width))
    gray = np.clip(shade, 0, 255).astype(np.uint8)
    image = Image.fromarray(gray).convert("RGB")
    canvas = ImageDraw.Draw(image)
    top = height // 20
    while True:
        size = int(draw.integers(16, 44))
        if top + size > height * 19 // 20:
            return centred(np.asarray(image))
        words = " ".join(str(word) for word in draw.choice(WORDS, size=int(draw.integers(1, 5))))
        ink = tuple(int(v) for v in draw.integers(0, 100, 3))
        left = int(draw.integers(width // 20, width // 5))
        canvas.text((left, top), words, fill=ink, font=ImageFont.load_default(size=size))
        top += int(size * draw.uniform(1.3, 2.2))
