/* What the steps of a session take that was opened with options.profile.
 *
 * One thread is timed by its own processor time, in which the work of other processes is not;
 * several by the time that passes, for none of theirs alone tells when the last has ended.
 */
#ifndef RUTC_TIMING_H
#define RUTC_TIMING_H

#include "clock.h"
#include "session.h"

enum { CLOCK_SAMPLES = 100 };

static inline int64_t rutc_step_ns(const rutc_session *session) {
  return session->options.threads == 1 ? rutc_thread_ns() : rutc_now_ns();
}

/* Learns what of each step's time is its clock's: a system call takes as long as a small kernel. */
static inline void rutc_time_clock(rutc_session *session) {
  int64_t least = INT64_MAX;
  for (int i = 0; i < CLOCK_SAMPLES; i++) {
    int64_t start = rutc_step_ns(session), ns = rutc_step_ns(session) - start;
    if (ns < least) least = ns;
  }
  session->clock_ns = least;
}

/* Adds a call that began then, and what it took of `threads` threads that did others meanwhile. */
static inline void rutc_add_call(rutc_session *session, const rutc_step *step, int64_t start,
                                 int64_t threads) {
  rutc_timing *timing = &session->timings[step - session->program->steps];
  int64_t ns = rutc_step_ns(session) - start - session->clock_ns;
  if (ns > 0) atomic_fetch_add_explicit(&timing->ns, ns / threads, memory_order_relaxed);
  atomic_fetch_add_explicit(&timing->calls, 1, memory_order_relaxed);
}

#endif
