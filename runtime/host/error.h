/* The message of the last failed call. */
#ifndef RUTC_ERROR_H
#define RUTC_ERROR_H

#include "rutc_abi.h"

typedef struct rutc_error {
  char text[1024];
} rutc_error;

/* Writes the message and returns `status`, so that a caller can `return rutc_fail(...)`. */
__attribute__((format(printf, 3, 4))) int rutc_fail(rutc_error *error, int status,
                                                    const char *format, ...);

/* What follows a noun in a message that tells so many of it. */
const char *rutc_plural(int64_t count);

#endif
