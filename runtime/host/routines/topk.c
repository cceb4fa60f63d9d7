#include "call.h"

enum {
  LANES = 16,    /* rows, or keys of a row, that are looked at together */
  BLOCK = 4096,  /* so many keys of rows side by side are made at once: the first cache has them */
  REGISTERS = 8, /* so many results of several rows stay in registers */
  SEEN = 4,      /* keys are asked about from where one in so many registers has a better one */
  CHANCES = 16,  /* rows that places may fail to tell in order before any that they do tell */
  NEXT = 4,      /* so many keys of several rows are passed over at once */
  SHORT = 16,    /* so many results are selected from several rows at once */
  CHUNK = 256    /* keys of a row that are made at once; so many turns put one in order */
};

typedef struct shape {
  const rutc_call *call;
  DLDataType type;
  int64_t outer, n, k, inner; /* rows of n elements, `inner` apart */
  int64_t bytes;
  int largest;
} shape;

/* Some rows: where each begins, and where its results do. */
typedef struct group {
  const shape *s;
  int64_t rows;
  const char *from[LANES];
  char *values[LANES];
  int64_t *places[LANES];
} group;

static group group_of(const shape *s, int64_t first, int64_t rows) {
  group g; /* of places, those of so many rows are used */
  g.s = s;
  g.rows = rows;
  const DLTensor *outs = s->call->outs;
  int64_t outer = first / s->inner, lane = first - outer * s->inner;
  int64_t element = outer * s->n * s->inner + lane, result = outer * s->k * s->inner + lane;
  for (int64_t i = 0; i < rows; i++, element++, result++) {
    g.from[i] = (const char *)s->call->args[0].data + element * s->bytes;
    g.values[i] = (char *)outs[0].data + result * s->bytes;
    g.places[i] = (int64_t *)outs[1].data + result;
    if (++lane == s->inner) {
      lane = 0;
      element += (s->n - 1) * s->inner;
      result += (s->k - 1) * s->inner;
    }
  }
  return g;
}

/* How a key and its place make one number: the key's bits go up, where its type has fewer, and the
 * last ones give way to the place. */
typedef struct packing {
  int bits;     /* of a place */
  int shift;    /* of keys */
  int64_t told; /* 0 where places did not tell the order of about as many rows as they told */
} packing;

static packing packing_of(const shape *s, int key_bits) {
  packing p = {0, key_bits - (int)s->type.bits, CHANCES};
  while (s->n > (int64_t)1 << p.bits) p.bits++;
  return p;
}

#define RUTC_EACH "topk_rows.h"
#include "kinds.h"

int rutc_routine_topk(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  int64_t axis = rutc_call_integer(call, "axis", 0);
  int64_t n = x->shape[axis], k = call->outs[0].shape[axis];
  if (k > n) {
    return rutc_call_fail(call, "k = %lld of %lld elements along axis %lld", (long long)k,
                          (long long)n, (long long)axis);
  }
  int largest = rutc_call_integer(call, "largest", 1) != 0;
  shape s = {call, x->dtype, 1, n, k, 1, x->dtype.bits / 8, largest};
  for (int64_t i = 0; i < axis; i++) s.outer *= x->shape[i];
  for (int64_t i = axis + 1; i < x->ndim; i++) s.inner *= x->shape[i];
  if (s.outer * s.inner * k == 0) return RUTC_OK;
  if (s.bytes == 8) return rutc_long_topk(call, &s);
  if (n <= UINT32_MAX) return rutc_short_topk(call, &s);
  return rutc_call_fail(call, "%lld elements along an axis are too many", (long long)n);
}
