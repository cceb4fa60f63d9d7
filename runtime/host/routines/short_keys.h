/* The order of elements of at most 32 bits as unsigned integers of 32 bits. */
#ifndef RUTC_SHORT_KEYS_H
#define RUTC_SHORT_KEYS_H

#include <stdint.h>

#include "rutc_dlpack.h"

/* Sign and magnitude of IEEE's formats: -0 equals 0, and any NaN is above all numbers. Without
 * choices and unsigned comparisons, which vectors of the oldest processors lack. */
static inline uint32_t rutc_short_float(uint32_t bits, uint32_t sign, int32_t infinity) {
  uint32_t magnitude = bits & (sign - 1);
  uint32_t negative = 0 - (uint32_t)((bits & sign) != 0);
  uint32_t nan = 0 - (uint32_t)((int32_t)magnitude > infinity);
  return ((UINT32_C(1) << 31) + ((magnitude ^ negative) - negative)) | nan;
}

/* `lanes` rows of n elements, of which neighbours lie `apart` and the rows side by side: keys in
 * the order of the elements, equal for equal ones, row by row. With `falling` in the opposite one.
 * Runs of fixed length are what compilers make vectors of.
 */
static inline void rutc_short_keys(DLDataType type, const void *rows, int64_t n, int64_t lanes,
                                   int64_t apart, int falling, uint32_t *keys) {
  const uint32_t flip = falling ? UINT32_MAX : 0;
  const int64_t whole = apart == 1 ? n - n % 16 : 0;
#define RUTC_KEYS(T, KEY)                             \
  for (int64_t j = 0; j < whole; j += 16) {           \
    for (int64_t i = 0; i < 16; i++) {                \
      uint32_t x = (uint32_t)((const T *)rows)[j + i]; \
      keys[j + i] = (KEY) ^ flip;                     \
    }                                                 \
  }                                                   \
  for (int64_t j = whole; j < n; j++) {               \
    const T *from = (const T *)rows + j * apart;      \
    for (int64_t i = 0; i < lanes; i++) {             \
      uint32_t x = (uint32_t)from[i];                 \
      keys[i * n + j] = (KEY) ^ flip;                 \
    }                                                 \
  }                                                   \
  return
  const uint32_t half = UINT32_C(1) << 31;
  switch (type.code) {
    case kDLFloat:
      if (type.bits == 32) {
        RUTC_KEYS(uint32_t, rutc_short_float(x, half, 0x7F800000));
      }
      RUTC_KEYS(uint16_t, rutc_short_float(x, 0x8000, 0x7C00));
    case kDLBfloat:
      RUTC_KEYS(uint16_t, rutc_short_float(x, 0x8000, 0x7F80));
    case kDLInt:
      if (type.bits == 32) {
        RUTC_KEYS(uint32_t, x ^ half);
      }
      if (type.bits == 16) {
        RUTC_KEYS(int16_t, x ^ half);
      }
      RUTC_KEYS(int8_t, x ^ half);
    default:
      if (type.bits == 32) {
        RUTC_KEYS(uint32_t, x);
      }
      if (type.bits == 16) {
        RUTC_KEYS(uint16_t, x);
      }
      RUTC_KEYS(uint8_t, x);
  }
#undef RUTC_KEYS
}

#endif
