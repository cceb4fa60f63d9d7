/* How floating-point numbers are computed during a run, whatever the caller has set: rounded to
 * nearest, without traps, and with subnormal numbers as zeros unless they are kept: their arithmetic
 * takes a hundred times as long on some processors. */
#ifndef RUTC_FLOAT_MODE_H
#define RUTC_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)

enum {
  RUTC_USUAL_MODE = 0x1F80, /* all exceptions masked */
  RUTC_FLUSH_BITS = 0x8040  /* flush to zero, and denormals are zeros */
};

static inline uint64_t rutc_float_mode(void) { return __builtin_ia32_stmxcsr(); }
static inline void rutc_set_float_mode(uint64_t mode) { __builtin_ia32_ldmxcsr((unsigned)mode); }

#elif defined(__aarch64__)

enum {
  RUTC_USUAL_MODE = 0,
  RUTC_FLUSH_BITS = 1 << 24 /* FPCR.FZ */
};

static inline uint64_t rutc_float_mode(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
static inline void rutc_set_float_mode(uint64_t mode) {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}

#else

enum { RUTC_USUAL_MODE = 0, RUTC_FLUSH_BITS = 0 };

static inline uint64_t rutc_float_mode(void) { return 0; }
static inline void rutc_set_float_mode(uint64_t mode) { (void)mode; }

#endif

/* Sets the mode of runs; returns the caller's, for rutc_set_float_mode afterwards. */
static inline uint64_t rutc_enter_float_mode(int keep_subnormals) {
  uint64_t before = rutc_float_mode();
  rutc_set_float_mode(RUTC_USUAL_MODE | (keep_subnormals ? 0 : RUTC_FLUSH_BITS));
  return before;
}

#endif
