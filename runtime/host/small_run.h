/* Whether a small run has several threads.
 *
 * To wake threads takes as long as such a run, so that they take part only while they are awake: they
 * watch for a moment after each run (`pool.h`), in which the next one may begin. And they are woken
 * and kept awake only where that pays, which is tried: their CPUs may be far from each other's caches.
 * Of runs that follow each other at once, a few in every PERIOD are timed on one thread and a few on
 * all, and medians are compared: a run that other processes are in the way of decides nothing.
 */
#ifndef RUTC_SMALL_RUN_H
#define RUTC_SMALL_RUN_H

#include <stdint.h>

#include "pool.h"

enum { RUTC_TIMED_RUNS = 15 };

typedef struct rutc_small_run {
  int64_t ended_ns; /* when the last run ended */
  int64_t taken_ns[2][RUTC_TIMED_RUNS]; /* by those that were tried, the shortest time first: on one
                                           thread, and on all */
  int tried;    /* runs of this period that count */
  int waited;   /* runs for which threads slept since they last took part */
  int launched; /* whether other threads were asked for anything in the run at hand */
} rutc_small_run;

/* Whether a run that begins now has all threads of the pool. */
int rutc_small_run_shares(rutc_small_run *self, rutc_pool *pool, int64_t now_ns);

/* Says what a run took that `shared` or did not. */
void rutc_small_run_ends(rutc_small_run *self, int shared, int64_t began_ns, int64_t now_ns);

#endif
