"""Whether numbers are near enough to others, by the table of `verify.judging.tolerance`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rutc.verify.judging.tolerance import Level, tolerance


def assert_close(
    got: npt.ArrayLike,
    want: npt.ArrayLike,
    *,
    reduction: int | None = None,
    level: Level = Level.KERNEL,
    dtype: npt.DTypeLike | None = None,
    err_msg: str = "",
) -> None:
    """Asserts that results of a type, by default that of `got`, are those of a reference.

    `reduction` is the number of products in a sum, as in `tolerance`.
    """
    found, reference = np.asarray(got), np.asarray(want, np.float64)
    bounds = tolerance(level, found.dtype if dtype is None else dtype, reduction)
    finite = np.abs(reference[np.isfinite(reference)])
    largest = float(finite.max()) if finite.size else 0.0
    np.testing.assert_allclose(
        found.astype(np.float64),
        reference,
        rtol=bounds.rtol,
        atol=bounds.scale * largest + bounds.floor + bounds.steps,
        err_msg=err_msg,
    )
