#include "unboxed.h"

/* An element is `outer` runs of bytes; those of all elements alternate in the result. */
int rutc_routine_joined(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  int64_t count = call->args[0].shape[0];
  const DLTensor *out = &call->outs[0];
  int64_t axis = rutc_call_integer(call, "axis", 0), outer = 1;
  for (int64_t i = 0; i < axis; i++) outer *= out->shape[i];
  int64_t whole = rutc_call_count(out) * rutc_element_bytes(out), at = 0;
  if (whole == 0) return RUTC_OK;
  for (int64_t k = 0; k < count; k++) {
    const DLTensor *x = rutc_unboxed(call, numbers[k]);
    if (x == NULL) return RUTC_RUN_FAILED;
    if (!rutc_same_type(x->dtype, out->dtype)) return rutc_wrong_element(call, x, out);
    int64_t run = rutc_call_count(x) * rutc_element_bytes(x) / outer;
    for (int64_t i = 0; i < outer && run > 0; i++) {
      memcpy((char *)out->data + i * (whole / outer) + at, (const char *)x->data + i * run,
             (size_t)run);
    }
    at += run;
  }
  return RUTC_OK;
}
