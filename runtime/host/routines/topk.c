#include <string.h>

#include "call.h"
#include "keys.h"
#include "short_keys.h"

enum {
  LANES = 16,  /* rows that are taken apart together where they lie across memory */
  SHORT = 16,  /* so many results are kept in order by insertion */
  RUN = 8,     /* items that a sort begins with */
  BLOCK = 16,  /* keys that are compared at once */
  ROUNDS = 64  /* after which what is left of a range is sorted */
};

/* -- items of 8 bytes: a short key above, the position below ----------------------------------- */

static void insert_sorted(uint64_t *items, int64_t count, uint64_t item) {
  for (; count > 0 && items[count - 1] > item; count--) items[count] = items[count - 1];
  items[count] = item;
}

static void merge(const uint64_t *a, int64_t m, const uint64_t *b, int64_t n, uint64_t *out) {
  const uint64_t *last_a = a + m, *last_b = b + n;
  while (a < last_a && b < last_b) {
    /* Which comes next cannot be predicted: no branch depends on it. */
    uint64_t x = *a, y = *b, second = y < x;
    *out++ = x ^ ((x ^ y) & (0 - second));
    a += 1 - second;
    b += second;
  }
  memcpy(out, a, (size_t)(last_a - a) * sizeof *a);
  memcpy(out + (last_a - a), b, (size_t)(last_b - b) * sizeof *b);
}

/* Sorts items; `other` has as much room. Returns the one of the two that holds the result. */
static uint64_t *sort(uint64_t *items, uint64_t *other, int64_t count) {
  for (int64_t low = 0; low < count; low += RUN) {
    int64_t run = low + RUN < count ? RUN : count - low;
    for (int64_t i = 1; i < run; i++) insert_sorted(items + low, i, items[low + i]);
  }
  for (int64_t width = RUN; width < count; width *= 2) {
    for (int64_t low = 0; low < count; low += 2 * width) {
      int64_t middle = low + width < count ? low + width : count;
      int64_t high = low + 2 * width < count ? low + 2 * width : count;
      merge(items + low, middle - low, items + middle, high - middle, other + low);
    }
    uint64_t *swap = items;
    items = other;
    other = swap;
  }
  return items;
}

static uint64_t median(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t low = a < b ? a : b, high = a < b ? b : a;
  return c < low ? low : c > high ? high : c;
}

/* Moves the k least items to the front and returns the last of them. No two items are equal, so
 * both parts of a range have one at least. */
static uint64_t part(uint64_t *items, uint64_t *other, int64_t count, int64_t k) {
  int64_t low = 0, high = count;
  for (int round = 0; round < ROUNDS && high - low > 2 * RUN; round++) {
    uint64_t pivot = median(items[low], items[low + (high - low) / 2], items[high - 1]);
    int64_t front = low, back = high - 1;
    for (int64_t i = low; i < high; i++) {
      /* One of the two places is written again. */
      uint64_t x = items[i], less = x < pivot;
      other[front] = other[back] = x;
      front += (int64_t)less;
      back -= (int64_t)(1 - less);
    }
    memcpy(items + low, other + low, (size_t)(high - low) * sizeof *items);
    if (k <= front) {
      high = front;
    } else {
      low = front;
    }
  }
  uint64_t *sorted = sort(items + low, other + low, high - low);
  if (sorted != items + low) memcpy(items + low, sorted, (size_t)(high - low) * sizeof *items);
  return items[k - 1];
}

static uint64_t item_of(const uint32_t *keys, int64_t at) {
  return (uint64_t)keys[at] << 32 | (uint64_t)at;
}

/* The first place from `at` on with a key below the limit; n if there is none. */
static int64_t next_below(const uint32_t *keys, int64_t at, int64_t n, uint32_t limit) {
  const int32_t sign = INT32_MIN;
  for (; at + BLOCK <= n; at += BLOCK) {
    /* Vectors compare signed numbers. */
    int32_t below = 0;
    for (int i = 0; i < BLOCK; i++) {
      below |= ((int32_t)keys[at + i] ^ sign) < ((int32_t)limit ^ sign) ? -1 : 0;
    }
    if (below) break;
  }
  while (at < n && keys[at] >= limit) at++;
  return at;
}

/* The k least items in order; they lie in `items` or in `other`, which have room for 2k. */
static uint64_t *select_least(const uint32_t *keys, int64_t n, int64_t k, uint64_t *items,
                              uint64_t *other) {
  for (int64_t i = 0; i < k; i++) items[i] = item_of(keys, i);
  if (k <= SHORT) {
    uint64_t *best = sort(items, other, k);
    uint32_t limit = (uint32_t)(best[k - 1] >> 32);
    for (int64_t i = k; (i = next_below(keys, i, n, limit)) < n; i++) {
      insert_sorted(best, k - 1, item_of(keys, i));
      limit = (uint32_t)(best[k - 1] >> 32);
    }
    return best;
  }
  /* What comes below the limit gathers behind the k, which are chosen anew when there are 2k. */
  uint32_t limit = UINT32_MAX;
  for (int64_t i = k; i < n;) {
    int64_t count = k;
    for (; count < 2 * k && (i = next_below(keys, i, n, limit)) < n; i++) {
      items[count++] = item_of(keys, i);
    }
    limit = (uint32_t)(part(items, other, count, k) >> 32);
  }
  return sort(items, other, k);
}

/* -- items of 16 bytes: any key ---------------------------------------------------------------- */

/* Whether `a` comes after `b` in the order of results. */
static int after(rutc_keyed a, rutc_keyed b) {
  return a.key > b.key || (a.key == b.key && a.at > b.at);
}

static void sift_down(rutc_keyed *heap, int64_t count, int64_t at) {
  for (;;) {
    int64_t child = 2 * at + 1;
    if (child >= count) return;
    if (child + 1 < count && after(heap[child + 1], heap[child])) child++;
    if (!after(heap[child], heap[at])) return;
    rutc_keyed swap = heap[at];
    heap[at] = heap[child];
    heap[child] = swap;
    at = child;
  }
}

/* The first k items in order, in front: a heap of the best k with the last of them on top. */
static void select_first(rutc_keyed *items, int64_t count, int64_t k) {
  for (int64_t i = k / 2; i-- > 0;) sift_down(items, k, i);
  for (int64_t i = k; i < count; i++) {
    if (items[i].key >= items[0].key) continue;
    items[0] = items[i];
    sift_down(items, k, 0);
  }
  for (int64_t left = k - 1; left > 0; left--) {
    rutc_keyed last = items[0];
    items[0] = items[left];
    items[left] = last;
    sift_down(items, left, 0);
  }
}

/* -- the routine ------------------------------------------------------------------------------- */

typedef struct shape {
  int64_t outer, n, k, inner; /* rows of n elements, `inner` apart */
  int largest;
} shape;

static void copy_element(char *to, const char *from, int64_t bytes) {
  switch (bytes) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 8); break;
  }
}

static int topk_short(const rutc_call *call, const shape *s) {
  const DLTensor *x = &call->args[0];
  int64_t n = s->n, k = s->k, inner = s->inner, bytes = x->dtype.bits / 8;
  int64_t most = inner < LANES ? inner : LANES;
  uint64_t *items = rutc_call_scratch(call, 4 * k * 8 + most * n * 4);
  if (items == NULL) return RUTC_OUT_OF_MEMORY;
  uint64_t *other = items + 2 * k;
  uint32_t *keys = (uint32_t *)(void *)(other + 2 * k);
  for (int64_t o = 0; o < s->outer; o++) {
    for (int64_t first = 0; first < inner; first += LANES) {
      int64_t lanes = inner - first < LANES ? inner - first : LANES;
      const char *rows = (const char *)x->data + (o * n * inner + first) * bytes;
      rutc_short_keys(x->dtype, rows, n, lanes, inner, s->largest, keys);
      for (int64_t i = 0; i < lanes; i++) {
        const uint64_t *best = select_least(keys + i * n, n, k, items, other);
        int64_t at = o * k * inner + first + i;
        char *values = (char *)call->outs[0].data + at * bytes;
        int64_t *places = (int64_t *)call->outs[1].data + at;
        for (int64_t j = 0; j < k; j++) {
          int64_t place = (int64_t)(uint32_t)best[j];
          copy_element(values + j * inner * bytes, rows + (place * inner + i) * bytes, bytes);
          places[j * inner] = place;
        }
      }
    }
  }
  return RUTC_OK;
}

static int topk_long(const rutc_call *call, const shape *s) {
  const DLTensor *x = &call->args[0];
  int64_t n = s->n, k = s->k, inner = s->inner, bytes = x->dtype.bits / 8;
  rutc_keyed *items = rutc_call_scratch(call, 2 * n * (int64_t)sizeof *items);
  if (items == NULL) return RUTC_OUT_OF_MEMORY;
  for (int64_t o = 0; o < s->outer; o++) {
    for (int64_t i = 0; i < inner; i++) {
      const char *row = (const char *)x->data + (o * n * inner + i) * bytes;
      for (int64_t j = 0; j < n; j++) {
        uint64_t key = rutc_key(x->dtype, row + j * inner * bytes);
        items[j] = (rutc_keyed){s->largest ? ~key : key, j};
      }
      rutc_keyed *sorted = items;
      if (k <= n / 8) {
        select_first(items, n, k);
      } else {
        sorted = rutc_sort(items, items + n, n);
      }
      char *values = (char *)call->outs[0].data + (o * k * inner + i) * bytes;
      int64_t *places = (int64_t *)call->outs[1].data + o * k * inner + i;
      for (int64_t j = 0; j < k; j++) {
        copy_element(values + j * inner * bytes, row + sorted[j].at * inner * bytes, bytes);
        places[j * inner] = sorted[j].at;
      }
    }
  }
  return RUTC_OK;
}

int rutc_routine_topk(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  int64_t axis = rutc_call_integer(call, "axis", 0);
  int64_t n = x->shape[axis], k = call->outs[0].shape[axis];
  if (k > n) {
    return rutc_call_fail(call, "k = %lld of %lld elements along axis %lld", (long long)k,
                          (long long)n, (long long)axis);
  }
  shape s = {1, n, k, 1, rutc_call_integer(call, "largest", 1) != 0};
  for (int64_t i = 0; i < axis; i++) s.outer *= x->shape[i];
  for (int64_t i = axis + 1; i < x->ndim; i++) s.inner *= x->shape[i];
  if (s.outer * s.inner * k == 0) return RUTC_OK;
  return x->dtype.bits <= 32 && n <= UINT32_MAX ? topk_short(call, &s) : topk_long(call, &s);
}
