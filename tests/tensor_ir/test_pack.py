"""Constants laid out in memory: every element where its layout says, with its fill around it."""

from collections.abc import Mapping

import numpy as np
import pytest

from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Lit
from rutc.tensor_ir.layout import PIECE_BYTES, dense, pack

FILL = 7.0


@pytest.mark.parametrize(
    ("shape", "order", "blocks", "halo"),
    [
        pytest.param((5, 7, 3), "abc", {}, {}, id="as it is"),
        pytest.param((5, 7, 3), "cab", {"a": 4}, {}, id="padded to blocks"),
        pytest.param((5, 7, 3), "bca", {}, {"b": (1, 2), "c": (0, 3)}, id="halo"),
        pytest.param((300, 90, 7), "acb", {"a": 56}, {}, id="in pieces"),
        pytest.param((300, 90, 7), "cba", {"a": 16, "b": 8}, {}, id="in pieces, two blocks"),
    ],
)
def test_every_element_lies_where_the_layout_says(
    shape: tuple[int, ...],
    order: str,
    blocks: Mapping[str, int],
    halo: Mapping[str, tuple[int, int]],
) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 100
    extents = dict(zip("abc", shape, strict=True))
    fill = Lit(FILL, DType.F32) if halo else None
    layout = dense(order, extents, blocks=blocks, halo=halo, fill=fill)
    packed = pack(array, "abc", layout)
    wanted = np.full(layout.size, FILL if halo else 0, np.float32)
    for at in np.ndindex(*shape):
        wanted[layout.position(dict(zip("abc", at, strict=True)))] = array[at]
    np.testing.assert_array_equal(packed, wanted)


def test_large_constants_are_of_several_pieces() -> None:
    assert 300 * 90 * 7 * np.float32().nbytes > 2 * PIECE_BYTES
