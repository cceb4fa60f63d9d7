#include <stdlib.h>

#include "tensor.h"
#include "unboxed.h"

enum { TEXT_BITS = 128, POINTER_BITS = 64 };

static int take(const rutc_call *call, const DLTensor *given, int64_t *number);

/* The elements of a tensor of strings or of pointers to tensors as numbers. */
static int take_each(const rutc_call *call, const void *elements, rutc_box *box) {
  int64_t *numbers = box->tensor.data, count = rutc_call_count(&box->tensor);
  for (int64_t i = 0; i < count; i++) {
    if (box->holds == RUTC_HOLDS_BOXES) {
      int status = take(call, ((const DLTensor *const *)elements)[i], &numbers[i]);
      if (status != RUTC_OK) return status;
      continue;
    }
    const rutc_text *text = (const rutc_text *)elements + i;
    if (text->bytes < 0 || (text->bytes > 0 && text->data == NULL)) {
      return rutc_call_fail(call, "string %lld of an element has no data", (long long)i);
    }
    numbers[i] = rutc_intern(call->strings, text->data, text->bytes);
    if (numbers[i] < 0) return rutc_call_no_memory(call);
  }
  return RUTC_OK;
}

/* Copies a tensor of the caller into a box. */
static int take(const rutc_call *call, const DLTensor *given, int64_t *number) {
  if (given == NULL || given->device.device_type != kDLCPU || given->ndim < 0 ||
      given->ndim > RUTC_MAX_NDIM || (given->ndim > 0 && given->shape == NULL) || given->dtype.bits % 8 != 0 ||
      given->dtype.bits == 0 || given->dtype.lanes != 1) {
    return rutc_call_fail(call, "an element is no tensor in CPU memory");
  }
  int64_t count = 1;
  for (int32_t i = 0; i < given->ndim; i++) {
    if (given->shape[i] < 0) return rutc_call_fail(call, "an element has a negative extent");
    count *= given->shape[i];
  }
  if (count > 0 && given->data == NULL) return rutc_call_fail(call, "an element has no data");
  int handles = given->dtype.code == kDLOpaqueHandle;
  if (handles && given->dtype.bits != TEXT_BITS && given->dtype.bits != POINTER_BITS) {
    return rutc_call_fail(call, "an element has handles of %d bits, which are no strings or tensors",
                          given->dtype.bits);
  }
  DLDataType dtype = handles ? (DLDataType){kDLInt, 64, 1} : given->dtype;
  rutc_box *box = rutc_call_box(call, dtype, given->ndim, given->shape, number);
  if (box == NULL) return RUTC_OUT_OF_MEMORY;
  if (!handles) {
    rutc_tensor_gather(box->tensor.data, given, given->dtype.bits / 8);
    return RUTC_OK;
  }
  if (given->dtype.bits == POINTER_BITS && given->ndim != 1) {
    return rutc_call_fail(call, "a sequence must have one axis");
  }
  box->holds = given->dtype.bits == TEXT_BITS ? RUTC_HOLDS_STRINGS : RUTC_HOLDS_BOXES;
  if (count == 0) return RUTC_OK;
  int32_t bytes = given->dtype.bits / 8;
  void *dense = malloc((size_t)(count * bytes));
  if (dense == NULL) return rutc_call_no_memory(call);
  rutc_tensor_gather(dense, given, bytes);
  int status = take_each(call, dense, box);
  free(dense);
  return status;
}

int rutc_routine_take(const rutc_call *call) {
  const DLTensor *const *given = call->args[0].data;
  int64_t *numbers = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i++) {
    int status = take(call, given[i], &numbers[i]);
    if (status != RUTC_OK) return status;
  }
  return RUTC_OK;
}
