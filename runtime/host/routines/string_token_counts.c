#include "tokens.h"

/* How many tokens each text has. */
int rutc_routine_string_token_counts(const rutc_call *call) {
  const int64_t *in = call->args[0].data;
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  rutc_tokens t = rutc_tokens_of(call);
  if (t.machine.waiting == NULL) return RUTC_OUT_OF_MEMORY;
  for (int64_t i = 0; i < count; i++) {
    t.found = 0;
    rutc_split_tokens(&t, call->strings->texts[in[i]]);
    out[i] = t.found;
  }
  return RUTC_OK;
}
