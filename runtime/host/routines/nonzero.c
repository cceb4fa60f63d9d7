#include "call.h"

/* Writes one column per true element: the coordinates, `count` apart. */
int rutc_routine_nonzero(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  const uint8_t *flags = x->data;
  int64_t *out = call->outs[0].data, room = call->outs[0].shape[1], found = 0;
  int64_t size = rutc_call_count(x);
  for (int64_t i = 0; i < size; i++) {
    if (!flags[i]) continue;
    if (found < room) {
      int64_t rest = i;
      for (int32_t d = x->ndim - 1; d >= 0; d--) {
        out[d * room + found] = rest % x->shape[d];
        rest /= x->shape[d];
      }
    }
    found++;
  }
  if (found == room) return RUTC_OK;
  return rutc_call_fail(call, "%lld elements, not %lld", (long long)found, (long long)room);
}
