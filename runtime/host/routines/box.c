#include "unboxed.h"

int rutc_routine_box(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  int32_t ndim = x->ndim;
  const int64_t *shape = x->shape;
  if (call->arg_count > 1) {
    ndim = (int32_t)call->args[1].shape[0];
    shape = call->args[1].data;
  }
  rutc_box *box = rutc_call_box(call, x->dtype, ndim, shape, call->outs[0].data);
  if (box == NULL) return RUTC_OUT_OF_MEMORY;
  rutc_copy_elements(&box->tensor, x);
  return RUTC_OK;
}
