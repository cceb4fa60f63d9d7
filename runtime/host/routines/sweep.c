#include "call.h"

int rutc_routine_sweep(const rutc_call *call) {
  for (int32_t k = 0; k < call->arg_count; k++) {
    const int64_t *numbers = call->args[k].data;
    int64_t count = rutc_call_count(&call->args[k]);
    for (int64_t i = 0; i < count; i++) rutc_box_reach(call->boxes, numbers[i]);
  }
  rutc_boxes_sweep(call->boxes, call->depth);
  return RUTC_OK;
}
