/* Calls of routines: what the functions in routines/ are given.
 *
 * A routine computes its results from its operands, all dense, in the order of axes that the call
 * states. It returns RUTC_OK, or the status of rutc_call_fail.
 */
#ifndef RUTC_CALL_H
#define RUTC_CALL_H

#include <stdint.h>

#include "boxes.h"
#include "error.h"
#include "rutc_dlpack.h"
#include "string_table.h"

/* An attribute: integers, one number or a text, by what the routine asks for. */
typedef struct rutc_attribute {
  const char *name;
  const int64_t *integers;
  int64_t count;
  double number;
  const char *text;
} rutc_attribute;

/* Memory that a session keeps for its routines; it grows on demand. */
typedef struct rutc_scratch {
  void *memory;
  int64_t bytes;
} rutc_scratch;

typedef struct rutc_call {
  const DLTensor *args;
  DLTensor *outs;
  int32_t arg_count;
  int32_t out_count;
  const rutc_attribute *attributes;
  int32_t attribute_count;
  const char *origin; /* the ONNX nodes */
  uint64_t draws;     /* how often the session has made this call before */
  rutc_scratch *scratch;
  rutc_strings *strings;
  rutc_boxes *boxes;
  int32_t depth; /* the number of loops around the call */
  rutc_error *error;
} rutc_call;

typedef int (*rutc_routine)(const rutc_call *call);

/* An integer attribute; `otherwise` where the call has none of this name. */
int64_t rutc_call_integer(const rutc_call *call, const char *name, int64_t otherwise);

/* A number; 0 where the call has none of this name. */
double rutc_call_number(const rutc_call *call, const char *name);

/* A text; "" where the call has none of this name. */
const char *rutc_call_text(const rutc_call *call, const char *name);

/* `bytes` bytes, aligned to 64, valid until the call's end, and the same for each request of one
 * call; NULL, with the error set, where there is no memory. */
void *rutc_call_scratch(const rutc_call *call, int64_t bytes);

/* Sets the session's error, which begins with the ONNX nodes, and returns its status. */
__attribute__((format(printf, 2, 3))) int rutc_call_fail(const rutc_call *call,
                                                         const char *format, ...);

/* Sets the error that there is no memory for strings, and returns its status. */
int rutc_call_no_memory(const rutc_call *call);

/* The number of elements of a tensor. */
int64_t rutc_call_count(const DLTensor *tensor);

#endif
