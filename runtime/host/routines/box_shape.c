#include "unboxed.h"

int rutc_routine_box_shape(const rutc_call *call) {
  const DLTensor *x = rutc_unboxed(call, *(const int64_t *)call->args[0].data);
  if (x == NULL) return RUTC_RUN_FAILED;
  int64_t rank = call->outs[0].shape[0];
  if (x->ndim != rank) {
    return rutc_call_fail(call, "the rank of an element is %d, not %lld", (int)x->ndim,
                          (long long)rank);
  }
  if (rank > 0) memcpy(call->outs[0].data, x->shape, (size_t)rank * sizeof *x->shape);
  return RUTC_OK;
}
