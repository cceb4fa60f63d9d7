#include "unboxed.h"

int rutc_routine_unbox(const rutc_call *call) {
  const DLTensor *out = &call->outs[0];
  const DLTensor *x = rutc_unboxed_as(call, *(const int64_t *)call->args[0].data, out);
  if (x == NULL) return RUTC_RUN_FAILED;
  int fits = rutc_call_integer(call, "flat", 0) ? rutc_call_count(x) == rutc_call_count(out)
                                                : rutc_same_shape(x, out);
  if (!fits) return rutc_wrong_element(call, x, out);
  rutc_copy_elements(out, x);
  return RUTC_OK;
}
