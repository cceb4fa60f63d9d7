#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int rutc_fail(rutc_error *error, int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  return status;
}

const char *rutc_plural(int64_t count) { return count == 1 ? "" : "s"; }
