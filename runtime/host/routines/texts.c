#include "call.h"

int rutc_routine_texts(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  rutc_text *texts = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i++) texts[i] = call->strings->texts[numbers[i]];
  return RUTC_OK;
}
