#include "small_run.h"

enum { TRIES = RUTC_TIMED_RUNS + 1, PERIOD = 512, ALONE = 0, SHARED = 1 };

/* Of a run in which there was nothing to share. */
static const int64_t NEVER_NS = INT64_C(1) << 40;

static int follows(const rutc_small_run *self, int64_t began_ns) {
  return began_ns - self->ended_ns < RUTC_WATCH_NS;
}

static int should_share(const rutc_small_run *self) {
  if (self->tried < TRIES) return 0;
  if (self->tried < 2 * TRIES) return 1;
  int median = RUTC_TIMED_RUNS / 2;
  return self->taken_ns[SHARED][median] < self->taken_ns[ALONE][median];
}

int rutc_small_run_shares(rutc_small_run *self, rutc_pool *pool, int64_t now_ns) {
  self->launched = 0;
  if (!follows(self, now_ns) || !should_share(self)) return 0;
  if (rutc_pool_awake(pool)) {
    self->waited = 0;
    return 1;
  }
  /* The run's launches wake them. Threads that do not come, as other processes have their CPUs, are
   * not called each time. */
  return self->waited++ % TRIES == 0;
}

/* The first of some tries finds the caches as the others do not. */
static void count(rutc_small_run *self, int shared, int64_t taken_ns) {
  int64_t *times = self->taken_ns[shared ? SHARED : ALONE];
  int place = self->tried % TRIES - 1;
  if (place < 0) return;
  if (shared && !self->launched) taken_ns = NEVER_NS;
  for (; place > 0 && times[place - 1] > taken_ns; place--) times[place] = times[place - 1];
  times[place] = taken_ns;
}

void rutc_small_run_ends(rutc_small_run *self, int shared, int64_t began_ns, int64_t now_ns) {
  int soon = follows(self, began_ns), trying = self->tried < 2 * TRIES;
  self->ended_ns = now_ns;
  if (!soon) return;
  /* What should be shared but was not, since threads slept, tells nothing. */
  if (!trying || shared == should_share(self)) {
    if (trying) count(self, shared, now_ns - began_ns);
    self->tried = (self->tried + 1) % PERIOD;
  }
  if (!should_share(self)) self->waited = 0;
}
