#include "unboxed.h"

/* Whether two elements can be joined along an axis; -1: along a new one. */
static int fit(const DLTensor *a, const DLTensor *b, int64_t axis) {
  if (a->ndim != b->ndim) return 0;
  for (int32_t i = 0; i < a->ndim; i++) {
    if (i != axis && a->shape[i] != b->shape[i]) return 0;
  }
  return 1;
}

int rutc_routine_joined_shape(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  int64_t count = call->args[0].shape[0], rank = call->outs[0].shape[0];
  int64_t *shape = call->outs[0].data;
  int64_t axis = rutc_call_integer(call, "axis", 0);
  int64_t stacked = rutc_call_integer(call, "new_axis", 0);
  if (count == 0) {
    for (int64_t i = 0; i < rank; i++) shape[i] = 0;
    return RUTC_OK;
  }
  const DLTensor *first = rutc_unboxed(call, numbers[0]);
  if (first == NULL) return RUTC_RUN_FAILED;
  if (first->ndim != rank - stacked) {
    return rutc_call_fail(call, "the rank of an element is %d, not %lld", (int)first->ndim,
                          (long long)(rank - stacked));
  }
  int64_t whole = 0;
  for (int64_t k = 0; k < count; k++) {
    const DLTensor *x = rutc_unboxed(call, numbers[k]);
    if (x == NULL) return RUTC_RUN_FAILED;
    if (!fit(first, x, stacked ? -1 : axis)) {
      return rutc_call_fail(call, "elements 0 and %lld differ in shape and cannot be joined",
                            (long long)k);
    }
    whole += stacked ? 1 : x->shape[axis];
  }
  for (int64_t i = 0, from = 0; i < rank; i++) {
    if (i == axis) {
      shape[i] = whole;
      from += !stacked;
    } else {
      shape[i] = first->shape[from++];
    }
  }
  return RUTC_OK;
}
