"""Weights that are in no library: the file of them beside it, another such file, or memory.

bytes of the weights .. | their SHA-256, 32 bytes
"""

import os
from mmap import mmap
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from rutc.runtime.c_interface import Options
from rutc.runtime.errors import ModelError

DIGEST_BYTES: Final = 32

WeightsSource = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | mmap | npt.NDArray[np.generic]
)
"""The path of a file of weights, or what is in it."""

Given = Path | memoryview
"""A path, or bytes of memory."""


def given_weights(weights: object) -> Given:
    """Returns a file of weights, or memory that has its content.

    Raises:
        ModelError: it is neither a path nor memory whose bytes lie one after the other.
    """
    if isinstance(weights, str | os.PathLike):
        path = os.fspath(weights)
        if not isinstance(path, str) or not path or "\0" in path:
            raise ModelError(f"no file of weights has the name {path!r}")
        return Path(os.path.abspath(path))
    why: object = "there are no bytes"
    try:
        content = memoryview(weights).cast("B")  # type: ignore[arg-type]
        if content:
            return content
    except (TypeError, ValueError) as error:
        why = error
    raise ModelError(f"weights must be the path of a file or memory that has its content: {why}")


def tell_weights(options: Options, weights: Given | None) -> npt.NDArray[np.uint8] | None:
    """Tells a library of its weights; what is returned is to live until the session is closed."""
    match weights:
        case Path():
            options.weights_path = os.fsencode(weights)
        case memoryview():
            held = np.frombuffer(weights, np.uint8)
            options.weights = held.ctypes.data
            options.weights_bytes = held.size
            return held
    return None


def weights_path(library: Path) -> Path:
    """Returns where the file of weights of a library lies: beside it, or what it is a link to."""
    named = _beside(Path(os.path.abspath(library)))
    return named if os.path.exists(named) else _beside(Path(os.path.realpath(library)))


def _beside(library: Path) -> Path:
    return library.with_name(f"{library.name.rpartition('.')[0] or library.name}.weights")
