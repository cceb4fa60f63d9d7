/* Items that are sorted and selected: an unsigned integer, with a key above and its place below.
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

/* Sorts by key, byte by byte from the last one on, but for bytes that all keys have in common;
 * `other` has as much room. Returns the one of the two that holds the result. */
static inline RUTC_ITEM *RUTC_OF(sort)(RUTC_ITEM *items, RUTC_ITEM *other, int64_t count) {
  if (count <= RUTC_OF(few)) {
    for (int64_t i = 1; i < count; i++) RUTC_OF(insert)(items, i, items[i]);
    return items;
  }
  RUTC_KEY ends[sizeof(RUTC_KEY)][256] = {{0}};
  for (int64_t i = 0; i < count; i++) {
    RUTC_KEY key = RUTC_OF(key)(items[i]);
#pragma GCC unroll 8
    for (size_t b = 0; b < sizeof key; b++) ends[b][key >> 8 * b & 255]++;
  }
  for (size_t b = 0; b < sizeof(RUTC_KEY); b++) {
    int shift = RUTC_OF(key_bits) + (int)(8 * b);
    RUTC_KEY *next = ends[b], begin = 0;
    if (next[items[0] >> shift & 255] == (RUTC_KEY)count) continue;
    for (int d = 0; d < 256; d++) {
      RUTC_KEY many = next[d];
      next[d] = begin;
      begin += many;
    }
    for (int64_t i = 0; i < count; i++) other[next[items[i] >> shift & 255]++] = items[i];
    RUTC_ITEM *swap = items;
    items = other;
    other = swap;
  }
  return items;
}

/* Leaves out items, but for the k least; a few more may stay, `most` at most. Those that stay keep
 * their order. Returns how many stay. None has a key above `last`, if some were left out, but all that later
 * belong to the k least have keys below it. */
static inline int64_t RUTC_OF(keep)(RUTC_ITEM *items, int64_t count, int64_t k, int64_t most,
                                    RUTC_KEY *last) {
  if (count <= most) return count;
  RUTC_KEY all = (RUTC_KEY) ~(RUTC_KEY)0, any = 0;
  for (int64_t i = 0; i < count; i++) {
    all &= RUTC_OF(key)(items[i]);
    any |= RUTC_OF(key)(items[i]);
  }
  int shift = RUTC_OF(key_bits);
  while (shift > 0 && !((all ^ any) >> (shift - 1) & 1)) shift--;
  /* All that are sure to stay are below `low`; of those from there on, 256 ranges are counted. */
  RUTC_KEY low = shift < RUTC_OF(key_bits) ? any >> shift << shift : 0;
  *last = any;
  while (count > most && shift > 0) {
    shift = shift > 8 ? shift - 8 : 0;
    int64_t counts[257] = {0};
    for (int64_t i = 0; i < count; i++) {
      RUTC_KEY key = RUTC_OF(key)(items[i]);
      counts[key < low ? 256 : (key - low) >> shift]++;
    }
    int64_t stay = counts[256];
    int range = 0;
    while ((stay += counts[range]) < k) range++;
    low += (RUTC_KEY)range << shift;
    *last = low + (((RUTC_KEY)1 << shift) - 1);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
      items[kept] = items[i];
      kept += RUTC_OF(key)(items[i]) <= *last;
    }
    count = kept;
  }
  if (count <= most) return count;
  /* The last of equal ones are too many. */
  int64_t less = 0, kept = 0;
  for (int64_t i = 0; i < count; i++) less += RUTC_OF(key)(items[i]) < *last;
  int64_t equal = k - less;
  for (int64_t i = 0; i < count; i++) {
    items[kept] = items[i];
    int below = RUTC_OF(key)(items[i]) < *last;
    kept += below || equal > 0;
    equal -= !below;
  }
  return kept;
}
