/* Arithmetic of sizes: of symbols, and of all that is computed from them.
 *
 * In a program's tables a size of 0 or more stands for itself, and one below 0 for a place in the
 * session's table of sizes: -1 for place 0, -2 for place 1, and so on. Quotients are rounded toward
 * minus infinity, and divisors are positive. */
#ifndef RUTC_SIZES_H
#define RUTC_SIZES_H

#include <stdint.h>

static inline int64_t rutc_size(const int64_t *sizes, int64_t code) {
  return code >= 0 ? code : sizes[-1 - code];
}

static inline int64_t rutc_floordiv(int64_t a, int64_t b) {
  return b > 0 ? a / b - (a % b < 0) : 0;
}

static inline int64_t rutc_mod(int64_t a, int64_t b) { return a - b * rutc_floordiv(a, b); }

static inline int64_t rutc_min(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t rutc_max(int64_t a, int64_t b) { return a > b ? a : b; }

static inline double rutc_real_floordiv(double a, double b) { return b > 0 ? __builtin_floor(a / b) : 0; }

static inline double rutc_real_mod(double a, double b) { return a - b * rutc_real_floordiv(a, b); }

static inline double rutc_real_min(double a, double b) { return a < b ? a : b; }

static inline double rutc_real_max(double a, double b) { return a > b ? a : b; }

#endif
