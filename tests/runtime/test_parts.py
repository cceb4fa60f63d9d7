"""How threads share the tasks of a launch: which ones each takes, and what others have left."""

import pytest

from tests.runtime.conftest import Telling, telling

MAIN = """
#include "parts.c"
#include <stdio.h>
#include <stdlib.h>

static rutc_part parts[8];
static int64_t task_us, at_once[8], calls;

static void work(const void *arg, const rutc_part *part, int64_t begin, int64_t end) {
  (void)arg;
  for (int64_t i = begin; i < end; i++) {
    int64_t until_ns = rutc_now_ns() + task_us * 1000;
    while (rutc_now_ns() < until_ns) rutc_pause();
    if (task_us == 0) printf("%d ", (int)(part->begin + i % part->size + i / part->size * 100));
  }
  if (task_us > 0) at_once[calls++] = end - begin;
}

/* threads, tasks, claims, what the second thread took before, and which thread does the rest. Tells
 * the tasks, or how many there were at a time of such that take so many microseconds. */
int main(int argc, char **argv) {
  if (argc < 6) return 1;
  if (argc > 6) task_us = atoi(argv[6]);
  int threads = atoi(argv[1]);
  for (int i = 0; i < 8; i++) parts[i] = (rutc_part){.begin = 90, .size = 1, .tasks = 1, .claim = 1,
                                                     .claims = 1};
  rutc_share_out(parts, 1, atoi(argv[2]), threads, atoi(argv[3]));
  atomic_store(&parts[1].taken, (unsigned long long)atoi(argv[4]));
  rutc_take_parts(parts, threads, atoi(argv[5]), work, NULL);
  for (int64_t i = 0; i < calls; i++) printf("%d ", (int)at_once[i]);
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Telling:
    """A program that does the tasks of all threads on one, and prints them in order."""
    return telling(MAIN, tmp_path_factory.mktemp("parts"))


@pytest.mark.parametrize(
    ("threads", "tasks", "claims", "taken", "order"),
    [
        # What another thread has not begun is taken from the back, a claim at a time.
        (2, 12, 3, 0, [0, 1, 2, 3, 4, 5, 10, 11, 8, 9, 6, 7]),
        (3, 6, 2, 0, [0, 1, 3, 2, 5, 4]),
        (2, 5, 8, 0, [0, 1, 2, 4, 3]),
        # What it has begun and never goes on with is taken, too, the last claim as well.
        (2, 12, 3, 1, [0, 1, 2, 3, 4, 5, 10, 11, 8, 9]),
        (2, 12, 3, 2, [0, 1, 2, 3, 4, 5, 10, 11]),
        (2, 12, 3, 3, [0, 1, 2, 3, 4, 5]),
        (2, 7, 3, 0, [0, 1, 2, 3, 6, 5, 4]),
        # A thread without tasks.
        (3, 2, 8, 0, [0, 1]),
    ],
)
def test_the_order_of_tasks(
    program: Telling, threads: int, tasks: int, claims: int, taken: int, order: list[int]
) -> None:
    assert program(threads, tasks, claims, taken, 0) == order


@pytest.mark.parametrize(
    ("us", "counts"), [(1, [1, 7]), (6, [1, 3, 3, 1]), (25, [1, 1, 1, 1, 1, 1, 1, 1])]
)
def test_short_claims_are_taken_together(program: Telling, us: int, counts: list[int]) -> None:
    # As many as take no longer than others would wait for them. A thread that had to wait for its
    # CPU takes its claims to be longer than they are.
    found = [program(2, 16, 8, 8, 0, us) for _ in range(20)]
    assert all(sum(x) == 8 and x[0] == 1 and max(x) <= max(counts) for x in found)
    assert counts in found


def test_a_thread_that_has_no_part_takes_what_others_have_left(program: Telling) -> None:
    """Memory for its part has what some other launch had, or nothing was ever there."""
    assert program(2, 6, 3, 0, 3) == [5, 4, 3, 2, 1, 0]
    assert program(2, 6, 3, 3, 2) == [2, 1, 0]
