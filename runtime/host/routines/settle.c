#include "call.h"

int rutc_routine_settle(const rutc_call *call) {
  rutc_boxes_settle(call->boxes, call->depth);
  return RUTC_OK;
}
