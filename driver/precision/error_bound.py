"""How far results of other inputs may be off, from how far those of some are.

Errors of an output are about log-normal over inputs: each is a product of what many layers make of
it. Where all but a share `BEYOND` of them are below is then the bound of a prediction from the mean
and the deviation of their logarithms,

    exp(mean + t * deviation * sqrt(1 + 1 / n))         t of Student's distribution, at 1 - BEYOND

A few inputs tell little of the deviation: what it is of other models counts as `PRIOR_INPUTS` more
[Smyth 2004, moderated t]. Inputs whose results are not off at all tell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from rutc.verify.judging.budget import relative_error
from rutc.verify.judging.compare import Value

BEYOND = 1e-3
"""The share of other inputs whose results may be further off."""
PRIOR_INPUTS, PRIOR_DEVIATION = 4.0, 0.2
"""What the deviation of logarithms is of models of the zoo, in geometric mean, and how many inputs
that counts as."""


def errors_of(ours: Sequence[Value], wanted: Sequence[Value]) -> np.ndarray:
    """The relative error of each output that is a tensor {output}."""
    return np.array(
        [
            relative_error(x, y)
            for x, y in zip(ours, wanted, strict=True)
            if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
        ]
    )


def bound_of(errors: np.ndarray) -> float:
    """The bound of the errors {input, output} of any output, for other inputs; 0 without outputs.

    It is no less than the largest.
    """
    return max(map(_bound, errors.T), default=0.0)


def _bound(errors: np.ndarray) -> float:
    """The bound of the errors {input} of an output."""
    largest = float(errors.max())
    off = errors[errors > 0]
    if not np.isfinite(largest) or not off.size:
        return largest
    logs = np.log(off)
    known = PRIOR_INPUTS + off.size - 1
    energy = PRIOR_INPUTS * PRIOR_DEVIATION**2 + float(np.square(logs - logs.mean()).sum())
    deviation = np.sqrt(energy / known * (1 + 1 / off.size))
    return max(largest, float(np.exp(logs.mean() + stdtrit(known, 1 - BEYOND) * deviation)))
