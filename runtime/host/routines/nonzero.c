#include <string.h>

#include "call.h"

enum { RUTC_FLAGS = 8 };

/* Where the true ones of `count` flags are, in order, of which `room` are stored; returns their
 * number. No branch tells true from false, which nobody foresees: every flag stores its place, and
 * the next one stores over it unless it was true. Flags all of which are false are passed at once. */
static int64_t rutc_true_places(const uint8_t *flags, int64_t count, int64_t *places,
                                int64_t room) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += RUTC_FLAGS) {
    int64_t here = count - i < RUTC_FLAGS ? count - i : RUTC_FLAGS;
    uint64_t all = 0;
    memcpy(&all, flags + i, (size_t)here);
    if (all == 0) continue;
    if (here == RUTC_FLAGS && found + RUTC_FLAGS <= room) {
      for (int j = 0; j < RUTC_FLAGS; j++) {
        places[found] = i + j;
        found += flags[i + j] != 0;
      }
      continue;
    }
    for (int64_t j = i; j < i + here; j++) {
      if (!flags[j]) continue;
      if (found < room) places[found] = j;
      found++;
    }
  }
  return found;
}

/* Writes one column per true element: the coordinates, `count` apart. */
int rutc_routine_nonzero(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  int64_t *out = call->outs[0].data, room = call->outs[0].shape[1];
  int32_t last = x->ndim - 1;
  int64_t *places = last < 0 ? out : out + last * room;
  int64_t found = rutc_true_places(x->data, rutc_call_count(x), places, last < 0 ? 0 : room);
  if (found != room) {
    return rutc_call_fail(call, "%lld elements, not %lld", (long long)found, (long long)room);
  }
  /* Elements of one row differ in their last coordinates alone: others are divided. */
  for (int64_t f = 0, row = 0; last > 0 && f < found; f++) {
    int64_t place = places[f];
    if (f > 0 && place - row < x->shape[last]) {
      for (int32_t d = 0; d < last; d++) out[d * room + f] = out[d * room + f - 1];
    } else {
      int64_t rest = place / x->shape[last];
      row = rest * x->shape[last];
      for (int32_t d = last - 1; d >= 0; d--) {
        out[d * room + f] = rest % x->shape[d];
        rest /= x->shape[d];
      }
    }
    places[f] = place - row;
  }
  return RUTC_OK;
}
