/* Where tensors lie in memory, and whether they share any of it. */
#ifndef RUTC_OVERLAP_H
#define RUTC_OVERLAP_H

#include <stdint.h>

#include "rutc_dlpack.h"

/* Bytes of memory. */
typedef struct rutc_span {
  const char *begin;
  int64_t bytes;
} rutc_span;

/* The memory from the lowest byte of a tensor's elements to the highest. */
rutc_span rutc_tensor_span(const DLTensor *tensor, int32_t element_bytes);

/* Whether two pieces of memory share a byte. */
int rutc_spans_overlap(rutc_span a, rutc_span b);

/* Whether an element of one tensor shares a byte with one of the other. Where that takes too long to
 * find out the answer is yes. */
int rutc_tensors_overlap(const DLTensor *a, int32_t a_bytes, const DLTensor *b, int32_t b_bytes);

/* Whether two elements of a tensor share a byte; the answer is yes, too, where it takes too long. */
int rutc_tensor_overlaps_itself(const DLTensor *tensor, int32_t element_bytes);

#endif
