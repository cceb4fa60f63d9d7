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

/* Boxes that are compared with another one together. */
enum { LANES = 16 };

typedef struct lanes {
  float low[2][LANES], high[2][LANES], area[LANES];
} lanes;

static void put(lanes *kept, int64_t at, const box *b) {
  lanes *to = &kept[at / LANES];
  for (int i = 0; i < 2; i++) {
    to->low[i][at % LANES] = b->low[i];
    to->high[i][at % LANES] = b->high[i];
  }
  to->area[at % LANES] = area(b);
}

/* Whether one of the first `count` boxes has an intersection with b that is more than `allowed` of
 * the union; it is 0 where a box is empty. Lanes have no branches, so that vectors do them. */
static int covered(const lanes *kept, int64_t count, const box *b, float allowed) {
  const float second = area(b);
  const int none = 0 > allowed;
  for (int64_t at = 0; at < count; at += LANES, kept++) {
    int32_t valid = count - at < LANES ? (int32_t)(count - at) : LANES, any = 0;
    for (int32_t i = 0; i < LANES; i++) {
      float sides[2];
      for (int j = 0; j < 2; j++) {
        float low = b->low[j] > kept->low[j][i] ? b->low[j] : kept->low[j][i];
        float high = b->high[j] < kept->high[j][i] ? b->high[j] : kept->high[j][i];
        sides[j] = high - low;
      }
      float inside = sides[0] * sides[1], first = kept->area[i];
      float all = first + second - inside;
      int more = inside / all > allowed;
      int meet = (sides[0] > 0) & (sides[1] > 0) & (inside > 0) & (first > 0) & (second > 0);
      meet &= all > 0;
      any |= (i < valid) & ((meet & more) | ((1 - meet) & none));
    }
    if (any) return 1;
  }
  return 0;
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
  const int64_t blocks = (count + LANES - 1) / LANES * (int64_t)sizeof(lanes);
  char *memory = rutc_call_scratch(
      call, blocks + count * (int64_t)(2 * sizeof(uint64_t) + sizeof(box)));
  if (memory == NULL) return RUTC_OUT_OF_MEMORY;
  lanes *kept = (lanes *)(void *)memory;
  uint64_t *items = (uint64_t *)(void *)(memory + blocks);
  box *places = (box *)(items + 2 * count);
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
        int64_t at = rutc_short_place(sorted[i]);
        if (covered(kept, taken, &places[at], allowed)) continue;
        put(kept, taken++, &places[at]);
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
