#include <string.h>

#include "call.h"

#define RUTC_EACH "unique_items.h"
#include "kinds.h"

/* Numbers in the order in which they come first, instead of that of the rows. */
static void renumber(int64_t *first, int64_t *inverse, int64_t *counts, int64_t count,
                     int64_t *rank) {
  int64_t next = 0;
  for (int64_t i = 0; i < count; i++) {
    if (first[inverse[i]] == i) rank[inverse[i]] = next++;
  }
  for (int64_t i = 0; i < count; i++) inverse[i] = rank[inverse[i]];
  for (int64_t i = count; i-- > 0;) first[inverse[i]] = i;
  memset(counts, 0, (size_t)next * sizeof *counts);
  for (int64_t i = 0; i < count; i++) counts[inverse[i]]++;
}

int rutc_routine_unique(const rutc_call *call) {
  const DLTensor *x = &call->args[0];
  int64_t count = x->shape[0], width = 1;
  for (int32_t i = 1; i < x->ndim; i++) width *= x->shape[i];
  int64_t *first = call->outs[0].data, *inverse = call->outs[1].data;
  int64_t *counts = call->outs[2].data, *number = call->outs[3].data;
  int64_t found = x->dtype.bits == 64 ? rutc_long_number(call, width, first, inverse, counts)
                                      : rutc_short_number(call, width, first, inverse, counts);
  if (found < 0) return RUTC_OUT_OF_MEMORY;
  if (!rutc_call_integer(call, "sorted", 1)) {
    int64_t *rank = rutc_call_scratch(call, found * (int64_t)sizeof *rank);
    if (rank == NULL) return RUTC_OUT_OF_MEMORY;
    renumber(first, inverse, counts, count, rank);
  }
  memset(first + found, 0, (size_t)(count - found) * sizeof *first);
  memset(counts + found, 0, (size_t)(count - found) * sizeof *counts);
  *number = found;
  return RUTC_OK;
}
