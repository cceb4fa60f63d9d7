#include "pieces.h"

/* How many pieces each text has. */
int rutc_routine_string_pieces(const rutc_call *call) {
  const int64_t *in = call->args[0].data;
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i++) {
    rutc_pieces pieces = rutc_pieces_of(call, call->strings->texts[in[i]]);
    rutc_text piece;
    for (out[i] = 0; rutc_next_piece(&pieces, &piece);) out[i]++;
  }
  return RUTC_OK;
}
