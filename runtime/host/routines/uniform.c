#include <string.h>

#include "call.h"
#include "philox.h"

/* Numbers of 53 bits, of two words each. */
static void fill_long(uint64_t seed, uint64_t draws, double *out, int64_t count) {
  for (int64_t i = 0; i < count; i += 2 * PHILOX_BLOCKS) {
    uint32_t words[4][PHILOX_BLOCKS];
    double units[2 * PHILOX_BLOCKS];
    rutc_philox(seed, (uint64_t)i / 2, draws, words);
    for (int j = 0; j < PHILOX_BLOCKS; j++) {
      units[2 * j] = rutc_unit(words[0][j], words[1][j]);
      units[2 * j + 1] = rutc_unit(words[2][j], words[3][j]);
    }
    int64_t left = count - i;
    int64_t made = left < 2 * PHILOX_BLOCKS ? left : 2 * PHILOX_BLOCKS;
    memcpy(out + i, units, (size_t)made * sizeof *out);
  }
}

/* Numbers of 31 bits or fewer, of a word each: first a word of all blocks that are made at once. */
static void fill_short(uint64_t seed, uint64_t draws, int bits, double *out, int64_t count) {
  double unit = 1.0 / (double)(INT64_C(1) << bits);
  for (int64_t i = 0; i < count; i += 4 * PHILOX_BLOCKS) {
    uint32_t words[4][PHILOX_BLOCKS];
    double units[4 * PHILOX_BLOCKS];
    rutc_philox(seed, (uint64_t)i / 4, draws, words);
    for (int k = 0; k < 4; k++) {
      for (int j = 0; j < PHILOX_BLOCKS; j++) {
        units[k * PHILOX_BLOCKS + j] = (double)(int32_t)(words[k][j] >> (32 - bits)) * unit;
      }
    }
    int64_t left = count - i;
    int64_t made = left < 4 * PHILOX_BLOCKS ? left : 4 * PHILOX_BLOCKS;
    memcpy(out + i, units, (size_t)made * sizeof *out);
  }
}

int rutc_routine_uniform(const rutc_call *call) {
  uint64_t seed = (uint64_t)rutc_call_integer(call, "seed", 0);
  int64_t bits = rutc_call_integer(call, "bits", 53);
  double *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  if (bits < 32) {
    fill_short(seed, call->draws, (int)bits, out, count);
  } else {
    fill_long(seed, call->draws, out, count);
  }
  return RUTC_OK;
}
