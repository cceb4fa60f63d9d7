"""What searches measured in models becomes lessons, and no constant is fitted to it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks import fit, searched, train
from rutc.driver.timing.trials import Outcome, Timing
from rutc.driver.tuning.schedule_search import Tried, kernel_after
from rutc.driver.tuning.tuning_records import origin_of, rows_of
from rutc.tensor_ir.cost import summarise
from rutc.tuner.database.database import Database
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.cost_model import CostModel
from rutc.tuner.search.nest_features import features
from rutc.tuner.search.search import Candidate, Search
from tests.tuner.test_seeds import product

SUBJECT = product(32, 48, 64)
MACHINE = SUBJECT.machine


@pytest.fixture
def tried() -> list[tuple[Candidate, float]]:
    """The default schedule of a kernel and others, with what each took by the default one."""
    own = spaces(SUBJECT.kernel, MACHINE, SUBJECT.constants, fixed=("parallel",))
    search = Search(SUBJECT.kernel, own, CostModel(MACHINE), kernel_after, Random(0))
    assert search.default is not None
    others = {c.text: c for _ in range(20) if (c := search.drawn()) is not None}
    others.pop(search.default.text, None)
    found = [search.default, *others.values()][:4]
    return list(zip(found, (1.0, 0.5, 2.0, 0.9), strict=True))


def test_trials_in_models_become_lessons(
    tried: list[tuple[Candidate, float]], tmp_path: Path
) -> None:
    (default, _), *_ = tried
    with Database.open(tmp_path / "net.sqlite") as database:
        for number, (c, ratio) in enumerate(tried):
            # Others slow the processor down meanwhile, and what takes turns with it.
            slow = 1.0 + number
            took = Timing(slow * 500 * ratio, slow * 490 * ratio, slow * 510 * ratio, 0.5 * slow)
            outcome = Outcome("measured", model=took)
            beside = {"model": 1000.0} if number else None
            rows = rows_of(Tried(SUBJECT, c, None, outcome, default, beside), origin_of(MACHINE))
            database.add(rows)
    searched.write({"net": tmp_path / "net.sqlite"}, tmp_path)
    assert not fit.load(tmp_path, shared=True).points
    times = fit.load(tmp_path, in_models=True)
    found = {p.schedule: p for p in times.points}
    assert [p.number for p in times.points] == [0, 1, 2, 3]
    assert times.points[0].schedule == default.text
    assert all(p.target.endswith(fit.IN_MODELS) for p in times.points)
    for c, ratio in tried:
        assert found[c.text].cycles / found[default.text].cycles == pytest.approx(ratio, rel=1e-3)
    data = train.lessons(times)
    assert set(data.families) == {"net"}
    (first, *_) = data.features
    expected = features(summarise(default.kernel, MACHINE).regions, MACHINE)
    assert np.abs(first - expected).max() < 0.01


def test_kernels_without_a_default_schedule_teach_nothing(
    tried: list[tuple[Candidate, float]], tmp_path: Path
) -> None:
    (default, _), (other, _), *_ = tried
    outcome = Outcome("measured", model=Timing(500.0, 490.0, 510.0, 0.5))
    one = Tried(SUBJECT, other, None, outcome, default, {"model": 1000.0})
    assert not list(searched.rows_of("net", rows_of(one, origin_of(MACHINE))))
