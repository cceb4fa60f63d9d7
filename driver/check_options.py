"""What a user asks of a compilation, checked, as its options."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from rutc.driver.options import (
    EIGHT_BITS,
    FP32,
    GREEDY,
    NO_RECORDS,
    PLAN_SECONDS,
    PLANS,
    SEARCH,
    TOLERANCE,
    Calibration,
    Options,
    records_of,
)
from rutc.emit.linking.placement import PLACEMENTS, WeightPlacement
from rutc.errors import UserError

if TYPE_CHECKING:
    import numpy as np

PRECISIONS = ("fp32", "bf16", "fp16", "w8", "w4", "int8", "auto")
"""What weights may be stored in, or multiplied in."""


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


def check_precision(precision: str) -> None:
    """Raises UserError where there is no such precision."""
    if precision not in PRECISIONS:
        raise UserError(
            f"precision {precision!r} is not supported: rutc compiles for {', '.join(PRECISIONS)}"
        )


def check_plan(plan: str, seconds: float | None) -> None:
    """Raises UserError where plans are not made so, or there is no search to take that long."""
    if plan not in PLANS:
        raise UserError(f"--plan {plan}: plans are made by one of {', '.join(PLANS)}")
    if seconds is None:
        return
    if plan != SEARCH:
        raise UserError(f"--plan-time is for --plan {SEARCH}: with {plan} there is no search")
    if not 0 <= seconds < math.inf:
        raise UserError(f"--plan-time {seconds:g}: give the seconds of a search, or 0")


def placement_of(weights: str) -> WeightPlacement:
    """Returns where weights are to be.

    Raises:
        UserError: there is no such place.
    """
    for placement in PLACEMENTS:
        if placement == weights:
            return placement
    raise UserError(f"--weights {weights}: weights are placed by one of {', '.join(PLACEMENTS)}")


def check_tolerance(tolerance: float | None, precision: str) -> None:
    """Raises UserError where no outputs can be off by so much, or none are that may be."""
    if tolerance is None:
        return
    if precision not in EIGHT_BITS:
        raise UserError(
            f"--tolerance is for --precision int8 or auto: with {precision} results are compared "
            "by what roundings explain"
        )
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise UserError(f"a tolerance of {tolerance} is none: give a number from 0 on")


def check_number(name: str, number: SupportsIndex | None, most: int | None = None) -> None:
    """Checks a count that may be left out.

    Raises:
        UserError: it is not a whole number from 1 to `most`.
    """
    if number is None:
        return
    try:
        count = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        count = 0
    if not 1 <= count <= (most or math.inf):
        limit = f"from 1 to {most}" if most else "of at least 1"
        raise UserError(f"{name} must be a whole number {limit}, not {number!r}")
