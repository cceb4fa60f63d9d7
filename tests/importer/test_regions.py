"""Pooling of regions: of a bin, as many elements are read as the largest bin has."""

import numpy as np
import pytest

from rutc.tensor_ir import Bind
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.graph import Nest

BOXES = [[0, 3, 2, 13, 9], [1, 0, 0, 3, 4], [0, -9, -7, -5, -3], [1, 40, 50, 60, 55]]
"""The second is small; the third lies before the first element of an image, the last behind it."""


@pytest.mark.parametrize("count", [4, 0])
def test_largest_of_regions(count, check, make_node, rng):
    inputs = {
        "x": rng.standard_normal((2, 3, 15, 17)).astype("f4"),
        "r": np.array(BOXES, "f4")[:count],
    }
    graph = check(make_node("MaxRoiPool", ["x", "r"], pooled_shape=[3, 2]), inputs)
    bins = {n.symbol for n in graph.nodes if isinstance(n, Bind)}
    assert len(bins) == (2 if count else 0)
    for n in graph.nodes:
        if isinstance(n, Nest) and any(r.value == "x" for e in n.body for r in reads(e)):
            assert {graph.extents[d].as_var for d in n.bound} == bins
