"""How long a cache line takes from one CPU to another.

CPUs that share a third cache pass a line on to each other in a fraction of the time that others
take. The two of a virtual machine may be such now and others later, and times of several threads
tell little without that: so entries of such times have those of lines, before and after.
"""

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from benchmarks.store import Entry
from rutc.emit.linking.toolchain import find_toolchain

ROUNDS = 100
SAMPLES = 50
"""Of so many the least is taken: other processes may be at work on either CPU."""

SOURCE = """
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

typedef struct pair {
  _Alignas(128) atomic_long turn;
  _Alignas(128) long rounds;
  int cpu;
} pair;

static int stay_on(int cpu) {
  cpu_set_t *set = CPU_ALLOC(cpu + 1);
  size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  if (set == NULL) return -1;
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  int failure = pthread_setaffinity_np(pthread_self(), bytes, set);
  CPU_FREE(set);
  return failure;
}

/* Whoever is not in time lets others have the CPU: the one that is waited for may need it. */
static void wait_for(pair *self, long turn) {
  for (long looked = 1; atomic_load(&self->turn) != turn; looked++)
    if (looked % 10000 == 0) sched_yield();
}

static void *answer(void *arg) {
  pair *self = arg;
  stay_on(self->cpu);
  for (long i = 0; i < self->rounds; i++) {
    wait_for(self, 2 * i + 1);
    atomic_store(&self->turn, 2 * i + 2);
  }
  return NULL;
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

static void *ask(void *arg) {
  double *found = arg, least = 0;
  pair self = {.rounds = (long)found[2] * (long)found[3], .cpu = (int)found[1]};
  pthread_t other;
  stay_on((int)found[0]);
  if (pthread_create(&other, NULL, answer, &self) != 0) return NULL;
  for (long sample = 0, i = 0; sample < (long)found[3]; sample++) {
    double begin = now_ns();
    for (long n = 0; n < (long)found[2]; n++, i++) {
      atomic_store(&self.turn, 2 * i + 1);
      wait_for(&self, 2 * i + 2);
    }
    double each = (now_ns() - begin) / (2 * found[2]);
    if (sample == 0 || each < least) least = each;
  }
  pthread_join(other, NULL);
  found[4] = least;
  return NULL;
}

/* The least time that a line takes from one CPU to another, of many samples of some rounds. */
double line_ns(int here, int there, long rounds, long samples) {
  double told[5] = {here, there, rounds, samples, -1};
  pthread_t asking;
  if (pthread_create(&asking, NULL, ask, told) == 0) pthread_join(asking, NULL);
  return told[4];
}
"""


@contextmanager
def between(threads: int) -> Iterator[Entry]:
    """What an entry has of lines after a block in which so many threads are timed."""
    found: Entry = {}
    before = line_times(threads)
    yield found
    if before:
        found["line_ns"] = [*before, *line_times(threads)]


def line_times(threads: int) -> list[int]:
    """Returns the nanoseconds that a line takes between the CPUs of so many threads.

    They are of the first CPU and the one farthest from it; nothing where there is only one.

    Raises:
        UserError: there is no C compiler.
    """
    here, *others = sorted(os.sched_getaffinity(0))[:threads]
    return [round(max(_line_ns(here, there) for there in others))] if others else []


def _line_ns(here: int, there: int) -> float:
    return float(_library().line_ns(here, there, ctypes.c_long(ROUNDS), ctypes.c_long(SAMPLES)))


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lines.c").write_text("#define _GNU_SOURCE\n" + SOURCE)
        flags = ["-O2", "-pthread", "-shared", "-fPIC", "lines.c", "-o", "lines.so"]
        find_toolchain().run(flags, Path(folder))
        library = ctypes.CDLL(str(Path(folder) / "lines.so"))
    library.line_ns.restype = ctypes.c_double
    return library
