r"""How far a result may be from its reference: the one table of tolerances.

An element x of an output passes against its reference r when

    |x - r| <= rtol * |r| + scale * max|r| + floor        (max over the whole output)

The second term is relative to the output's largest magnitude because rounding errors are: an
element of a sum of products carries the error of its largest partial sums, even where
cancellation leaves it near zero, so an element's own magnitude says nothing about its error.

With unit roundoff u = 2^-p (p: significand bits of the dtype), a sum of K products computed in any
order has an error of at most K u sum|a b|, and with rounding errors of independent sign about
sqrt(K) u times that magnitude [Higham & Mary 2019, "A New Approach to Probabilistic Rounding Error
Analysis"]. L such layers in a row add up as independent errors do: sqrt(L K) u. Both results carry
an error, and magnitudes vary between layers, hence the factor `SAFETY`:

    scale = SAFETY * sqrt(reduction) * u         reduction = K at kernel level, L K at model level

Where the reduction of a whole model is not known, `MODEL_REDUCTION` stands for it: 64 layers of
4096 products each, which gives 1.2e-4 of the largest magnitude for float32.

Narrow dtypes (bf16, fp16, fp8) are stored after each layer but accumulate in float32: every layer
rounds once, whatever its reduction, so L layers add `STORED` sqrt(L) u of the narrow dtype: 6 % of
the largest magnitude for a network compiled for bf16.

A quantised network rounds to 256 steps, which is u = 2^-9 of the range: where a value lies between
two steps each runtime may choose its own, and the layers after it carry the step on. This is the
same formula: 3 % of the largest magnitude, and as many steps of an 8-bit output.

`floor` is `FLOOR` u at model level: runtimes compute saturating functions (logistic, tanh, softmax)
by approximations whose error is absolute, about u, not relative. Measured: ONNX Runtime's logistic
is 1e-7 off where its result is 3e-6. A network whose outputs are all that small tells nothing more.

Against float64 (`judge`) nothing is assumed of depth or sums: both errors from the truth t are
known, and in each slice along each axis, rutc's may be at most

    MULTIPLE * max(e, r * max|t|) + SLICE_ULPS * u * max|t|          (maxima over the slice)

with e the other runtime's error in the slice, r its error over all of the output, relative to the
output's largest magnitude. Where that is exceeded, what runs of the truth with noise differ by
counts as well: that much the model's own types explain. Noise moves a value by up to `MULTIPLE`
roundings, and a sum of K products by `MULTIPLE` times the sqrt(K) / 4 roundings that are expected
of it, summed in order: its k-th partial sum, which is rounded by up to u, is about sqrt(k / K) of
the whole, and the root of the sum of these squares sqrt(K / 6), of which runs of sums in several
registers leave some. Equal summands are all rounded alike, which makes that K: where the summands
are at hand, a sum is moved as well by up to `IN_ORDER` times what it is off by if they are added
one after another. Of a quantised network, few runs do not show every value that may go to another
step: any slice may be off by `MULTIPLE` times the root of the mean square of what noise moves.

Integers, booleans and strings are exact, with one exception: 8-bit integers at model level may
differ by one step, because a quantised value that lies between two steps rounds either way.
"""

import enum
import math
from typing import Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from rutc.base.record import record

SAFETY: Final = 4.0
"""Factor over the expected error: two results err, and magnitudes differ between layers."""

STORED: Final = 2.0
"""Factor over the error of storing narrow values: both results round, each by at most u."""

FUNCTION_ULPS: Final = 8.0
"""Relative error, in units of u, of elementwise functions (exp, erf, division) in a kernel."""

FLOOR: Final = 4.0
"""Absolute error at model level, in units of u: that of the reference's saturating functions."""

HALF_STEP: Final = 2.0**-9
"""The rounding error of an 8-bit integer, as a part of its range."""

WEIGHT_STEP: Final = 2.0**-8
"""The rounding error of a weight that is stored as a multiple, up to 127, of a step: half of that,
as a part of the largest weight."""

BLOCK_STEP: Final = 2.0**-6
"""The same of a weight that is one of 16 multiples of a step: noise moves it by up to a step, an
eighth of the largest, which is twice what rounding does. More would drown what weights say."""

MODEL_LAYERS: Final = 64
"""Layers in a row of a typical deep network: its error counts as this many independent ones."""

MODEL_REDUCTION: Final = MODEL_LAYERS * 4096
"""Layers times products per sum of a typical deep network."""

ROW_STEPS: Final = 2.0
"""The width, in steps of 8 bits, over which noise moves what is rounded to them: rounding moves by
half a step at most."""

MULTIPLE: Final = 8.0
"""How many times as far from the truth as another correct runtime a result may be in a slice."""

IN_ORDER: Final = 2.0
"""Factor over the error of a sum in order: each order passes partial sums of its own."""

CHOSEN: Final = 0.25
"""Share of the largest magnitude from which on roundings choose among values: of a slice that noise
moves so much, or of an output that is off by so much as it is stored in fewer bits."""

SLICE_ULPS: Final = 16.0
"""What a result may be off in a slice, in units of u of the slice's largest magnitude, however
exact the other runtime is: a few roundings, and functions by approximations of some ulp."""

UNTOLD: Final = 1e-3
"""What a slice may differ by from the other runtime's, as a part of its largest magnitude, where
there is no truth to tell by how much two correct results differ there."""

MISSED: Final = 1 / 32
"""Of elements that noise changes, those that a few runs may have left as they were: where a label
is one of two by chance, of eight runs one in 128 changes none."""

SATURATED: Final = 1e-6
"""How near to 0 or 1 all probabilities are where a softmax or logistic tells nothing."""


class Level(enum.Enum):
    """What is compared, from strict to lenient."""

    EXACT = "exact"
    """Bit-equal values: data movement, or one artifact on different thread counts."""
    KERNEL = "kernel"
    """One operator or one kernel."""
    MODEL = "model"
    """A whole network."""
    HALF = "half precision"
    """A network of float16 inside: values are rounded to 11 bits after each layer."""
    QUANTISED = "quantised"
    """A network that rounds values to 8 bits on the way: to one of 256 steps of their range."""
    REDUCED = "reduced precision"
    """A network of bf16 inside, or compiled for it or for 8-bit weights: rounded to 8 bits."""


@record
class Tolerance:
    """Bounds of |x - r|: `rtol` |r| + `scale` max|r| + `floor`, or `steps` for integers."""

    rtol: float = 0.0
    scale: float = 0.0
    steps: int = 0
    floor: float = 0.0

    def allowed(self, reference: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns the largest allowed |x - r| for each element of `reference`."""
        magnitude = np.abs(reference)
        finite = magnitude[np.isfinite(magnitude)]
        largest = float(finite.max()) if finite.size else 0.0
        allowed: npt.NDArray[np.float64] = (
            self.rtol * magnitude + self.scale * largest + self.floor + float(self.steps)
        )
        return allowed


EXACT: Final = Tolerance()


def roundings(products: int) -> float:
    """Returns by how many roundings noise may move a sum of products; of one, a value."""
    return MULTIPLE * max(1.0, math.sqrt(products) / 4)


def unit_roundoff(dtype: npt.DTypeLike) -> float:
    """Returns u = 2^-p of a floating-point dtype with p significand bits.

    Raises:
        TypeError: `dtype` is not floating point.
    """
    kind = np.dtype(dtype)
    if not is_float(kind):
        raise TypeError(f"{kind} is not a floating-point dtype")
    bits = int(ml_dtypes.finfo(kind).nmant)  # type: ignore[no-untyped-call]
    return float(2.0 ** -(bits + 1))


def least_normal(dtype: npt.DTypeLike) -> float:
    """Returns the least positive number of a floating-point dtype that is not subnormal."""
    return float(ml_dtypes.finfo(np.dtype(dtype)).smallest_normal)  # type: ignore[no-untyped-call]


def is_float(dtype: np.dtype[np.generic]) -> bool:
    """Tells whether a dtype is floating point, the narrow types of `ml_dtypes` included."""
    if dtype.kind == "f":
        return True
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, KeyError):
        return False
    return dtype.kind == "V"


def tolerance(level: Level, dtype: npt.DTypeLike, reduction: int | None = None) -> Tolerance:
    """Returns the tolerance of an output.

    Args:
        level: What is compared.
        dtype: The output's dtype; a complex dtype counts as its parts.
        reduction: Products per sum at kernel level (default 1); layers times products per sum at
            model level (default `MODEL_REDUCTION`).
    """
    kind = np.dtype(dtype)
    if kind.kind == "c":
        kind = np.dtype(np.float32 if kind.itemsize == 8 else np.float64)
    if level is Level.EXACT:
        return EXACT
    if not is_float(kind):
        quantised = kind.kind in "iu" and kind.itemsize == 1 and level is not Level.KERNEL
        if quantised and level is Level.QUANTISED:
            return Tolerance(steps=round(STORED * math.sqrt(MODEL_LAYERS) * HALF_STEP * 256))
        return Tolerance(steps=1) if quantised else EXACT
    single = unit_roundoff(np.float32)
    u = unit_roundoff(kind)
    if level is Level.HALF:
        u = max(u, unit_roundoff(np.float16))
    if level is Level.QUANTISED:
        u = max(u, HALF_STEP)
    if level is Level.REDUCED:
        u = max(u, unit_roundoff(ml_dtypes.bfloat16))
    layers = 1 if level is Level.KERNEL else MODEL_LAYERS
    total = reduction or (1 if level is Level.KERNEL else MODEL_REDUCTION)
    summed = SAFETY * math.sqrt(total) * min(u, single)
    stored = STORED * math.sqrt(layers) * u if u > single else 0.0
    functions = FUNCTION_ULPS * u if level is Level.KERNEL else 0.0
    floor = 0.0 if level is Level.KERNEL else FLOOR * min(u, single)
    return Tolerance(rtol=max(summed, stored, functions), scale=summed + stored, floor=floor)
