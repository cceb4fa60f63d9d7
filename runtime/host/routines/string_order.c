#include <stdlib.h>
#include <string.h>

#include "call.h"

typedef struct entry {
  rutc_text text;
  int64_t at;
} entry;

/* By bytes, which for UTF-8 is the order of the characters' numbers. */
static int compare(const void *left, const void *right) {
  const rutc_text *a = &((const entry *)left)->text, *b = &((const entry *)right)->text;
  int64_t common = a->bytes < b->bytes ? a->bytes : b->bytes;
  int found = common > 0 ? memcmp(a->data, b->data, (size_t)common) : 0;
  return found != 0 ? found : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* For each text, how many different texts come before it. */
int rutc_routine_string_order(const rutc_call *call) {
  const int64_t *in = call->args[0].data;
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->args[0]), rank = 0;
  entry *entries = rutc_call_scratch(call, (count + 1) * (int64_t)sizeof *entries);
  if (entries == NULL) return RUTC_OUT_OF_MEMORY;
  for (int64_t i = 0; i < count; i++) entries[i] = (entry){call->strings->texts[in[i]], i};
  qsort(entries, (size_t)count, sizeof *entries, compare);
  for (int64_t i = 0; i < count; i++) {
    if (i > 0 && compare(&entries[i - 1], &entries[i]) != 0) rank++;
    out[entries[i].at] = rank;
  }
  return RUTC_OK;
}
