/* Which elements, or rows of elements, are equal. Included after items.h, for each kind of item. */

static int RUTC_OF(compare)(const RUTC_KEY *keys, int64_t width, int64_t a, int64_t b) {
  const RUTC_KEY *x = keys + a * width, *y = keys + b * width;
  for (int64_t i = 0; i < width; i++) {
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  }
  return 0;
}

/* A stable sort of the numbers of rows; `other` has as much room. Returns which of the two is
 * sorted. */
static int64_t *RUTC_OF(sort_rows)(const RUTC_KEY *keys, int64_t width, int64_t *order,
                                   int64_t *other, int64_t count) {
  for (int64_t i = 0; i < count; i++) order[i] = i;
  for (int64_t run = 1; run < count; run *= 2) {
    for (int64_t low = 0; low < count; low += 2 * run) {
      int64_t middle = low + run < count ? low + run : count;
      int64_t high = low + 2 * run < count ? low + 2 * run : count;
      int64_t a = low, b = middle;
      for (int64_t i = low; i < high; i++) {
        int left = b >= high ||
                   (a < middle && RUTC_OF(compare)(keys, width, order[a], order[b]) <= 0);
        other[i] = left ? order[a++] : order[b++];
      }
    }
    int64_t *swap = order;
    order = other;
    other = swap;
  }
  return order;
}

/* Numbers equal rows by their order: the number of each, and where each number comes first.
 * Returns how many numbers there are, -1 where there is no memory. */
static int64_t RUTC_OF(number)(const rutc_call *call, int64_t width, int64_t *first,
                               int64_t *inverse, int64_t *counts) {
  const DLTensor *x = &call->args[0];
  const int64_t count = x->shape[0], size = count * width;
  const int64_t each = 2 * (int64_t)(sizeof(RUTC_ITEM) + sizeof(int64_t));
  RUTC_ITEM *items =
      rutc_call_scratch(call, count * each + size * (int64_t)sizeof(RUTC_KEY));
  if (items == NULL) return -1;
  int64_t *order = (int64_t *)(items + 2 * count);
  RUTC_KEY *keys = (RUTC_KEY *)(order + 2 * count);
  RUTC_OF(keys)(x->dtype, x->data, 1, 0, size, 0, keys, size);
  if (width == 1 && count <= UINT32_MAX) {
    for (int64_t i = 0; i < count; i++) items[i] = RUTC_OF(item)(keys[i], i);
    const RUTC_ITEM *sorted = RUTC_OF(sort)(items, items + count, count);
    for (int64_t i = 0; i < count; i++) order[i] = RUTC_OF(place)(sorted[i]);
  } else {
    order = RUTC_OF(sort_rows)(keys, width, order, order + count, count);
  }
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) {
    if (i == 0 || RUTC_OF(compare)(keys, width, order[i - 1], order[i]) != 0) {
      counts[found] = i;
      first[found++] = order[i];
    }
    inverse[order[i]] = found - 1;
  }
  for (int64_t i = 0; i < found; i++) counts[i] = (i + 1 < found ? counts[i + 1] : count) - counts[i];
  return found;
}
