#include <stdlib.h>

#include "unboxed.h"

static int give(const rutc_call *call, int64_t number, DLTensor **given);

/* Puts strings or pointers to tensors in the place of numbers. */
static int show(const rutc_call *call, rutc_box *box) {
  int64_t count = rutc_call_count(&box->tensor);
  const int64_t *numbers = box->tensor.data;
  int strings = box->holds == RUTC_HOLDS_STRINGS;
  size_t bytes = strings ? sizeof(rutc_text) : sizeof(DLTensor *);
  box->shown = calloc((size_t)count + 1, bytes);
  if (box->shown == NULL) return rutc_call_no_memory(call);
  for (int64_t i = 0; i < count; i++) {
    if (strings) {
      ((rutc_text *)box->shown)[i] = call->strings->texts[numbers[i]];
      continue;
    }
    int status = give(call, numbers[i], (DLTensor **)box->shown + i);
    if (status != RUTC_OK) return status;
  }
  return RUTC_OK;
}

static int give(const rutc_call *call, int64_t number, DLTensor **given) {
  if (rutc_unboxed(call, number) == NULL) return RUTC_RUN_FAILED;
  rutc_box *box = rutc_box_at(call->boxes, number);
  if (box->holds == RUTC_HOLDS_NUMBERS) {
    *given = &box->tensor;
    return RUTC_OK;
  }
  /* The box itself stays as it is for those that read it later. */
  if (box->shown == NULL) {
    int status = show(call, box);
    if (status != RUTC_OK) return status;
    box->view = box->tensor;
    box->view.data = box->shown;
    box->view.dtype = (DLDataType){kDLOpaqueHandle,
                                   box->holds == RUTC_HOLDS_STRINGS ? 128 : 64, 1};
  }
  *given = &box->view;
  return RUTC_OK;
}

int rutc_routine_give(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  DLTensor **given = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i++) {
    int status = give(call, numbers[i], &given[i]);
    if (status != RUTC_OK) return status;
  }
  return RUTC_OK;
}
