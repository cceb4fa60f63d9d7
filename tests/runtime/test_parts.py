"""How threads share the tasks of a launch: which ones each takes, and what others have left."""

import pytest

from tests.runtime.conftest import Telling, telling

MAIN = """
#include "parts.c"
#include <stdio.h>
#include <stdlib.h>

static rutc_part parts[8];

static void work(const void *arg, const rutc_part *part, int64_t begin, int64_t end) {
  (void)arg;
  for (int64_t i = begin; i < end; i++) {
    printf("%d ", (int)(part->begin + i % part->size + i / part->size * 100));
  }
}

/* threads, tasks, claims, what the second thread took before; the first one does the rest. */
int main(int argc, char **argv) {
  if (argc < 5) return 1;
  int threads = atoi(argv[1]);
  rutc_share_out(parts, 1, atoi(argv[2]), threads, atoi(argv[3]));
  atomic_store(&parts[1].taken, (unsigned long long)atoi(argv[4]));
  rutc_take_parts(parts, threads, 0, work, NULL);
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
    assert program(threads, tasks, claims, taken) == order
