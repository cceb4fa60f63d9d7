"""Where the weights of an artifact lie: in its library, or in a file beside it.

model.so        code, host program, manifest | weights
model.weights   weights | their SHA-256, 32 bytes, which tells them from those of others
"""

from pathlib import Path
from typing import Literal, assert_never, get_args

WeightPlacement = Literal["auto", "embed", "external"]
PLACEMENTS: tuple[WeightPlacement, ...] = get_args(WeightPlacement)

EMBED_LIMIT_BYTES = 1 << 30
"""Larger weights are in a file unless asked otherwise: tools copy and read libraries as a whole."""


def weights_file(library: Path, placement: WeightPlacement, weight_bytes: int) -> Path | None:
    """Returns where the file of so many bytes of weights is to be; None: in the library."""
    match placement:
        case "auto":
            external = weight_bytes > EMBED_LIMIT_BYTES
        case "embed":
            external = False
        case "external":
            external = weight_bytes > 0
        case _:
            assert_never(placement)
    return library.with_suffix(".weights") if external else None
