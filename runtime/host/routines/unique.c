#include <string.h>

#include "call.h"
#include "keys.h"

typedef struct rows {
  const uint64_t *keys;
  int64_t width;
} rows;

static int compare(const rows *self, int64_t a, int64_t b) {
  const uint64_t *x = self->keys + a * self->width, *y = self->keys + b * self->width;
  for (int64_t i = 0; i < self->width; i++) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return 0;
}

/* A stable sort of row numbers; `other` has as much room. Returns which of the two is sorted. */
static int64_t *sort_rows(const rows *self, int64_t *items, int64_t *other, int64_t count) {
  for (int64_t width = 1; width < count; width *= 2) {
    for (int64_t low = 0; low < count; low += 2 * width) {
      int64_t middle = low + width < count ? low + width : count;
      int64_t high = low + 2 * width < count ? low + 2 * width : count;
      int64_t a = low, b = middle;
      for (int64_t i = low; i < high; i++) {
        int left = b >= high || (a < middle && compare(self, items[a], items[b]) <= 0);
        other[i] = left ? items[a++] : items[b++];
      }
    }
    int64_t *swap = items;
    items = other;
    other = swap;
  }
  return items;
}

int rutc_routine_unique(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  int64_t count = x->shape[0], size = rutc_call_count(x);
  int64_t width = count > 0 ? size / count : 0;
  int sorted = rutc_call_integer(call, "sorted", 1) != 0;
  int64_t *first = call->outs[0].data, *inverse = call->outs[1].data;
  int64_t *counts = call->outs[2].data, *number = call->outs[3].data;
  uint64_t *keys = rutc_call_scratch(call, (size + 3 * count) * (int64_t)sizeof *keys);
  if (keys == NULL) return RUTC_OUT_OF_MEMORY;
  int64_t *order = (int64_t *)(keys + size), *other = order + count, *rank = other + count;
  int32_t bytes = x->dtype.bits / 8;
  for (int64_t i = 0; i < size; i++) {
    keys[i] = rutc_key(x->dtype, (const char *)x->data + i * bytes);
  }
  for (int64_t i = 0; i < count; i++) order[i] = i;
  const rows all = {keys, width};
  order = sort_rows(&all, order, other, count);
  memset(counts, 0, (size_t)count * sizeof *counts);
  memset(first, 0, (size_t)count * sizeof *first);
  int64_t groups = 0;
  for (int64_t i = 0; i < count; i++) {
    if (i == 0 || compare(&all, order[i - 1], order[i]) != 0) first[groups++] = order[i];
    inverse[order[i]] = groups - 1;
  }
  if (!sorted) {
    /* The sort is stable, so the first of each group is its first occurrence. */
    int64_t next = 0;
    for (int64_t i = 0; i < count; i++) {
      if (first[inverse[i]] == i) rank[inverse[i]] = next++;
    }
    for (int64_t i = 0; i < count; i++) inverse[i] = rank[inverse[i]];
    for (int64_t i = count; i-- > 0;) first[inverse[i]] = i;
  }
  for (int64_t i = 0; i < count; i++) counts[inverse[i]]++;
  *number = groups;
  return RUTC_OK;
}
