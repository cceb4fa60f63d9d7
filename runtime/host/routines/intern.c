#include <stddef.h>

#include "call.h"

int rutc_routine_intern(const rutc_call *call) {
  const rutc_text *texts = call->args[0].data;
  int64_t *numbers = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i++) {
    if (texts[i].bytes < 0 || (texts[i].bytes > 0 && texts[i].data == NULL)) {
      return rutc_call_fail(call, "string %lld of the input has no data", (long long)i);
    }
    numbers[i] = rutc_intern(call->strings, texts[i].data, texts[i].bytes);
    if (numbers[i] < 0) return rutc_call_no_memory(call);
  }
  return RUTC_OK;
}
