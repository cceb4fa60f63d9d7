/* What is in boxes, as routines look at it. */
#ifndef RUTC_UNBOXED_H
#define RUTC_UNBOXED_H

#include <string.h>

#include "call.h"
#include "tensor.h"

/* What is in the box of a number; NULL, with the error set, where it holds nothing. */
static inline const DLTensor *rutc_unboxed(const rutc_call *call, int64_t number) {
  const rutc_box *box = rutc_box_at(call->boxes, number);
  if (box != NULL) return &box->tensor;
  rutc_call_fail(call, "a box holds nothing");
  return NULL;
}

static inline int64_t rutc_element_bytes(const DLTensor *tensor) { return tensor->dtype.bits / 8; }

static inline int rutc_same_type(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits;
}

static inline int rutc_same_shape(const DLTensor *a, const DLTensor *b) {
  return a->ndim == b->ndim &&
         (a->ndim == 0 || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0);
}

/* The error that an element is no tensor of this type and shape. */
static inline int rutc_wrong_element(const rutc_call *call, const DLTensor *given,
                                     const DLTensor *wanted) {
  char texts[2][160];
  rutc_tensor_describe(given, texts[0], sizeof texts[0]);
  rutc_tensor_describe(wanted, texts[1], sizeof texts[1]);
  return rutc_call_fail(call, "an element is %s, not %s", texts[0], texts[1]);
}

/* What the elements of a call are by its attribute `holds`. */
static inline rutc_holds rutc_call_holds(const rutc_call *call) {
  const char *holds = rutc_call_text(call, "holds");
  if (strcmp(holds, "strings") == 0) return RUTC_HOLDS_STRINGS;
  return strcmp(holds, "boxes") == 0 ? RUTC_HOLDS_BOXES : RUTC_HOLDS_NUMBERS;
}

/* What is in the box of a number, which must have elements of the type of `wanted`: numbers of
 * strings and of boxes are no integers. NULL, with the error set, where it has others. */
static inline const DLTensor *rutc_unboxed_as(const rutc_call *call, int64_t number,
                                              const DLTensor *wanted) {
  static const char *const names[] = {"numbers", "strings", "tensors"};
  const DLTensor *tensor = rutc_unboxed(call, number);
  if (tensor == NULL) return NULL;
  rutc_holds holds = rutc_box_at(call->boxes, number)->holds;
  if (holds != rutc_call_holds(call)) {
    rutc_call_fail(call, "an element holds %s, not %s", names[holds],
                   names[rutc_call_holds(call)]);
    return NULL;
  }
  if (rutc_same_type(tensor->dtype, wanted->dtype)) return tensor;
  rutc_wrong_element(call, tensor, wanted);
  return NULL;
}

/* A new box with what `holds` says, its elements not set; NULL, with the error set: no memory. */
static inline rutc_box *rutc_call_box(const rutc_call *call, DLDataType dtype, int32_t ndim,
                                      const int64_t *shape, int64_t *number) {
  rutc_box *box = rutc_box_new(call->boxes, dtype, ndim, shape, call->depth, number);
  if (box == NULL) {
    rutc_fail(call->error, RUTC_OUT_OF_MEMORY, "%s: no memory for an element", call->origin);
    return NULL;
  }
  box->holds = rutc_call_holds(call);
  return box;
}

static inline void rutc_copy_elements(const DLTensor *to, const DLTensor *from) {
  int64_t bytes = rutc_call_count(from) * rutc_element_bytes(from);
  if (bytes > 0) memcpy(to->data, from->data, (size_t)bytes);
}

#endif
