/* Items that are sorted: an unsigned integer, with a key above and its place below.
 *
 * Included once for keys of RUTC_KEY, with RUTC_ITEM, an unsigned integer of twice as many bits;
 * RUTC_OF(name) is the name of a function for them. Items are given in the order of their places,
 * so what keeps equal keys in their order needs to look at keys only.
 */

enum { RUTC_OF(key_bits) = 8 * sizeof(RUTC_KEY), RUTC_OF(few) = 24 };

static inline RUTC_ITEM RUTC_OF(item)(RUTC_KEY key, int64_t place) {
  return (RUTC_ITEM)key << RUTC_OF(key_bits) | (RUTC_KEY)place;
}

static inline RUTC_KEY RUTC_OF(key)(RUTC_ITEM item) {
  return (RUTC_KEY)(item >> RUTC_OF(key_bits));
}

static inline int64_t RUTC_OF(place)(RUTC_ITEM item) { return (int64_t)(RUTC_KEY)item; }

/* Puts an item in its place among `count` sorted ones. */
static inline void RUTC_OF(insert)(RUTC_ITEM *items, int64_t count, RUTC_ITEM item) {
  for (; count > 0 && items[count - 1] > item; count--) items[count] = items[count - 1];
  items[count] = item;
}

/* Sorts by key, byte by byte from the last one on, of what keys are above the least one: the first
 * bytes of that are often 0 in all. `other` has as much room. Returns the one of the two that holds
 * the result. */
static inline RUTC_ITEM *RUTC_OF(sort)(RUTC_ITEM *items, RUTC_ITEM *other, int64_t count) {
  if (count <= RUTC_OF(few)) {
    for (int64_t i = 1; i < count; i++) RUTC_OF(insert)(items, i, items[i]);
    return items;
  }
  const int64_t whole = count & -16; /* compilers make vectors of these */
  RUTC_ITEM least = items[0], most = items[0];
  for (int64_t i = 0; i < whole; i++) {
    least = items[i] < least ? items[i] : least;
    most = items[i] > most ? items[i] : most;
  }
  for (int64_t i = whole; i < count; i++) {
    least = items[i] < least ? items[i] : least;
    most = items[i] > most ? items[i] : most;
  }
  least = RUTC_OF(item)(RUTC_OF(key)(least), 0);
  const RUTC_KEY span = RUTC_OF(key)(most - least);
  int64_t counts[2][256];
  memset(counts[0], 0, sizeof counts[0]);
  for (int64_t i = 0; i < count; i++) counts[0][RUTC_OF(key)(items[i] - least) & 255]++;
  for (int b = 0; b < (int)sizeof(RUTC_KEY) && span >> 8 * b > 0; b++) {
    int64_t *next = counts[b & 1], *after = counts[(b + 1) & 1], begin = 0;
    const int shift = RUTC_OF(key_bits) + 8 * b;
    /* There is nothing after the last byte: what is counted then is not used. */
    const int shift_after = b + 1 < (int)sizeof(RUTC_KEY) ? shift + 8 : shift;
    const int equal = next[(items[0] - least) >> shift & 255] == count;
    memset(after, 0, sizeof counts[0]);
    if (equal) {
      for (int64_t i = 0; i < count; i++) after[(items[i] - least) >> shift_after & 255]++;
      continue;
    }
    for (int d = 0; d < 256; d++) {
      int64_t many = next[d];
      next[d] = begin;
      begin += many;
    }
    for (int64_t i = 0; i < count; i++) {
      const RUTC_ITEM item = items[i], above = item - least;
      after[above >> shift_after & 255]++;
      other[next[above >> shift & 255]++] = item;
    }
    RUTC_ITEM *swap = items;
    items = other;
    other = swap;
  }
  return items;
}
