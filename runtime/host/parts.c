#define _GNU_SOURCE
#include "parts.h"

#include "clock.h"
#include "pause.h"

/* Others leave to a thread what it needs no longer for than they may need to read what it has near. */
enum { HALF = 32, SOON_NS = 20000 };

typedef struct job {
  rutc_work work;
  const void *arg;
} job;

void rutc_share_out(rutc_part *parts, int64_t turns, int64_t run, int64_t count, int64_t claims) {
  int64_t begin = 0;
  for (int64_t i = 0; i < count; i++) {
    rutc_part *part = &parts[i];
    part->begin = begin;
    part->size = run / count + (i < run % count);
    part->tasks = turns * part->size;
    part->claim = (part->tasks + claims - 1) / claims;
    part->claims = part->claim > 0 ? (part->tasks + part->claim - 1) / part->claim : 0;
    atomic_store_explicit(&part->taken, 0, memory_order_relaxed);
    begin += part->size;
  }
}

static int64_t taken_by_thread(uint64_t taken) { return (int64_t)(taken & UINT32_MAX); }

/* How many claims nobody has taken; less than 0 where some wanted more. */
static int64_t left(const rutc_part *part, uint64_t taken) {
  return part->claims - taken_by_thread(taken) - (int64_t)(taken >> HALF);
}

static uint64_t taken_of(rutc_part *part) {
  return atomic_load_explicit(&part->taken, memory_order_relaxed);
}

/* Does the first claims that are left for the part's own thread, as many as it wants, or the last one
 * for another; how many there were. */
static int64_t do_next(const job *self, rutc_part *part, int64_t wanted, int own) {
  uint64_t more = own ? (uint64_t)wanted : (uint64_t)wanted << HALF;
  uint64_t before = atomic_fetch_add_explicit(&part->taken, more, memory_order_relaxed);
  int64_t spare = left(part, before);
  if (spare <= 0) return 0;
  int64_t count = wanted < spare ? wanted : spare;
  int64_t claim = taken_by_thread(before) + (own ? 0 : spare - count);
  int64_t begin = claim * part->claim, end = begin + count * part->claim;
  self->work(self->arg, part, begin, end < part->tasks ? end : part->tasks);
  return count;
}

/* Does the claims of a thread's own part; the nanoseconds that one takes, 0 where there were none.
 *
 * Once it knows that, it takes as many at once as others would leave to it: to take one has to wait
 * until all that was written is in the cache, and that may come from far away. */
static int64_t do_own(const job *self, rutc_part *part) {
  int64_t start = rutc_now_ns(), done = 0, claim_ns = 0, wanted = 1;
  while (left(part, taken_of(part)) > 0) {
    int64_t count = do_next(self, part, wanted, 1);
    if (count == 0) break;
    done += count;
    claim_ns = (rutc_now_ns() - start) / done;
    wanted = claim_ns < SOON_NS ? SOON_NS / (claim_ns + 1) : 1;
  }
  return claim_ns;
}

/* Whether others had better take a claim of a part: it has not begun, or will take long. What its
 * thread should soon be done with is left to it for as long as that takes, if they `watch`. */
static int needs_others(rutc_part *part, int64_t claim_ns, int watch) {
  uint64_t taken = taken_of(part);
  int64_t needed_ns = left(part, taken) * claim_ns;
  if (left(part, taken) <= 0) return 0;
  if (taken_by_thread(taken) == 0 || needed_ns > SOON_NS) return 1;
  if (!watch) return 0;
  int64_t begin = rutc_now_ns();
  while (left(part, taken_of(part)) > 0) {
    if (rutc_now_ns() - begin >= needed_ns) return 1;
    rutc_pause();
  }
  return 0;
}

void rutc_take_parts(rutc_part *parts, int64_t count, int64_t index, rutc_work work,
                     const void *arg) {
  job self = {.work = work, .arg = arg};
  int64_t own = index < count, claim_ns = own ? do_own(&self, &parts[index]) : 0;
  for (int watch = 0; watch <= 1; watch++) {
    for (int64_t i = own; i < count; i++) {
      rutc_part *part = &parts[(index + i) % count];
      while (needs_others(part, claim_ns, watch) && do_next(&self, part, 1, 0)) {
      }
    }
  }
}
