#include "unboxed.h"

/* Whether the extents are those of parts that make up `whole`. */
static int make_up(const int64_t *extents, int64_t count, int64_t whole) {
  int64_t left = whole;
  for (int64_t k = 0; k < count; k++) {
    if (extents[k] < 0 || extents[k] > left) return 0;
    left -= extents[k];
  }
  return left == 0;
}

int rutc_routine_cut(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  const int64_t *extents = call->args[1].data;
  int64_t count = call->args[1].shape[0], axis = rutc_call_integer(call, "axis", 0);
  if (!make_up(extents, count, x->shape[axis])) {
    return rutc_call_fail(call, "the parts do not make up %lld", (long long)x->shape[axis]);
  }
  int64_t outer = 1, inner = rutc_element_bytes(x), at = 0;
  int keepdims = rutc_call_integer(call, "keepdims", 1) != 0;
  int64_t shape[RUTC_MAX_NDIM];
  for (int64_t i = 0; i < axis; i++) outer *= x->shape[i];
  for (int64_t i = axis + 1; i < x->ndim; i++) inner *= x->shape[i];
  for (int64_t k = 0; k < count; k++) {
    int32_t ndim = 0;
    for (int32_t i = 0; i < x->ndim; i++) {
      if (i != axis || keepdims) shape[ndim++] = i == axis ? extents[k] : x->shape[i];
    }
    int64_t *number = (int64_t *)call->outs[0].data + k;
    rutc_box *box = rutc_call_box(call, x->dtype, ndim, shape, number);
    if (box == NULL) return RUTC_OUT_OF_MEMORY;
    int64_t run = extents[k] * inner;
    for (int64_t i = 0; i < outer && run > 0; i++) {
      memcpy((char *)box->tensor.data + i * run,
             (const char *)x->data + i * x->shape[axis] * inner + at, (size_t)run);
    }
    at += run;
  }
  return RUTC_OK;
}
