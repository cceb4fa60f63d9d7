#include <string.h>

#include "call.h"
#include "philox.h"

int rutc_routine_uniform(const rutc_call *call) {
  uint64_t seed = (uint64_t)rutc_call_integer(call, "seed", 0);
  double *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i += 2 * PHILOX_BLOCKS) {
    uint32_t words[4][PHILOX_BLOCKS];
    double units[2 * PHILOX_BLOCKS];
    rutc_philox(seed, (uint64_t)i / 2, call->draws, words);
    for (int j = 0; j < PHILOX_BLOCKS; j++) {
      units[2 * j] = rutc_unit(words[0][j], words[1][j]);
      units[2 * j + 1] = rutc_unit(words[2][j], words[3][j]);
    }
    int64_t left = count - i;
    int64_t made = left < 2 * PHILOX_BLOCKS ? left : 2 * PHILOX_BLOCKS;
    memcpy(out + i, units, (size_t)made * sizeof *out);
  }
  return RUTC_OK;
}
