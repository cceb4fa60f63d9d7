/* The order of elements as unsigned integers, and a stable sort by it. */
#ifndef RUTC_KEYS_H
#define RUTC_KEYS_H

#include <stdint.h>
#include <string.h>

#include "rutc_dlpack.h"

typedef struct rutc_keyed {
  uint64_t key;
  int64_t at;
} rutc_keyed;

static inline uint64_t rutc_load_bits(const char *element, int32_t bytes) {
  switch (bytes) {
    case 1: return *(const uint8_t *)element;
    case 2: return *(const uint16_t *)(const void *)element;
    case 4: return *(const uint32_t *)(const void *)element;
    default: return *(const uint64_t *)(const void *)element;
  }
}

/* Sign and magnitude of IEEE's formats: -0 equals 0, and any NaN is above all numbers. */
static inline uint64_t rutc_float_key(uint64_t bits, uint64_t sign, uint64_t infinity) {
  const uint64_t zero = UINT64_C(1) << 63;
  uint64_t magnitude = bits & (sign - 1);
  if (magnitude > infinity) return UINT64_MAX;
  return bits & sign ? zero - magnitude : zero + magnitude;
}

/* A number in the order of the elements; equal elements have equal keys. */
static inline uint64_t rutc_key(DLDataType type, const char *element) {
  uint64_t bits = rutc_load_bits(element, type.bits / 8);
  uint64_t sign = UINT64_C(1) << (type.bits - 1);
  switch (type.code) {
    case kDLInt:
      return (bits ^ sign) - sign + (UINT64_C(1) << 63);
    case kDLFloat:
      return rutc_float_key(bits, sign,
                            type.bits == 16   ? 0x7C00
                            : type.bits == 32 ? 0x7F800000
                                              : UINT64_C(0x7FF) << 52);
    case kDLBfloat:
      return rutc_float_key(bits, sign, 0x7F80);
    default:
      return bits;
  }
}

/* Sorts by key, equal keys in the order in which they stand; `other` has as much room. Returns the
 * one of the two that holds the result. */
static inline rutc_keyed *rutc_sort(rutc_keyed *items, rutc_keyed *other, int64_t count) {
  for (int64_t width = 1; width < count; width *= 2) {
    for (int64_t low = 0; low < count; low += 2 * width) {
      int64_t middle = low + width < count ? low + width : count;
      int64_t high = low + 2 * width < count ? low + 2 * width : count;
      int64_t a = low, b = middle;
      if (middle == high || items[middle - 1].key <= items[middle].key) {
        memcpy(other + low, items + low, (size_t)(high - low) * sizeof *items);
        continue;
      }
      for (int64_t i = low; i < high; i++) {
        int left = b >= high || (a < middle && items[a].key <= items[b].key);
        other[i] = left ? items[a++] : items[b++];
      }
    }
    rutc_keyed *swap = items;
    items = other;
    other = swap;
  }
  return items;
}

#endif
