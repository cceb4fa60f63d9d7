/* The order of elements as unsigned integers: equal elements have equal keys. */
#ifndef RUTC_KEYS_H
#define RUTC_KEYS_H

#include <stdint.h>

#include "rutc_dlpack.h"

/* Sign and magnitude of IEEE's formats: -0 equals 0, and any NaN is above all numbers. Without
 * choices and unsigned comparisons, which vectors of the oldest processors lack. */
static inline uint32_t rutc_float_key(uint32_t bits, uint32_t sign, int32_t infinity) {
  uint32_t magnitude = bits & (sign - 1);
  uint32_t negative = 0 - (uint32_t)((bits & sign) != 0);
  uint32_t nan = 0 - (uint32_t)((int32_t)magnitude > infinity);
  return ((UINT32_C(1) << 31) + ((magnitude ^ negative) - negative)) | nan;
}

static inline uint64_t rutc_double_key(uint64_t bits) {
  const uint64_t sign = UINT64_C(1) << 63;
  uint64_t magnitude = bits & (sign - 1);
  uint64_t negative = 0 - (bits >> 63);
  uint64_t nan = 0 - (uint64_t)((int64_t)magnitude > (int64_t)(UINT64_C(0x7FF) << 52));
  return (sign + ((magnitude ^ negative) - negative)) | nan;
}

/* Runs of fixed length are what compilers make vectors of. */
#define RUTC_ROWS_OF_KEYS(KEY, T, OF_X)                 \
  do {                                                  \
    const KEY flip = falling ? (KEY) ~(KEY)0 : 0;       \
    for (int64_t r = 0; r < rows; r++) {                \
      const T *elements = (const T *)from + r * step;   \
      KEY *row = keys + r * room;                       \
      int64_t at = 0;                                   \
      for (; at + 16 <= count; at += 16) {              \
        for (int i = 0; i < 16; i++) {                  \
          KEY x = (KEY)elements[at + i];                \
          row[at + i] = (OF_X) ^ flip;                  \
        }                                               \
      }                                                 \
      for (; at < count; at++) {                        \
        KEY x = (KEY)elements[at];                      \
        row[at] = (OF_X) ^ flip;                        \
      }                                                 \
    }                                                   \
  } while (0)

/* They have many loops, of which there is to be one copy; a routine may use one of them only. */
#define RUTC_ROWS_FUNCTION __attribute__((noinline, unused))

/* The keys of rows of `count` elements that lie side by side, `step` from row to row, of 32 bits at
 * most: rows of `room` keys, of which those of shorter elements differ in as many last bits as these
 * have. With `falling` in the opposite order. */
static RUTC_ROWS_FUNCTION void rutc_short_keys(DLDataType type, const void *restrict from, int64_t rows,
                                   int64_t step, int64_t count, int falling,
                                   uint32_t *restrict keys, int64_t room) {
  const uint32_t sign = UINT32_C(1) << 31;
  if (type.code == kDLFloat && type.bits == 32) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint32_t, rutc_float_key(x, sign, 0x7F800000));
  } else if (type.code == kDLFloat) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint16_t, rutc_float_key(x << 16, sign, 0x7C000000) >> 16);
  } else if (type.code == kDLBfloat) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint16_t, rutc_float_key(x << 16, sign, 0x7F800000) >> 16);
  } else if (type.code == kDLInt && type.bits == 32) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint32_t, x ^ sign);
  } else if (type.code == kDLInt && type.bits == 16) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint16_t, x ^ 0x8000);
  } else if (type.code == kDLInt) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint8_t, x ^ 0x80);
  } else if (type.bits == 32) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint32_t, x);
  } else if (type.bits == 16) {
    RUTC_ROWS_OF_KEYS(uint32_t, uint16_t, x);
  } else {
    RUTC_ROWS_OF_KEYS(uint32_t, uint8_t, x);
  }
}

/* The same of elements of 64 bits. */
static RUTC_ROWS_FUNCTION void rutc_long_keys(DLDataType type, const void *restrict from, int64_t rows,
                                  int64_t step, int64_t count, int falling,
                                  uint64_t *restrict keys, int64_t room) {
  const uint64_t sign = UINT64_C(1) << 63;
  if (type.code == kDLFloat) {
    RUTC_ROWS_OF_KEYS(uint64_t, uint64_t, rutc_double_key(x));
  } else if (type.code == kDLInt) {
    RUTC_ROWS_OF_KEYS(uint64_t, uint64_t, x ^ sign);
  } else {
    RUTC_ROWS_OF_KEYS(uint64_t, uint64_t, x);
  }
}

#endif
