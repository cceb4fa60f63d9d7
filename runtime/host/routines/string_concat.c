#include <string.h>

#include "call.h"

int rutc_routine_string_concat(const rutc_call *call) {
  const int64_t *left = call->args[0].data, *right = call->args[1].data;
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  rutc_strings *strings = call->strings;
  for (int64_t i = 0; i < count; i++) {
    rutc_text a = strings->texts[left[i]], b = strings->texts[right[i]];
    char *joined = rutc_strings_room(strings, a.bytes + b.bytes);
    if (joined == NULL) return rutc_call_no_memory(call);
    if (a.bytes > 0) memcpy(joined, a.data, (size_t)a.bytes);
    if (b.bytes > 0) memcpy(joined + a.bytes, b.data, (size_t)b.bytes);
    out[i] = rutc_intern_kept(strings, joined, a.bytes + b.bytes);
    if (out[i] < 0) return rutc_call_no_memory(call);
  }
  return RUTC_OK;
}
