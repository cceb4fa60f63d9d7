"""Small runs: whether they have several threads, which are woken for what is worth it."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import rutc as package
from rutc.runtime import load
from tests.onnx_files import write_model
from tests.runtime.conftest import Telling, telling

MAIN = """
#include "small_run.c"
#include <stdio.h>
#include <stdlib.h>

struct rutc_pool {
  int64_t awake_until; /* ns */
  int64_t now;
  int woken;
  int late;
};

int rutc_pool_awake(rutc_pool *pool) { return pool->now < pool->awake_until; }

/* ns between runs, ns of a run on one thread, and on all, whether it shares anything, runs,
 * whether threads never come, the run that takes 1 ms longer: prints how many had all threads, and
 * how often these were woken. */
int main(int argc, char **argv) {
  if (argc < 8) return 1;
  int64_t given[7];
  for (int i = 0; i < 7; i++) given[i] = atoll(argv[i + 1]);
  struct rutc_pool pool = {.now = 1000000, .late = (int)given[5]};
  rutc_small_run run = {0};
  int shared = 0;
  for (int64_t i = 0; i < given[4]; i++) {
    int64_t began = pool.now += given[0];
    int shares = rutc_small_run_shares(&run, &pool, began);
    if (shares && given[3]) {
      run.launched = 1;
      pool.woken += !rutc_pool_awake(&pool);
    }
    pool.now += given[1 + (shares && !pool.late)] + (i == given[6] ? 1000000 : 0);
    if (run.launched && !pool.late) pool.awake_until = pool.now + RUTC_WATCH_NS;
    shared += shares;
    rutc_small_run_ends(&run, shares, began, pool.now);
  }
  printf("%d %d", shared, pool.woken);
  return 0;
}
"""
TRIES, PERIOD = 16, 512


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Telling:
    """A program that runs nothing, with a clock of its own."""
    return telling(MAIN, tmp_path_factory.mktemp("small"))


def told(
    program: Telling,
    gap: int,
    alone: int,
    all_: int,
    *,
    shares: bool = True,
    late: int = 0,
    stalled: int = -1,
) -> list[int]:
    """How many runs of a period had all threads, and how often threads were woken."""
    return program(gap, alone, all_, int(shares), PERIOD + 1, late, stalled)


def test_runs_with_time_between_them_wake_nobody(program: Telling) -> None:
    assert told(program, 50000, 15000, 5000) == [0, 0]


@pytest.mark.parametrize("alone", [15000, 90000])
def test_threads_stay_awake_where_runs_are_faster(program: Telling, alone: int) -> None:
    """Also where a run takes longer than threads watch for the next one."""
    shared, woken = told(program, 1000, alone, 2 * alone // 3)
    assert shared == PERIOD - TRIES
    assert woken == 1


@pytest.mark.parametrize("shares", [True, False])
def test_threads_sleep_where_runs_are_no_faster(program: Telling, *, shares: bool) -> None:
    """Or where there is nothing to share: what the runs take then tells nothing."""
    shared, woken = told(program, 1000, 15000, 20000 if shares else 10000, shares=shares)
    assert shared == TRIES
    assert woken == int(shares)


@pytest.mark.parametrize("stalled", [TRIES // 2, TRIES + TRIES // 2])
@pytest.mark.parametrize("all_", [10000, 20000])
def test_one_run_that_is_held_up_decides_nothing(program: Telling, all_: int, stalled: int) -> None:
    """Be it on one thread, or on all."""
    shared, _ = told(program, 1000, 15000, all_, stalled=stalled)
    assert shared == (PERIOD - TRIES if all_ < 15000 else TRIES)


def test_threads_that_do_not_come_are_called_now_and_then(program: Telling) -> None:
    shared, woken = told(program, 1000, 15000, 10000, late=1)
    assert shared == woken == TRIES


def product(folder: Path, rows: int | str) -> Path:
    """A product of matrices that takes some microseconds for 16 rows."""
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    node, shape = helper.make_node("MatMul", ["x", "w"], ["y"]), [rows, 256]
    return write_model(folder / "small.onnx", [node], {"x": shape}, {"y": shape}, {"w": weights})


@pytest.mark.parametrize("rows", [16, "n"])
def test_many_runs_of_a_small_model_are_alike(tmp_path: Path, rows: int | str) -> None:
    library = tmp_path / "small.so"
    package.compile(product(tmp_path, rows), library, verify=False)
    x = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)
    with load(library, threads=1) as session:
        (first,) = session.run(None, {"x": x})
    with load(library, threads=3) as session:
        for _ in range(3 * PERIOD):
            (found,) = session.run(None, {"x": x})
            assert found.tobytes() == first.tobytes()
