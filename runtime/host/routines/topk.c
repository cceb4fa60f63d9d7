#include <string.h>

#include "call.h"
#include "keys.h"

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

int rutc_routine_topk(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  int64_t axis = rutc_call_integer(call, "axis", 0);
  int largest = rutc_call_integer(call, "largest", 1) != 0;
  int64_t n = x->shape[axis], k = call->outs[0].shape[axis];
  if (k > n) {
    return rutc_call_fail(call, "k = %lld of %lld elements along axis %lld", (long long)k,
                          (long long)n, (long long)axis);
  }
  int64_t outer = 1, inner = 1, bytes = x->dtype.bits / 8;
  for (int64_t i = 0; i < axis; i++) outer *= x->shape[i];
  for (int64_t i = axis + 1; i < x->ndim; i++) inner *= x->shape[i];
  if (outer * inner * k == 0) return RUTC_OK;
  rutc_keyed *items = rutc_call_scratch(call, 2 * n * (int64_t)sizeof *items);
  if (items == NULL) return RUTC_OUT_OF_MEMORY;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) {
      const char *row = (const char *)x->data + (o * n * inner + i) * bytes;
      for (int64_t j = 0; j < n; j++) {
        uint64_t key = rutc_key(x->dtype, row + j * inner * bytes);
        items[j] = (rutc_keyed){largest ? ~key : key, j};
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
        memcpy(values + j * inner * bytes, row + sorted[j].at * inner * bytes, (size_t)bytes);
        places[j * inner] = sorted[j].at;
      }
    }
  }
  return RUTC_OK;
}
