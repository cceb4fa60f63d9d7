"""What an artifact stores in fewer bits than it computes in, and how far that may move results.

    rutc compile --precision bf16      a weight w is stored as w (1 + d), |d| <= u of bf16

Limits that are relative to the largest magnitude of a slice count in roundings of that type then
(`tolerance`), and runs of the truth with noise move weights by up to `STORED` of them besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rutc.tensor_ir import Const, Data, DType, Graph
from rutc.verify.tolerance import STORED, unit_roundoff

LEAST_DIMS = 2
"""Weights of products have so many dims longer than 1; what has fewer is stored as it is."""


def stored_type(manifest: Mapping[str, object]) -> DType | None:
    """The type with the fewest digits that values of an artifact are stored in instead of f32."""
    listed = manifest.get("stored")
    known = listed if isinstance(listed, list) else []
    names = {s.get("type") for s in known if isinstance(s, dict)}
    return next((t for t in (DType.BF16, DType.F16) if str(t) in names), None)


def moved_weights(graph: Graph, dtype: DType, seed: int) -> Graph:
    """The graph with its weights off by random roundings to a type; what that holds stays."""
    random = np.random.default_rng(seed)
    step = 2 * STORED * unit_roundoff(dtype.numpy)

    def moved(n: Const) -> Const:
        w = n.data.array
        if n.out.dtype is not DType.F32 or sum(e > 1 for e in w.shape) < LEAST_DIMS:
            return n
        factors = 1 + np.float32(step) * (random.random(w.shape, np.float32) - np.float32(0.5))
        with np.errstate(all="ignore"):
            held = n.data.rounded(dtype.numpy).array.astype(np.float32) == w
            return replace(n, data=Data(np.where(held, w, w * factors)))

    nodes = tuple(moved(n) if isinstance(n, Const) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)
