#include "call.h"
#include "philox.h"

int rutc_routine_uniform(const rutc_call *call) {
  uint64_t seed = (uint64_t)rutc_call_integer(call, "seed", 0);
  double *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i += 2) {
    uint32_t words[4];
    rutc_philox(seed, (uint64_t)i / 2, call->draws, words);
    out[i] = rutc_unit(words[0], words[1]);
    if (i + 1 < count) out[i + 1] = rutc_unit(words[2], words[3]);
  }
  return RUTC_OK;
}
