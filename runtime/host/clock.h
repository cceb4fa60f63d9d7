/* Monotonic time. */
#ifndef RUTC_CLOCK_H
#define RUTC_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t rutc_now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#endif
