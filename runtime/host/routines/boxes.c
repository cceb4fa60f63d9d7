#include "call.h"

int rutc_routine_boxes(const rutc_call *call) {
  int64_t *numbers = call->outs[0].data;
  for (int32_t i = 0; i < call->arg_count; i++) numbers[i] = *(const int64_t *)call->args[i].data;
  return RUTC_OK;
}
