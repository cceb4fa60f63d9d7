#include "tokens.h"

/* The tokens of each text in a row, and then empty texts. */
int rutc_routine_string_tokens(const rutc_call *call) {
  const int64_t *in = call->args[0].data;
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->args[0]);
  int64_t room = call->outs[0].shape[call->outs[0].ndim - 1];
  rutc_tokens t = rutc_tokens_of(call);
  if (t.machine.waiting == NULL) return RUTC_OUT_OF_MEMORY;
  t.room = room;
  for (int64_t i = 0; i < count; i++) {
    t.found = 0;
    t.out = out + i * room;
    /* A text may move while others are added; its number stays. */
    if (!rutc_split_tokens(&t, call->strings->texts[in[i]])) {
      return rutc_call_no_memory(call);
    }
    for (int64_t k = t.found; k < room; k++) t.out[k] = 0;
  }
  return RUTC_OK;
}
