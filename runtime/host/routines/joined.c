#include "unboxed.h"

/* Whether an element has the extents of the result but along the axis, which it lacks if it is
 * `stacked`. */
static int fits(const DLTensor *x, const DLTensor *out, int64_t axis, int32_t stacked) {
  if (x->ndim != out->ndim - stacked) return 0;
  for (int32_t i = 0; i < out->ndim; i++) {
    int32_t from = stacked && i > axis ? i - 1 : i;
    if (i != axis && x->shape[from] != out->shape[i]) return 0;
  }
  return 1;
}

static int misfit(const rutc_call *call, const DLTensor *x, const DLTensor *out) {
  char texts[2][160];
  rutc_tensor_describe(x, texts[0], sizeof texts[0]);
  rutc_tensor_describe(out, texts[1], sizeof texts[1]);
  return rutc_call_fail(call, "an element is %s, which is no part of %s", texts[0], texts[1]);
}

/* An element is `outer` runs of bytes; those of all elements alternate in the result. */
int rutc_routine_joined(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  int64_t count = call->args[0].shape[0];
  const DLTensor *out = &call->outs[0];
  int64_t axis = rutc_call_integer(call, "axis", 0), outer = 1;
  int32_t stacked = rutc_call_integer(call, "new_axis", 0) != 0;
  for (int64_t i = 0; i < axis; i++) outer *= out->shape[i];
  int64_t whole = rutc_call_count(out) * rutc_element_bytes(out), at = 0;
  int64_t left = out->shape[axis];
  for (int64_t k = 0; k < count; k++) {
    const DLTensor *x = rutc_unboxed_as(call, numbers[k], out);
    if (x == NULL) return RUTC_RUN_FAILED;
    int64_t extent = fits(x, out, axis, stacked) ? (stacked ? 1 : x->shape[axis]) : -1;
    if (extent < 0 || extent > left) return misfit(call, x, out);
    left -= extent;
    if (whole == 0) continue;
    int64_t run = rutc_call_count(x) * rutc_element_bytes(x) / outer;
    for (int64_t i = 0; i < outer && run > 0; i++) {
      memcpy((char *)out->data + i * (whole / outer) + at, (const char *)x->data + i * run,
             (size_t)run);
    }
    at += run;
  }
  if (left == 0 || whole == 0) return RUTC_OK;
  return rutc_call_fail(call, "the elements do not make up %lld", (long long)out->shape[axis]);
}
