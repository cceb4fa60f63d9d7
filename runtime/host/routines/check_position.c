#include "call.h"

/* Hands on the length of an axis, unless the worst position, told as 2 * position + (it was
 * negative and counted from the end as -1 - position), lies beyond it. */
int rutc_routine_check_position(const rutc_call *call) {
  int64_t worst = *(const int64_t *)call->args[0].data;
  int64_t length = *(const int64_t *)call->args[1].data;
  int64_t far = worst >> 1;
  *(int64_t *)call->outs[0].data = length;
  if (worst < 0 || far < length) return RUTC_OK;
  int64_t position = worst & 1 ? -1 - (far - rutc_call_integer(call, "offset", 0)) : far;
  return rutc_call_fail(call, "the index %lld is out of range for %lld elements",
                        (long long)position, (long long)length);
}
