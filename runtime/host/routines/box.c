#include "unboxed.h"

int rutc_routine_box(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  DLTensor as = *x; /* the shape that the elements get */
  if (call->arg_count > 1) {
    as.ndim = (int32_t)call->args[1].shape[0];
    as.shape = call->args[1].data;
  }
  int fits = call->arg_count == 1 || call->args[1].shape[0] <= RUTC_MAX_NDIM;
  for (int32_t i = 0; fits && i < as.ndim; i++) fits = as.shape[i] >= 0;
  if (!fits || rutc_call_count(&as) != rutc_call_count(x)) {
    return rutc_call_fail(call, "%lld elements do not have such a shape",
                          (long long)rutc_call_count(x));
  }
  rutc_box *box = rutc_call_box(call, x->dtype, as.ndim, as.shape, call->outs[0].data);
  if (box == NULL) return RUTC_OUT_OF_MEMORY;
  rutc_copy_elements(&box->tensor, x);
  return RUTC_OK;
}
