"""Token ids for language models and byte tokens of real files for the file type detector."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rutc.models import digits

Ids = NDArray[np.int64]

BERT_VOCABULARY = 30_522
BERT_FIRST_WORD = 1_000
BERT_START, BERT_STOP, BERT_PADDING = 101, 102, 0
GPT2_VOCABULARY = 50_257

MAGIKA_BYTES = 1_024
MAGIKA_BLOCK = 4_096
MAGIKA_PADDING = 256


def _ranked(draw: np.random.Generator, count: int, vocabulary: int) -> Ids:
    """Returns ids {count} below `vocabulary`, as unequally frequent as words [Zipf 1935]."""
    return np.minimum(draw.zipf(1.2, count) - 1, vocabulary - 1).astype(np.int64)


def bert_tokens(seed: int, length: int) -> dict[str, Ids]:
    """Returns ids, mask and segments, each {1, length}: two sentences, the last tenth padding."""
    draw = np.random.default_rng(seed)
    used = length - length // 10
    middle = used // 2
    ids = BERT_FIRST_WORD + _ranked(draw, length, BERT_VOCABULARY - BERT_FIRST_WORD)
    ids[0] = BERT_START
    ids[[middle, used - 1]] = BERT_STOP
    ids[used:] = BERT_PADDING
    position = np.arange(length)
    return {
        "input_ids": ids[None],
        "attention_mask": (position < used).astype(np.int64)[None],
        "token_type_ids": ((position > middle) & (position < used)).astype(np.int64)[None],
    }


def gpt2_tokens(seed: int, length: int) -> Ids:
    """Returns ids {1, length} of GPT-2's vocabulary."""
    return _ranked(np.random.default_rng(seed), length, GPT2_VOCABULARY)[None]


def key_values(seed: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns attention keys or values of `shape`, of about unit size."""
    return np.random.default_rng([seed, 4]).standard_normal(shape).astype(np.float32)


def real_files() -> tuple[Path, ...]:
    """Returns files of different types that are part of this package."""
    folder = digits.FOLDER
    names = ("train.py", "images.npz", "digits.onnx", "demo.py")
    return tuple(folder / name for name in names)


def magika_tokens(content: bytes) -> NDArray[np.int32]:
    """Returns the tokens {1, 2048} that magika reads of a file.

    They are the first 1024 bytes without leading white space, then the last 1024 without trailing
    white space; a shorter file is padded, at its end and at its beginning, with 256.
    """
    first, last = content[:MAGIKA_BLOCK].lstrip(), content[-MAGIKA_BLOCK:].rstrip()
    if len(content) <= MAGIKA_BLOCK:
        first, last = content.strip(), content.strip()
    first, last = first[:MAGIKA_BYTES], last[-MAGIKA_BYTES:]
    tokens = np.full((1, 2 * MAGIKA_BYTES), MAGIKA_PADDING, np.int32)
    tokens[0, : len(first)] = np.frombuffer(first, np.uint8)
    tokens[0, 2 * MAGIKA_BYTES - len(last) :] = np.frombuffer(last, np.uint8)
    return tokens


def magika_file(seed: int) -> NDArray[np.int32]:
    """Returns the tokens {1, 2048} of one of `real_files`."""
    files = real_files()
    return magika_tokens(files[seed % len(files)].read_bytes())
