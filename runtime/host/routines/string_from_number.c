#define _GNU_SOURCE
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_locale.h"
#include "call.h"

enum { LONGEST = 64, PLAIN_FROM = -4, PLAIN_TO = 16 };

/* The fewest digits that read back as the same number, as mantissa and exponent: `d.ddde+xx`. */
static void shortest(char *text, double value, int is_float) {
  int most = is_float ? 9 : 17;
  for (int digits = 1; digits <= most; digits++) {
    snprintf(text, LONGEST, "%.*e", digits - 1, value);
    float single = strtof(text, NULL), given = (float)value;
    double wide = strtod(text, NULL);
    /* Bits, because subnormal numbers may compare as zeros. */
    if (is_float ? memcmp(&single, &given, sizeof given) == 0
                 : memcmp(&wide, &value, sizeof value) == 0) {
      return;
    }
  }
}

/* `12.5`, `3.0`, `1e-05`, `NaN`, `-INF`. */
static int write_float(char *out, double value, int is_float) {
  if (isnan(value)) return snprintf(out, LONGEST, "NaN");
  if (isinf(value)) return snprintf(out, LONGEST, value < 0 ? "-INF" : "INF");
  char text[LONGEST], digits[LONGEST];
  shortest(text, value, is_float);
  char *mark = strchr(text, 'e');
  int exponent = atoi(mark + 1);
  if (exponent < PLAIN_FROM || exponent >= PLAIN_TO) return snprintf(out, LONGEST, "%s", text);
  int count = 0, length = 0;
  for (const char *c = text; c < mark; c++) {
    if (*c >= '0' && *c <= '9') digits[count++] = *c;
  }
  if (text[0] == '-') out[length++] = '-';
  int places = count - 1 > exponent ? count - 1 : exponent;
  for (int i = exponent < 0 ? exponent : 0; i <= places || i <= exponent + 1; i++) {
    if (i == exponent + 1) out[length++] = '.';
    out[length++] = i >= 0 && i < count ? digits[i] : '0';
  }
  out[length] = '\0';
  return length;
}

static int write_number(char *out, const DLTensor *x, int64_t i) {
  switch (x->dtype.code) {
    case kDLInt:
      return snprintf(out, LONGEST, "%" PRId64, ((const int64_t *)x->data)[i]);
    case kDLUInt:
      return snprintf(out, LONGEST, "%" PRIu64, ((const uint64_t *)x->data)[i]);
    case kDLFloat:
      return x->dtype.bits == 32 ? write_float(out, ((const float *)x->data)[i], 1)
                                 : write_float(out, ((const double *)x->data)[i], 0);
    default:
      return snprintf(out, LONGEST, "%d", ((const uint8_t *)x->data)[i] != 0);
  }
}

int rutc_routine_string_from_number(const rutc_call *call) {
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  rutc_plain_locale plain = rutc_enter_plain_locale();
  int status = RUTC_OK;
  for (int64_t i = 0; i < count && status == RUTC_OK; i++) {
    char text[LONGEST];
    int length = write_number(text, &call->args[0], i);
    out[i] = rutc_intern(call->strings, text, length);
    if (out[i] < 0) status = rutc_call_no_memory(call);
  }
  rutc_leave_plain_locale(plain);
  return status;
}
