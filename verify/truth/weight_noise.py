"""What an artifact stores in fewer bits than it computes in, and how far that may move results.

    rutc compile --precision bf16      a weight w is stored as w (1 + d), |d| <= u of bf16
    rutc compile --precision w8        as w + d, |d| <= max|w| / 254, for each row or column
    rutc compile --precision w4        as w + d, |d| about max|w| / 16 at most, for each block

Limits that are relative to the largest magnitude of a slice count in roundings of that type then
(`tolerance`), and runs of the truth with noise move weights by up to `MULTIPLE` of them besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce

import numpy as np

from rutc.graph_opt.decide.stored_types import factors_of_sums
from rutc.graph_opt.pipeline import optimize
from rutc.graph_opt.rewrite import Sweep
from rutc.graph_opt.rules.fold import FoldConstants
from rutc.tensor_ir import Const, Data, DType, Graph
from rutc.tensor_ir.expr import index_names
from rutc.verify.judging.tolerance import BLOCK_STEP, MULTIPLE, WEIGHT_STEP, unit_roundoff
from rutc.verify.truth.float64 import WIDENED

LEAST_DIMS = 2
"""Weights of products have so many dims longer than 1, or sums of products go along the only one;
what else has fewer is stored as it is."""

_FOLDED = (Sweep("weights that constants make", (FoldConstants(),)),)


def stored_type(manifest: Mapping[str, object]) -> DType | None:
    """The type with the fewest digits that values or factors of an artifact have instead of f32."""
    names = {*_told(manifest, "stored", "type"), *_told(manifest, "algorithms", "factors")}
    return next((t for t in (DType.I4, DType.I8, DType.BF16, DType.F16) if str(t) in names), None)


def _told(manifest: Mapping[str, object], what: str, fact: str) -> Iterator[object]:
    """A fact of each of what the manifest lists."""
    listed = manifest.get(what)
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict):
            yield each.get(fact)


def roundoff_of(stored: DType | None) -> float:
    """What a weight may be off in its type: of itself, of integers of the largest beside it."""
    if stored is None:
        return 0.0
    if stored is DType.I4:
        return BLOCK_STEP
    return unit_roundoff(stored.numpy) if stored.is_float else WEIGHT_STEP


def with_made_weights(graph: Graph) -> Graph:
    """The graph whose constants are all weights that are stored, those included that others make.

    %q : i16{k,n} = const;  %w : f32{k,n} = f32(%q[k, n]) * %s[n]   ->   %w : f32{k,n} = const
    """
    return optimize(graph, pipeline=_FOLDED)


def moved_weights(graph: Graph, stored: DType, seed: int) -> Graph:
    """The graph with its weights off by random roundings to a type; what that holds stays."""
    random = np.random.default_rng(seed)
    step = np.float32(2 * MULTIPLE * roundoff_of(stored))
    summed = set(_summed_along(graph))

    def moved(n: Const) -> Const:
        own = n.data.array
        long = sum(e > 1 for e in own.shape)
        if n.out.dtype not in WIDENED or (long < LEAST_DIMS and n.out.name not in summed):
            return n
        w = own.astype(np.float32, copy=False)
        noise = step * (random.random(w.shape, np.float32) - np.float32(0.5))
        with np.errstate(all="ignore"):
            if not stored.is_float:
                made = w + noise * _largest_beside(w)
            else:
                held = n.data.rounded(stored.numpy).array.astype(np.float32) == w
                made = np.where(held, w, w + w * noise)
            # A type's largest numbers stay finite.
            most = np.float32(np.finfo(own.dtype).max) if own.dtype.kind == "f" else np.inf
            return replace(n, data=Data(np.clip(made, -most, most).astype(own.dtype)))

    nodes = tuple(moved(n) if isinstance(n, Const) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _summed_along(graph: Graph) -> Iterator[str]:
    """Yields the values that are factors of sums over one of their own dims."""
    for n, read in factors_of_sums(graph):
        if not index_names(read).isdisjoint(n.bound):
            yield read.value


def _largest_beside(w: np.ndarray) -> np.ndarray:
    """The largest magnitude at an element's index of an axis: of those axes where it is least.

    Beside an element of a single row stand the others.
    """
    size = np.abs(w)
    axes = [a for a, e in enumerate(w.shape) if e > 1]
    if len(axes) < LEAST_DIMS or not w.size:
        return np.asarray(size.max(keepdims=True, initial=0))
    others = (tuple(i for i in range(w.ndim) if i != a) for a in axes)
    found = [size.max(axis=o, keepdims=True) for o in others]
    return np.asarray(reduce(np.minimum, found))
