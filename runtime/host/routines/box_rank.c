#include "unboxed.h"

int rutc_routine_box_rank(const rutc_call *call) {
  const DLTensor *x = rutc_unboxed(call, *(const int64_t *)call->args[0].data);
  if (x == NULL) return RUTC_RUN_FAILED;
  *(int64_t *)call->outs[0].data = x->ndim;
  return RUTC_OK;
}
