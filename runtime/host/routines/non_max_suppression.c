#include <string.h>

#include "call.h"
#include "kinds.h"

typedef struct box {
  float low[2], high[2];
} box;

static box corners(const float *b, int centered) {
  box r;
  for (int i = 0; i < 2; i++) {
    if (centered) {
      float half = b[3 - i] / 2;
      r.low[i] = b[1 - i] - half;
      r.high[i] = b[1 - i] + half;
    } else {
      r.low[i] = b[i] < b[i + 2] ? b[i] : b[i + 2];
      r.high[i] = b[i] < b[i + 2] ? b[i + 2] : b[i];
    }
  }
  return r;
}

static float area(const box *b) {
  return (b->high[0] - b->low[0]) * (b->high[1] - b->low[1]);
}

/* The intersection as a part of the union; 0 where a box is empty. */
static float overlap(const box *a, const box *b) {
  float sides[2];
  for (int i = 0; i < 2; i++) {
    float low = a->low[i] > b->low[i] ? a->low[i] : b->low[i];
    float high = a->high[i] < b->high[i] ? a->high[i] : b->high[i];
    sides[i] = high - low;
    if (!(sides[i] > 0)) return 0;
  }
  float inside = sides[0] * sides[1], first = area(a), second = area(b);
  float all = first + second - inside;
  if (!(inside > 0 && first > 0 && second > 0 && all > 0)) return 0;
  return inside / all;
}

int rutc_routine_non_max_suppression(const rutc_call *call) {
  const DLTensor *boxes = &call->args[0], *scores = &call->args[1];
  const int64_t most = *(const int64_t *)call->args[2].data;
  const float allowed = *(const float *)call->args[3].data;
  const float least = *(const float *)call->args[4].data;
  int filtered = rutc_call_integer(call, "filtered", 0) != 0;
  int centered = rutc_call_integer(call, "center_point_box", 0) != 0;
  int64_t batches = scores->shape[0], kinds = scores->shape[1], count = scores->shape[2];
  int64_t room = call->outs[0].shape[0], number = 0;
  int64_t *chosen = call->outs[0].data;
  if (count > UINT32_MAX) {
    return rutc_call_fail(call, "%lld boxes are too many", (long long)count);
  }
  char *memory = rutc_call_scratch(
      call, count * (int64_t)(2 * sizeof(uint64_t) + sizeof(box) + sizeof(int64_t)));
  if (memory == NULL) return RUTC_OUT_OF_MEMORY;
  uint64_t *items = (uint64_t *)(void *)memory;
  int64_t *kept = (int64_t *)(items + 2 * count);
  box *places = (box *)(kept + count);
  for (int64_t batch = 0; batch < batches; batch++) {
    const float *corner = (const float *)boxes->data + batch * count * 4;
    for (int64_t i = 0; i < count; i++) places[i] = corners(corner + 4 * i, centered);
    for (int64_t kind = 0; kind < kinds; kind++) {
      const float *score = (const float *)scores->data + (batch * kinds + kind) * count;
      int64_t candidates = 0, taken = 0;
      for (int64_t i = 0; i < count; i++) {
        if (filtered && !(score[i] > least)) continue;
        uint32_t bits;
        memcpy(&bits, &score[i], sizeof bits);
        uint32_t key = rutc_float_key(bits, UINT32_C(1) << 31, 0x7F800000);
        items[candidates++] = rutc_short_item(~key, i);
      }
      const uint64_t *sorted = rutc_short_sort(items, items + count, candidates);
      for (int64_t i = 0; i < candidates && taken < most; i++) {
        int64_t k = 0, at = rutc_short_place(sorted[i]);
        while (k < taken && !(overlap(&places[at], &places[kept[k]]) > allowed)) k++;
        if (k < taken) continue;
        kept[taken++] = at;
        if (number < room) {
          int64_t *row = chosen + 3 * number;
          row[0] = batch;
          row[1] = kind;
          row[2] = at;
        }
        number++;
      }
    }
  }
  if (number > room) {
    return rutc_call_fail(call, "%lld boxes, more than %lld", (long long)number, (long long)room);
  }
  memset(chosen + 3 * number, 0, (size_t)(3 * (room - number)) * sizeof *chosen);
  *(int64_t *)call->outs[1].data = number;
  return RUTC_OK;
}
