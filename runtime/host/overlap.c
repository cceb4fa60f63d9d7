#include "overlap.h"

#include "program.h"
#include "tensor.h"

enum { MOST_STEPS = 1 << 16 };

rutc_span rutc_tensor_span(const DLTensor *tensor, int32_t element_bytes) {
  rutc_span span = {rutc_tensor_data(tensor), element_bytes};
  for (int32_t i = 0; i < tensor->ndim; i++) {
    if (tensor->shape[i] == 0) return (rutc_span){span.begin, 0};
    if (tensor->strides == NULL) {
      span.bytes *= tensor->shape[i];
      continue;
    }
    int64_t reach = (tensor->shape[i] - 1) * tensor->strides[i] * element_bytes;
    span.bytes += reach < 0 ? -reach : reach;
    if (reach < 0) span.begin += reach;
  }
  return span;
}

int rutc_spans_overlap(rutc_span a, rutc_span b) {
  return a.bytes > 0 && b.bytes > 0 && (uintptr_t)a.begin < (uintptr_t)b.begin + (uint64_t)b.bytes &&
         (uintptr_t)b.begin < (uintptr_t)a.begin + (uint64_t)a.bytes;
}

/* A summand of the distance between two elements: stride * k for a k in [low, high]. */
typedef struct summand {
  int64_t stride; /* positive */
  int64_t low;
  int64_t high;
} summand;

/* Whether some distance lies in [least, most]. */
typedef struct distances {
  summand summands[2 * RUTC_MAX_NDIM]; /* of falling strides */
  int32_t count;
  int64_t least;
  int64_t most;
  int64_t low[2 * RUTC_MAX_NDIM + 1]; /* what the summands from one on make up, at the least */
  int64_t high[2 * RUTC_MAX_NDIM + 1];
  int64_t steps; /* of the search so far */
} distances;

static void add_summand(distances *d, int64_t stride, int64_t low, int64_t high) {
  summand added = stride < 0 ? (summand){-stride, -high, -low} : (summand){stride, low, high};
  if (stride == 0 || (low == 0 && high == 0)) return;
  int32_t place = 0;
  while (place < d->count && d->summands[place].stride > added.stride) place++;
  if (place < d->count && d->summands[place].stride == added.stride) {
    d->summands[place].low += added.low;
    d->summands[place].high += added.high;
    return;
  }
  for (int32_t i = d->count++; i > place; i--) d->summands[i] = d->summands[i - 1];
  d->summands[place] = added;
}

/* Adds the summands of a tensor, in whose direction distances are counted if `sign` is 1. */
static void add_tensor(distances *d, const DLTensor *tensor, int32_t element_bytes, int64_t sign) {
  int64_t dense = element_bytes;
  for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
    int64_t stride = tensor->strides == NULL ? dense : tensor->strides[i] * element_bytes;
    add_summand(d, sign * stride, 0, tensor->shape[i] - 1);
    dense *= tensor->shape[i];
  }
}

/* Whether the summands from `at` on lead from `sum` to a distance that is asked for. Only numbers
 * are tried that the other summands can make up for. */
static int can_reach(distances *d, int32_t at, int64_t sum) {
  if (d->steps++ == MOST_STEPS) return 1;
  if (at == d->count) return sum >= d->least && sum <= d->most;
  const summand *s = &d->summands[at];
  int64_t first = -rutc_floordiv(sum + d->high[at + 1] - d->least, s->stride);
  int64_t last = rutc_floordiv(d->most - sum - d->low[at + 1], s->stride);
  last = rutc_min(last, s->high);
  for (int64_t k = rutc_max(first, s->low); k <= last; k++) {
    if (can_reach(d, at + 1, sum + k * s->stride)) return 1;
  }
  return 0;
}

/* Whether the summands make up a distance that is asked for. */
static int is_reached(distances *d, int64_t begin) {
  for (int32_t i = d->count - 1; i >= 0; i--) {
    d->low[i] = d->low[i + 1] + d->summands[i].stride * d->summands[i].low;
    d->high[i] = d->high[i + 1] + d->summands[i].stride * d->summands[i].high;
  }
  return can_reach(d, 0, begin);
}

int rutc_tensors_overlap(const DLTensor *a, int32_t a_bytes, const DLTensor *b, int32_t b_bytes) {
  if (!rutc_spans_overlap(rutc_tensor_span(a, a_bytes), rutc_tensor_span(b, b_bytes))) return 0;
  distances d = {.count = 0, .least = 1 - b_bytes, .most = a_bytes - 1};
  add_tensor(&d, a, a_bytes, -1);
  add_tensor(&d, b, b_bytes, 1);
  return is_reached(&d, (int64_t)((uintptr_t)rutc_tensor_data(b) - (uintptr_t)rutc_tensor_data(a)));
}

int rutc_tensor_overlaps_itself(const DLTensor *tensor, int32_t element_bytes) {
  for (int32_t i = 0; i < tensor->ndim; i++) {
    if (tensor->strides == NULL || tensor->shape[i] == 0) return 0;
  }
  /* Two elements whose places differ along an axis, and along none before it. */
  for (int32_t axis = 0; axis < tensor->ndim; axis++) {
    if (tensor->shape[axis] == 1) continue;
    if (tensor->strides[axis] == 0) return 1;
    distances d = {.count = 0, .least = 1 - element_bytes, .most = element_bytes - 1};
    add_summand(&d, tensor->strides[axis] * element_bytes, 1, tensor->shape[axis] - 1);
    for (int32_t i = axis + 1; i < tensor->ndim; i++) {
      int64_t most = tensor->shape[i] - 1;
      add_summand(&d, tensor->strides[i] * element_bytes, -most, most);
    }
    if (is_reached(&d, 0)) return 1;
  }
  return 0;
}
