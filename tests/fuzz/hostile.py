"""Inputs that no valid model gives: any result or error will do, a crash will not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto

from rutc.verify.judging.tolerance import is_float
from tests.fuzz.data import is_integer
from tests.fuzz.oracles import nested
from tests.fuzz.rules import operator_name

Places = Mapping[str, tuple[int, ...]]

INDICES: Places = {
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "ScatterND": (1,),
    "ScatterElements": (1,),
    "Scatter": (1,),
    "TensorScatter": (2,),
    "MaxUnpool": (1,),
    "NegativeLogLikelihoodLoss": (1,),
    "SoftmaxCrossEntropyLoss": (1,),
    "OneHot": (0,),
    "ReverseSequence": (1,),
    "RoiAlign": (1, 2),
    "MaxRoiPool": (1,),
    "RotaryEmbedding": (3,),
    "Attention": (6,),
    "RNN": (4,),
    "GRU": (4,),
    "LSTM": (4,),
    "GridSample": (1,),
    "DeformConv": (2,),
    "ArrayFeatureExtractor": (1,),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "com.microsoft.GatherND": (1,),
    "com.microsoft.GatherBlockQuantized": (1,),
    "com.microsoft.EmbedLayerNormalization": (0, 1, 7),
    "com.microsoft.NGramRepeatBlock": (0,),
    "com.microsoft.Attention": (3,),
    "com.microsoft.MultiHeadAttention": (4,),
    "com.microsoft.GroupQueryAttention": (5,),
    "com.microsoft.RotaryEmbedding": (1,),
    "com.microsoft.GridSample": (1,),
}
"""Operands that say which elements of others are read or written."""

SIZES: Places = {
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Tile": (1,),
    "Expand": (1,),
    "Reshape": (1,),
    "ConstantOfShape": (0,),
    "Split": (1,),
    "TopK": (1,),
    "Range": (0, 1, 2),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "CumSum": (1,),
    "CumProd": (1,),
    "Trilu": (1,),
    "Resize": (2, 3),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "SplitToSequence": (1,),
    "DFT": (1, 2),
    "STFT": (1,),
    "MelWeightMatrix": (0, 1),
    "AffineGrid": (1,),
    "HannWindow": (0,),
    "HammingWindow": (0,),
    "BlackmanWindow": (0,),
    "com.microsoft.GroupQueryAttention": (6,),
    "com.microsoft.Trilu": (1,),
    "com.microsoft.Range": (0, 1, 2),
    "com.microsoft.Pad": (1,),
    **{f"Reduce{n}": (1,) for n in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum")},
}
"""Operands that decide shapes."""

FAR = (1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63), 1 << 32, 1 << 20, -(1 << 20), 50, -9, -1, 0)
SMALL = (9, -1, 0, 1, 2, -3, 3)
ENDLESS = ((1 << 63) - 1, -(1 << 63), 1 << 62, -(1 << 62))
WILD = (np.nan, np.inf, -np.inf, 1e30, -1e30, -7.5, 0.5, -0.0, 2.0)
LONG = 3e9
"""No size: a model that makes so many elements takes its time."""


def hostile(
    nodes: Sequence[NodeProto], inputs: Mapping[str, np.ndarray]
) -> tuple[Mapping[str, np.ndarray], ...]:
    """The inputs with wild indices, with wild sizes, and with both, where the nodes take such."""
    readers: dict[str, list[tuple[str, int]]] = {}
    for n in nested(nodes):
        for place, name in enumerate(n.input):
            readers.setdefault(name, []).append((operator_name(n), place))

    def read_as(name: str, places: Places) -> bool:
        found = readers.get(name, [])
        return bool(found) and all(place in places.get(op, ()) for op, place in found)

    made: list[Mapping[str, np.ndarray]] = []
    for number, tables in enumerate(((INDICES,), (SIZES,), (INDICES, SIZES))):
        found = dict(inputs)
        for name, array in inputs.items():
            kinds = [t for t in tables if read_as(name, t)]
            if kinds and array.size:
                found[name] = _wild(array, sizes=kinds[0] is SIZES, seed=number)
        if any(found[n] is not inputs[n] for n in inputs):
            made.append(found)
    return tuple(made)


def _wild(array: np.ndarray, *, sizes: bool, seed: int) -> np.ndarray:
    random = np.random.default_rng([array.size, seed])
    if is_float(array.dtype):
        with np.errstate(over="ignore"):
            numbers = WILD if sizes else (*WILD, LONG)
            chosen = random.choice(numbers, array.shape).astype(array.dtype)
    elif is_integer(array.dtype):
        limits = np.array([*SMALL, *ENDLESS] if sizes else FAR, np.int64)
        chosen = random.choice(limits, array.shape).astype(array.dtype)
    else:
        return array
    kept = random.random(array.shape) < (0.6 if sizes else 0.3)
    made = np.where(kept, array, chosen)
    return chosen if np.array_equal(made, array, equal_nan=False) else np.asarray(made, array.dtype)
