#include "regex.h"

static int full_match(rutc_machine *m, rutc_text text) {
  int64_t at = 0, count = 0;
  int64_t after = rutc_utf8_next(text, &at);
  m->now++;
  rutc_follow(m, m->waiting, &count, 0, RUTC_NO_CHARACTER, after);
  while (after != RUTC_NO_CHARACTER && count > 0) {
    int64_t c = after;
    after = rutc_utf8_next(text, &at);
    count = rutc_step(m, count, c, after);
  }
  return after == RUTC_NO_CHARACTER && rutc_accepts(m, count);
}

int rutc_routine_regex_full_match(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  uint8_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  rutc_machine m = rutc_machine_of(call, rutc_call_count(&call->args[1]));
  if (m.waiting == NULL) return RUTC_OUT_OF_MEMORY;
  m.program = call->args[1].data;
  for (int64_t i = 0; i < count; i++) {
    out[i] = (uint8_t)full_match(&m, call->strings->texts[numbers[i]]);
  }
  return RUTC_OK;
}
