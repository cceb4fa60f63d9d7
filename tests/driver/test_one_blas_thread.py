"""Numpy's threads: where several processes work, or one CPU is all there is, it takes one."""

import os
from pathlib import Path

import numpy as np
import pytest

from rutc.base.blas import one_blas_thread
from rutc.driver.timing.answering_process import Served
from rutc.driver.tuning import tune_model as tuning
from rutc.driver.tuning.schedule_search import SearchLimits
from rutc.errors import UserError
from rutc.tuner.database.database import Database

MORE_CPUS = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="OpenBLAS has one thread where there is one CPU"
)
SIDE = 256
"""Products of such matrices are shared out to threads."""


def threads_after_a_product() -> int:
    matrix = np.ones((SIDE, SIDE))
    assert (matrix @ matrix)[0, 0] == SIDE
    return len(os.listdir("/proc/self/task"))


@MORE_CPUS
def test_forked_processes_multiply_on_one_thread() -> None:
    with Served(lambda: lambda question: threads_after_a_product()) as usual:
        assert usual.ask(None, 60) > 1
    with one_blas_thread(), Served(lambda: lambda question: threads_after_a_product()) as one:
        assert one.ask(None, 60) == 1
    # Outside it is as before.
    with Served(lambda: lambda question: threads_after_a_product()) as usual:
        assert usual.ask(None, 60) > 1


@MORE_CPUS
def test_tuning_multiplies_on_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def seen(*given: object) -> None:
        with Served(lambda: lambda question: threads_after_a_product()) as process:
            found.append(process.ask(None, 60))
        raise UserError("seen")

    monkeypatch.setattr(tuning, "_check_runs_here", seen)
    with Database.open(tmp_path / "rutc.db") as database, pytest.raises(UserError, match="seen"):
        tuning.tune_model(Path("any.onnx"), database, SearchLimits())
    assert found == [1]
