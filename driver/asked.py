"""What a user asks of a compilation, checked, as its options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rutc.driver.options import (
    FP32,
    GREEDY,
    NO_RECORDS,
    PLAN_SECONDS,
    TOLERANCE,
    Calibration,
    Options,
    records_of,
)
from rutc.report.arguments import check_plan, check_precision, check_tolerance, placement_of

if TYPE_CHECKING:
    import numpy as np


def asked(
    *,
    target: str = "native",
    precision: str = FP32,
    calibrate: str | os.PathLike[str] | None = None,
    calibrate_by: str | None = None,
    tolerance: float | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, ...] | str] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    states: Mapping[str, str] | None = None,
    dump: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    exact_algorithms: bool = False,
    plan: str = GREEDY,
    plan_time: float | None = None,
    keep_subnormals: bool = False,
    weights: str = "auto",
    db: str | os.PathLike[str] | None = NO_RECORDS,
) -> Options:
    """The options that arguments of `rutc.compile` mean, which says what they are.

    Raises:
        UserError: one of them means nothing, or nothing beside the others.
    """
    check_precision(precision)
    check_tolerance(tolerance, precision)
    check_plan(plan, plan_time)
    known, state = records_of(db)
    return Options(
        target=target,
        precision=precision,
        calibration=Calibration.of(precision, calibrate, calibrate_by),
        tolerance=TOLERANCE if tolerance is None else tolerance,
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        dims=dict(dims or {}),
        values=dict(values or {}),
        states=dict(states or {}),
        dump=None if dump is None else Path(dump),
        jobs=jobs,
        exact_algorithms=exact_algorithms,
        plan=plan,
        plan_time=PLAN_SECONDS if plan_time is None else plan_time,
        keep_subnormals=keep_subnormals,
        weights=placement_of(weights),
        db=known,
        records=state,
    )
