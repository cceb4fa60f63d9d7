/* Time that passes, and time that a thread is at work. */
#ifndef RUTC_CLOCK_H
#define RUTC_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t rutc_clock_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline int64_t rutc_now_ns(void) { return rutc_clock_ns(CLOCK_MONOTONIC); }

/* What takes its processor from a thread, for other threads or an interrupt, is not in it. */
static inline int64_t rutc_thread_ns(void) { return rutc_clock_ns(CLOCK_THREAD_CPUTIME_ID); }

#endif
