#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "c_locale.h"
#include "call.h"

enum { LONGEST = 400 };

/* An integer, or the integer part of a number. */
static int64_t read_integer(const char *text, char **end, int is_signed) {
  errno = 0;
  int64_t whole = is_signed ? strtoll(text, end, 10) : (int64_t)strtoull(text, end, 10);
  if (**end == '\0' && *end != text && errno == 0) return whole;
  double value = strtod(text, end);
  if (value - value != 0.0) *end = (char *)text;
  if (is_signed) {
    return value >= 0x1p63 ? INT64_MAX : value <= -0x1p63 ? INT64_MIN : (int64_t)value;
  }
  return value >= 0x1p64 ? -1 : value <= 0 ? 0 : (int64_t)(uint64_t)value;
}

static void read_number(const DLTensor *out, int64_t i, const char *text, char **end) {
  if (out->dtype.code == kDLFloat && out->dtype.bits == 32) {
    ((float *)out->data)[i] = strtof(text, end);
  } else if (out->dtype.code == kDLFloat) {
    ((double *)out->data)[i] = strtod(text, end);
  } else {
    ((int64_t *)out->data)[i] = read_integer(text, end, out->dtype.code == kDLInt);
  }
}

int rutc_routine_number_from_string(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  rutc_plain_locale plain = rutc_enter_plain_locale();
  int status = RUTC_OK;
  for (int64_t i = 0; i < count && status == RUTC_OK; i++) {
    rutc_text given = call->strings->texts[numbers[i]];
    char text[LONGEST];
    int64_t length = given.bytes;
    while (length > 0 && strchr(" \t\n\r", given.data[length - 1]) != NULL) length--;
    int fits = length > 0 && length < LONGEST && memchr(given.data, 0, (size_t)length) == NULL;
    char *end = text;
    if (fits) {
      memcpy(text, given.data, (size_t)length);
      text[length] = '\0';
      read_number(&call->outs[0], i, text, &end);
    }
    if (!fits || *end != '\0' || end == text) {
      int shown = given.bytes < 80 ? (int)given.bytes : 80;
      status = rutc_call_fail(call, "\"%.*s\" is no number", shown, shown > 0 ? given.data : "");
    }
  }
  rutc_leave_plain_locale(plain);
  return status;
}
