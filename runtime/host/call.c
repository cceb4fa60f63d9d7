#include "call.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static const rutc_attribute *find(const rutc_call *call, const char *name) {
  for (int32_t i = 0; i < call->attribute_count; i++) {
    if (strcmp(call->attributes[i].name, name) == 0) return &call->attributes[i];
  }
  return NULL;
}

int64_t rutc_call_integer(const rutc_call *call, const char *name, int64_t otherwise) {
  const rutc_attribute *found = find(call, name);
  return found != NULL && found->count > 0 ? found->integers[0] : otherwise;
}

double rutc_call_number(const rutc_call *call, const char *name) {
  const rutc_attribute *found = find(call, name);
  return found != NULL ? found->number : 0.0;
}

const char *rutc_call_text(const rutc_call *call, const char *name) {
  const rutc_attribute *found = find(call, name);
  return found != NULL && found->text != NULL ? found->text : "";
}

void *rutc_call_scratch(const rutc_call *call, int64_t bytes) {
  rutc_scratch *scratch = call->scratch;
  if (scratch->memory != NULL && scratch->bytes >= bytes) return scratch->memory;
  free(scratch->memory);
  scratch->memory = rutc_allocate(bytes);
  scratch->bytes = bytes;
  if (scratch->memory == NULL) {
    rutc_fail(call->error, RUTC_OUT_OF_MEMORY, "%s: no memory for %lld bytes", call->origin,
              (long long)bytes);
  }
  return scratch->memory;
}

int rutc_call_fail(const rutc_call *call, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return rutc_fail(call->error, RUTC_RUN_FAILED, "%s: %s", call->origin, text);
}

int rutc_call_no_memory(const rutc_call *call) {
  return rutc_fail(call->error, RUTC_OUT_OF_MEMORY, "%s: no memory for strings", call->origin);
}

int64_t rutc_call_count(const DLTensor *tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
  return count;
}
