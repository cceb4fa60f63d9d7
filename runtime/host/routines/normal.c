#include <math.h>

#include "call.h"
#include "philox.h"

/* Box & Muller's transform of one block of words for every number. */
int rutc_routine_normal(const rutc_call *call) {
  uint64_t seed = (uint64_t)rutc_call_integer(call, "seed", 0);
  double *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i++) {
    uint32_t words[4];
    rutc_philox(seed, (uint64_t)i, call->draws, words);
    double radius = sqrt(-2.0 * log1p(-rutc_unit(words[0], words[1])));
    out[i] = radius * cos(2.0 * 3.14159265358979323846 * rutc_unit(words[2], words[3]));
  }
  return RUTC_OK;
}
