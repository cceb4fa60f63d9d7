/* The first k of rows. Included after items.h, once for each kind of item. */

/* What is selected of a row so far. Where k is small, the first k in order, as items, while few are
 * better than those before them; else some more than k, in the order of their places. */
typedef struct RUTC_OF(selection) {
  int64_t k, room, count;
  int64_t turns;          /* how many more are put in order one by one; 0 if none are in order */
  RUTC_KEY *keys, *places; /* `room` of each */
  RUTC_ITEM *items, *other; /* those in order; `room` as well, for the last sort */
  RUTC_KEY limit;         /* once there are k: what comes next has to be below it */
} RUTC_OF(selection);

static void RUTC_OF(begin)(RUTC_OF(selection) *s) {
  s->count = 0;
  s->turns = s->k <= RUTC_OF(few) ? CHUNK : 0;
  s->limit = (RUTC_KEY) ~(RUTC_KEY)0;
}

/* The first place from `at` on with a key below the limit; n if there is none. */
static int64_t RUTC_OF(next_below)(const RUTC_KEY *keys, int64_t at, int64_t n, RUTC_KEY limit) {
  for (; at + LANES <= n; at += LANES) {
    RUTC_KEY below = 0;
    for (int i = 0; i < LANES; i++) below |= keys[at + i] < limit;
    if (below) break;
  }
  while (at < n && keys[at] >= limit) at++;
  return at;
}

/* How many keys are at most `last`. */
static int64_t RUTC_OF(at_most)(const RUTC_KEY *keys, int64_t count, RUTC_KEY last) {
  const int64_t whole = count & -LANES; /* compilers make vectors of these */
  RUTC_KEY found = 0;
  for (int64_t i = 0; i < whole; i++) found += keys[i] <= last;
  for (int64_t i = whole; i < count; i++) found += keys[i] <= last;
  return (int64_t)found;
}

/* Leaves out all but the k least; a few more may stay, `most` at most. Those that stay keep their
 * order. None has a key above the limit then, if some were left out, but all that later belong to
 * the k least have keys below it. */
static void RUTC_OF(keep)(RUTC_OF(selection) *s, int64_t most) {
  const int64_t count = s->count, k = s->k;
  RUTC_KEY *keys = s->keys, *places = s->places;
  if (count <= most) return;
  const int64_t whole = count & -LANES;
  RUTC_KEY all = keys[0], any = keys[0];
  for (int64_t i = 0; i < whole; i++) all &= keys[i], any |= keys[i];
  for (int64_t i = whole; i < count; i++) all &= keys[i], any |= keys[i];
  /* The k least are at most `last`, whose bits that differ are found from the first one on: to
   * count keys takes vectors less than to count ranges of them one by one. */
  RUTC_KEY last = any;
  int64_t stay = count;
  for (RUTC_KEY bit = (RUTC_KEY)1 << (RUTC_OF(key_bits) - 1); bit > 0 && stay > most; bit >>= 1) {
    if (!((all ^ any) & bit)) continue;
    /* Bits after this one are all set in `last`. */
    const int64_t found = RUTC_OF(at_most)(keys, count, last - bit);
    if (found < k) continue;
    last -= bit;
    stay = found;
  }
  s->limit = last;
  int64_t kept = 0;
  if (stay <= most) {
    for (int64_t i = 0; i < count; i++) {
      const RUTC_KEY key = keys[i];
      keys[kept] = key;
      places[kept] = places[i];
      kept += key <= last;
    }
  } else {
    /* The last of equal ones are too many. */
    int64_t equal = k - (last > 0 ? RUTC_OF(at_most)(keys, count, last - 1) : 0);
    for (int64_t i = 0; i < count; i++) {
      const RUTC_KEY key = keys[i];
      keys[kept] = key;
      places[kept] = places[i];
      kept += key < last || (key == last && equal > 0);
      equal -= key == last;
    }
  }
  s->count = kept;
}

/* Takes the next keys of a row, CHUNK at most. */
static void RUTC_OF(take)(RUTC_OF(selection) *s, const RUTC_KEY *keys, int64_t first, int64_t n) {
  int64_t at = 0;
  if (s->turns > 0) {
    for (; at < n && s->count < s->k; at++) {
      RUTC_OF(insert)(s->items, s->count++, RUTC_OF(item)(keys[at], first + at));
    }
    if (s->count < s->k) return;
    s->limit = RUTC_OF(key)(s->items[s->k - 1]);
    for (; s->turns > 0; at++, s->turns--) {
      if ((at = RUTC_OF(next_below)(keys, at, n, s->limit)) == n) return;
      RUTC_OF(insert)(s->items, s->k - 1, RUTC_OF(item)(keys[at], first + at));
      s->limit = RUTC_OF(key)(s->items[s->k - 1]);
    }
    for (int64_t i = 0; i < s->k; i++) {
      s->keys[i] = RUTC_OF(key)(s->items[i]);
      s->places[i] = (RUTC_KEY)RUTC_OF(place)(s->items[i]);
    }
  }
  for (; at < n && s->count < s->k; at++) {
    s->keys[s->count] = keys[at];
    s->places[s->count++] = (RUTC_KEY)(first + at);
  }
  while ((at = RUTC_OF(next_below)(keys, at, n, s->limit)) < n) {
    /* Whether one of a few is below the limit cannot be predicted: no branch depends on it. */
    int64_t end = at + LANES < n ? at + LANES : n, count = s->count;
    for (; at < end; at++) {
      s->keys[count] = keys[at];
      s->places[count] = (RUTC_KEY)(first + at);
      count += keys[at] < s->limit;
    }
    s->count = count;
  }
  if (s->count + CHUNK > s->room) RUTC_OF(keep)(s, s->k + s->k / 4);
}

/* The places of the first k in order. */
static void RUTC_OF(finish)(RUTC_OF(selection) *s, RUTC_KEY *places) {
  const RUTC_ITEM *sorted = s->items;
  if (s->turns == 0) {
    /* To sort a few more takes less than to leave them out. */
    RUTC_OF(keep)(s, s->k + s->k / 4);
    for (int64_t i = 0; i < s->count; i++) {
      s->items[i] = RUTC_OF(item)(s->keys[i], (int64_t)s->places[i]);
    }
    sorted = RUTC_OF(sort)(s->items, s->other, s->count);
  }
  for (int64_t i = 0; i < s->k; i++) places[i] = (RUTC_KEY)RUTC_OF(place)(sorted[i]);
}

/* The keys and places of the first k of LANES rows that lie side by side, {k, LANES}; the keys of a
 * row are `room` apart. Each goes where it belongs in its row, which takes k steps of vectors and no
 * branch for each row. */
static void RUTC_OF(abreast)(const RUTC_KEY *restrict keys, int64_t room, int64_t n,
                             int64_t k, RUTC_KEY *restrict best, RUTC_KEY *restrict places) {
  for (int64_t j = 0; j < n; j++) {
    const RUTC_KEY *x = keys + j * room;
    int64_t last = (j < k ? j : k - 1) * LANES;
    if (j < k) {
      for (int i = 0; i < LANES; i++) best[last + i] = (RUTC_KEY) ~(RUTC_KEY)0;
      for (int i = 0; i < LANES; i++) places[last + i] = (RUTC_KEY)j;
    } else {
      RUTC_KEY any = 0;
      for (int i = 0; i < LANES; i++) any |= x[i] < best[last + i];
      if (!any) continue;
    }
    for (int64_t at = last; at > 0; at -= LANES) {
      for (int i = 0; i < LANES; i++) {
        RUTC_KEY before = best[at - LANES + i], place = places[at - LANES + i];
        RUTC_KEY other = x[i] < best[at + i] ? (RUTC_KEY)j : places[at + i];
        RUTC_KEY larger = x[i] < before ? before : x[i];
        places[at + i] = x[i] < before ? place : other;
        best[at + i] = larger < best[at + i] ? larger : best[at + i];
      }
    }
    for (int i = 0; i < LANES; i++) {
      places[i] = x[i] < best[i] ? (RUTC_KEY)j : places[i];
      best[i] = x[i] < best[i] ? x[i] : best[i];
    }
  }
}

/* A key of each of some rows: one register of the processor, since compilers take vectors of several
 * apart into single elements. Keys with the first bit changed, as numbers with a sign, have the same
 * order, which is compared in one operation everywhere. */
typedef RUTC_KEY RUTC_OF(lanes) __attribute__((vector_size(__BIGGEST_ALIGNMENT__)));
typedef RUTC_SIGNED RUTC_OF(signs) __attribute__((vector_size(__BIGGEST_ALIGNMENT__)));

enum { RUTC_OF(wide) = __BIGGEST_ALIGNMENT__ / sizeof(RUTC_KEY) };

/* Whether any lane of a mask is set. */
static inline int RUTC_OF(any)(RUTC_OF(lanes) mask) {
  uint64_t words[sizeof mask / sizeof(uint64_t)], any = 0;
  memcpy(words, &mask, sizeof mask);
  for (size_t i = 0; i < sizeof mask / sizeof(uint64_t); i++) any |= words[i];
  return any != 0;
}

static inline RUTC_OF(lanes) RUTC_OF(load)(const RUTC_KEY *from) {
  RUTC_OF(lanes) x;
  memcpy(&x, from, sizeof x);
  return x ^ ((RUTC_KEY)1 << (RUTC_OF(key_bits) - 1));
}

/* Which lanes of x come before those of y. */
static inline RUTC_OF(lanes) RUTC_OF(before)(RUTC_OF(lanes) x, RUTC_OF(lanes) y) {
  return (RUTC_OF(lanes))((RUTC_OF(signs))x < (RUTC_OF(signs))y);
}

/* The lanes of a where those of a mask are set, and of b elsewhere. */
static inline __attribute__((always_inline)) RUTC_OF(lanes) RUTC_OF(chosen)(
    RUTC_OF(lanes) mask, RUTC_OF(lanes) a, RUTC_OF(lanes) b) {
  RUTC_OF(lanes) r;
  for (int i = 0; i < RUTC_OF(wide); i++) r[i] = (RUTC_SIGNED)mask[i] < 0 ? a[i] : b[i];
  return r;
}

/* The lesser of each lane: one operation, which compilers make of a loop over a register. */
static inline __attribute__((always_inline)) RUTC_OF(lanes) RUTC_OF(lesser)(
    RUTC_OF(lanes) x, RUTC_OF(lanes) y) {
  RUTC_OF(lanes) r;
  for (int i = 0; i < RUTC_OF(wide); i++) {
    r[i] = (RUTC_SIGNED)x[i] < (RUTC_SIGNED)y[i] ? x[i] : y[i];
  }
  return r;
}

static inline __attribute__((always_inline)) RUTC_OF(lanes) RUTC_OF(larger)(
    RUTC_OF(lanes) x, RUTC_OF(lanes) y) {
  RUTC_OF(lanes) r;
  for (int i = 0; i < RUTC_OF(wide); i++) {
    r[i] = (RUTC_SIGNED)x[i] > (RUTC_SIGNED)y[i] ? x[i] : y[i];
  }
  return r;
}

/* Puts the key x of each row, from a place, where it belongs among the first k, which are a constant
 * for the compiler. It takes the place of the first result that it comes before, and all from there
 * on go on to the next one: each becomes the larger of the key and the one before, if that is less. */
static inline __attribute__((always_inline)) void RUTC_OF(put)(
    RUTC_OF(lanes) *best, RUTC_OF(lanes) *at, const int k, RUTC_OF(lanes) x,
    RUTC_OF(lanes) place) {
  RUTC_OF(lanes) below = RUTC_OF(before)(x, best[k - 1]);
#pragma GCC unroll 8
  for (int t = k - 1; t > 0; t--) {
    const RUTC_OF(lanes) before = RUTC_OF(before)(x, best[t - 1]);
    at[t] = RUTC_OF(chosen)(before, at[t - 1], RUTC_OF(chosen)(below, place, at[t]));
    best[t] = RUTC_OF(lesser)(best[t], RUTC_OF(larger)(best[t - 1], x));
    below = before;
  }
  at[0] = RUTC_OF(chosen)(below, place, at[0]);
  best[0] = RUTC_OF(lesser)(best[0], x);
}

/* The places of the first k of as many rows as a register has keys of; registers hold all of them: k
 * is a constant for the compiler. */
static inline __attribute__((always_inline)) void RUTC_OF(in_registers)(
    const RUTC_KEY *restrict keys, int64_t room, int64_t n, const int k,
    RUTC_KEY *restrict places) {
  const RUTC_OF(lanes) none = {0};
  RUTC_OF(lanes) best[REGISTERS], at[REGISTERS], below;
  /* The first k are the results so far, once they are in order. */
#pragma GCC unroll 8
  for (int t = 0; t < k; t++) {
    best[t] = none + (RUTC_KEY)((RUTC_KEY) ~(RUTC_KEY)0 >> 1);
    at[t] = none + (RUTC_KEY)t;
    RUTC_OF(put)(best, at, t + 1, RUTC_OF(load)(keys + t * room), at[t]);
  }
  for (int64_t j = k; j < n; j++) {
    /* Of the first keys one is often better than a row's last result: no branch tells which. */
    if (j >= SEEN * RUTC_OF(wide) * k) {
      for (; j + NEXT <= n; j += NEXT) {
        below = none;
        for (int i = 0; i < NEXT; i++) {
          below |= RUTC_OF(before)(RUTC_OF(load)(keys + (j + i) * room), best[k - 1]);
        }
        if (RUTC_OF(any)(below)) break;
      }
      while (j < n &&
             !RUTC_OF(any)(RUTC_OF(before)(RUTC_OF(load)(keys + j * room), best[k - 1]))) {
        j++;
      }
      if (j == n) break;
    }
    RUTC_OF(put)(best, at, k, RUTC_OF(load)(keys + j * room), none + (RUTC_KEY)j);
  }
  for (int t = 0; t < k; t++) memcpy(places + t * LANES, &at[t], sizeof at[t]);
}

/* The same of short rows, of which most keys come before a row's last result: keys whose last bits
 * give way to their places are put where they belong by the lesser and the larger of two alone. False
 * if some of the first k + 1 of a row differ in these last bits, or in none, so that places do not
 * tell which comes first. */
static inline __attribute__((always_inline)) int RUTC_OF(by_items)(
    const packing *p, const RUTC_KEY *restrict keys, int64_t room, int64_t n, const int k,
    RUTC_KEY *restrict places) {
  const RUTC_KEY sign = (RUTC_KEY)1 << (RUTC_OF(key_bits) - 1), low = ((RUTC_KEY)1 << p->bits) - 1;
  const RUTC_OF(lanes) none = {0};
  RUTC_OF(lanes) best[REGISTERS + 1], close = none, place = none + sign;
#pragma GCC unroll 9
  for (int t = 0; t <= k; t++) best[t] = none + (RUTC_KEY)(sign - 1);
  for (int64_t j = 0; j < n; j++) {
    RUTC_OF(lanes) x;
    memcpy(&x, keys + j * room, sizeof x);
    x = (x << p->shift & ~low) ^ place;
    place += 1;
#pragma GCC unroll 9
    for (int t = k; t > 0; t--) {
      best[t] = RUTC_OF(lesser)(best[t], RUTC_OF(larger)(best[t - 1], x));
    }
    best[0] = RUTC_OF(lesser)(best[0], x);
  }
#pragma GCC unroll 8
  for (int t = 0; t < k; t++) {
    const RUTC_OF(lanes) at = best[t] & low;
    close |= (RUTC_OF(lanes))((best[t] ^ best[t + 1]) <= low);
    memcpy(places + t * LANES, &at, sizeof at);
  }
  return p->shift >= p->bits || !RUTC_OF(any)(close);
}

/* The places of the first k of LANES rows that lie side by side, whose keys are `room` apart. */
static void RUTC_OF(first_of_rows)(packing *p, const RUTC_KEY *restrict keys, int64_t room,
                                   int64_t n, int64_t k, RUTC_KEY *restrict best,
                                   RUTC_KEY *restrict places) {
#define RUTC_CASE(K)                                                            \
  case K:                                                                       \
    for (int i = 0; i < LANES; i += RUTC_OF(wide)) {                            \
      if (n <= SEEN * RUTC_OF(wide) * K && p->told > 0) {                       \
        const int told = RUTC_OF(by_items)(p, keys + i, room, n, K, places + i); \
        p->told += told ? 1 : -1;                                               \
        if (told) continue;                                                     \
      }                                                                         \
      RUTC_OF(in_registers)(keys + i, room, n, K, places + i);                  \
    }                                                                           \
    return
  switch (k) {
    RUTC_CASE(1);
    RUTC_CASE(2);
    RUTC_CASE(3);
    RUTC_CASE(4);
    RUTC_CASE(5);
    RUTC_CASE(6);
    RUTC_CASE(7);
    RUTC_CASE(8);
    default: RUTC_OF(abreast)(keys, room, n, k, best, places);
  }
#undef RUTC_CASE
}

/* {rows, columns} -> {columns, rows} */
static void RUTC_OF(turn)(const RUTC_KEY *restrict keys, int64_t rows, int64_t columns,
                          RUTC_KEY *restrict turned) {
  for (int64_t j = 0; j < columns; j++) {
    const RUTC_KEY *from = keys + j;
    RUTC_KEY *to = turned + j * rows;
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4, from += 4 * columns) {
      to[i] = from[0];
      to[i + 1] = from[columns];
      to[i + 2] = from[2 * columns];
      to[i + 3] = from[3 * columns];
    }
    for (; i < rows; i++, from += columns) to[i] = *from;
  }
}

/* What RUTC_WRITE does, with the type of values of so many bytes. */
#define RUTC_WRITE_VALUES(BYTES)   \
  switch (BYTES) {                 \
    case 1: RUTC_WRITE(uint8_t);   \
    case 2: RUTC_WRITE(uint16_t);  \
    case 4: RUTC_WRITE(uint32_t);  \
    default: RUTC_WRITE(uint64_t); \
  }

#define RUTC_WRITE(T)                                                 \
  for (int64_t i = 0; i < g->rows; i++) {                             \
    const T *row = (const T *)(const void *)g->from[i];               \
    const RUTC_KEY *from = places + i * apart;                        \
    T *values = (T *)(void *)g->values[i];                            \
    int64_t *to = g->places[i];                                       \
    for (int64_t j = 0; j < k; j++, values += inner, to += inner) {   \
      *to = (int64_t)from[j * step];                                  \
      *values = row[*to * inner];                                     \
    }                                                                 \
  }                                                                   \
  return

/* Writes what was selected of some rows: item j of row i is at `places[j * step + i * apart]`. */
static void RUTC_OF(write)(const group *g, const RUTC_KEY *places, int64_t step, int64_t apart) {
  const int64_t k = g->s->k, inner = g->s->inner;
  RUTC_WRITE_VALUES(g->s->bytes)
}
#undef RUTC_WRITE

#define RUTC_WRITE(T)                                                                \
  for (int64_t j = 0; j < k; j++, from += LANES, to += inner) {                      \
    const T *rows = (const T *)(const void *)g->from[0];                             \
    T *values = (T *)(void *)g->values[0] + j * inner;                               \
    for (int i = 0; i < LANES; i++) to[i] = (int64_t)from[i];                        \
    for (int i = 0; i < LANES; i++) values[i] = rows[(int64_t)from[i] * inner + i];  \
  }                                                                                  \
  return

/* The same of LANES rows that lie side by side; the group has the first one. */
static void RUTC_OF(write_beside)(const group *g, const RUTC_KEY *restrict from) {
  const int64_t k = g->s->k, inner = g->s->inner;
  int64_t *restrict to = g->places[0];
  RUTC_WRITE_VALUES(g->s->bytes)
}
#undef RUTC_WRITE
#undef RUTC_WRITE_VALUES

/* Rows of neighbours, one after the other: keys are made in chunks. */
static void RUTC_OF(along)(const shape *s, RUTC_OF(selection) *one, RUTC_KEY *keys,
                           RUTC_KEY *places) {
  for (int64_t row = 0; row < s->outer; row++) {
    const group g = group_of(s, row, 1);
    RUTC_OF(begin)(one);
    for (int64_t j = 0; j < s->n; j += CHUNK) {
      int64_t count = s->n - j < CHUNK ? s->n - j : CHUNK;
      RUTC_OF(keys)(s->type, g.from[0] + j * s->bytes, 1, 0, count, s->largest, keys, 0);
      RUTC_OF(take)(one, keys, j, count);
    }
    RUTC_OF(finish)(one, places);
    RUTC_OF(write)(&g, places, 1, 0);
  }
}

/* Rows that lie across memory: the keys of some that are next to each other are turned. */
static void RUTC_OF(across)(const shape *s, RUTC_OF(selection) *one, RUTC_KEY *keys,
                            RUTC_KEY *turned, RUTC_KEY *places) {
  for (int64_t begin = 0; begin < s->outer * s->inner; begin += s->inner) {
    for (int64_t at = 0; at < s->inner; at += LANES) {
      int64_t rows = s->inner - at < LANES ? s->inner - at : LANES;
      const group g = group_of(s, begin + at, rows);
      RUTC_OF(keys)(s->type, g.from[0], s->n, s->inner, rows, s->largest, keys, rows);
      RUTC_OF(turn)(keys, s->n, rows, turned);
      for (int64_t i = 0; i < rows; i++) {
        RUTC_OF(begin)(one);
        for (int64_t j = 0; j < s->n; j += CHUNK) {
          int64_t count = s->n - j < CHUNK ? s->n - j : CHUNK;
          RUTC_OF(take)(one, turned + i * s->n + j, j, count);
        }
        RUTC_OF(finish)(one, places + i * s->k);
      }
      RUTC_OF(write)(&g, places, 1, s->k);
    }
  }
}

/* LANES rows that lie side by side at once, of `block` whose keys are made at once; the last ones do
 * some again. */
static void RUTC_OF(beside)(const shape *s, int64_t block, RUTC_KEY *keys, RUTC_KEY *best,
                            RUTC_KEY *places) {
  packing p = packing_of(s, RUTC_OF(key_bits));
  for (int64_t begin = 0; begin < s->outer * s->inner; begin += s->inner) {
    int64_t rows = block;
    for (int64_t at = 0; at < s->inner; at += rows) {
      const int64_t rest = s->inner - at, first = rest < LANES ? s->inner - LANES : at;
      rows = rest < LANES ? LANES : rest < block ? rest & -LANES : block;
      const group all = group_of(s, begin + first, 1);
      RUTC_OF(keys)(s->type, all.from[0], s->n, s->inner, rows, s->largest, keys, block);
      for (int64_t row = 0; row < rows; row += LANES) {
        const group g = group_of(s, begin + first + row, 1);
        RUTC_OF(first_of_rows)(&p, keys + row, block, s->n, s->k, best, places);
        RUTC_OF(write_beside)(&g, places);
      }
    }
  }
}

/* LANES short rows at once that do not lie side by side; the last of them do some again. */
static void RUTC_OF(together)(const shape *s, RUTC_KEY *keys, RUTC_KEY *turned,
                              RUTC_KEY *best, RUTC_KEY *places) {
  const int64_t all = s->outer * s->inner, n = s->n;
  packing p = packing_of(s, RUTC_OF(key_bits));
  for (int64_t at = 0; at < all; at += LANES) {
    const group g = group_of(s, all - at < LANES ? all - LANES : at, LANES);
    if (s->inner == 1) {
      RUTC_OF(keys)(s->type, g.from[0], 1, 0, LANES * n, s->largest, turned, 0);
      RUTC_OF(turn)(turned, LANES, n, keys);
    } else {
      for (int i = 0; i < LANES; i++) {
        RUTC_OF(keys)(s->type, g.from[i], n, s->inner, 1, s->largest, keys + i, LANES);
      }
    }
    RUTC_OF(first_of_rows)(&p, keys, LANES, n, s->k, best, places);
    RUTC_OF(write)(&g, places, LANES, 1);
  }
}

static int RUTC_OF(topk)(const rutc_call *call, const shape *s) {
  const int64_t k = s->k, room = 2 * (k + CHUNK), rows = s->outer * s->inner;
  const int64_t block = s->n * LANES < BLOCK ? BLOCK / s->n & -LANES : LANES;
  const int64_t keys = block * (s->n < CHUNK ? CHUNK : s->n), all = 2 * (keys + LANES * k);
  RUTC_ITEM *items = rutc_call_scratch(call, 2 * room * (int64_t)sizeof(RUTC_ITEM) +
                                                 (2 * room + all) * (int64_t)sizeof(RUTC_KEY));
  if (items == NULL) return RUTC_OUT_OF_MEMORY;
  RUTC_KEY *selected = (RUTC_KEY *)(items + 2 * room), *first = selected + 2 * room;
  RUTC_KEY *second = first + keys, *results = second + keys;
  RUTC_OF(selection) one = {
      .k = k, .room = room, .keys = selected, .places = selected + room,
      .items = items, .other = items + room};
  /* Vectors of rows suit those that lie side by side, and short rows. */
  if (k <= SHORT && s->inner >= LANES) {
    RUTC_OF(beside)(s, block, first, results, results + LANES * k);
  } else if (k <= SHORT && rows >= LANES && s->n <= CHUNK) {
    RUTC_OF(together)(s, first, second, results, results + LANES * k);
  } else if (s->inner == 1) {
    RUTC_OF(along)(s, &one, first, results);
  } else {
    RUTC_OF(across)(s, &one, first, second, results);
  }
  return RUTC_OK;
}
