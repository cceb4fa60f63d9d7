"""What users ask of a compilation becomes options, or an error that names the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rutc.driver.check_options import asked
from rutc.driver.options import Options
from rutc.errors import UserError
from rutc.graph_opt.leeway import USUAL_LEEWAY, Leeway


def test_who_asks_for_nothing_gets_the_usual() -> None:
    assert asked() == Options()
    assert asked().leeway == USUAL_LEEWAY


def test_what_is_asked_is_what_is_done(tmp_path: Path) -> None:
    found = asked(
        shapes={"x": [1, 3]},
        dims={"n": (1, 64)},
        states={"past": "present"},
        dump=str(tmp_path),
        plan="search",
        plan_time=0,
        exact_algorithms=True,
        weights="external",
    )
    assert found.weights == "external"
    assert (found.shapes, found.dims) == ({"x": (1, 3)}, {"n": (1, 64)})
    assert (found.states, found.dump) == ({"past": "present"}, tmp_path)
    assert found.search_seconds == 0
    assert found.leeway == Leeway(exact=True)


@pytest.mark.parametrize("precision", ["bf16", "int8", "auto"])
def test_factors_may_be_rounded_in_these_precisions(precision: str) -> None:
    assert asked(precision=precision).leeway == Leeway(bf16=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"precision": "fp8"}, "precision 'fp8' is not supported"),
        ({"tolerance": 0.1}, "--tolerance is for --precision int8 or auto"),
        ({"precision": "int8", "tolerance": float("nan")}, "a tolerance of nan is none"),
        ({"plan": "best"}, "--plan best: plans are made by one of greedy, search"),
        ({"plan_time": 1.0}, "--plan-time is for --plan search"),
        ({"plan": "search", "plan_time": -1.0}, "--plan-time -1: give the seconds"),
        ({"precision": "int8", "calibrate_by": "median"}, "no calibration by 'median'"),
        ({"weights": "outside"}, "--weights outside: weights are placed by one of auto, embed"),
        ({"calibrate": "cases"}, "a calibration is for --precision"),
        ({"precision": "int8", "calibrate": "no/folder"}, "--calibrate no/folder"),
    ],
)
def test_what_cannot_be_asked(how: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        asked(**how)
