#include "pieces.h"

/* The pieces of each text in a row, and then empty texts. */
int rutc_routine_string_split(const rutc_call *call) {
  const int64_t *in = call->args[0].data;
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->args[0]);
  int64_t room = call->outs[0].shape[call->outs[0].ndim - 1];
  for (int64_t i = 0; i < count; i++) {
    rutc_pieces pieces = rutc_pieces_of(call, call->strings->texts[in[i]]);
    rutc_text piece;
    int64_t found = 0;
    for (; rutc_next_piece(&pieces, &piece); found++) {
      if (found == room) return rutc_call_fail(call, "more than %lld pieces", (long long)room);
      out[i * room + found] = rutc_intern(call->strings, piece.data, piece.bytes);
      if (out[i * room + found] < 0) return rutc_call_no_memory(call);
    }
    for (; found < room; found++) out[i * room + found] = 0;
  }
  return RUTC_OK;
}
