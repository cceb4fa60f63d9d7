/* The boxes of a session: tensors that a run keeps under numbers. 0 is the box that holds nothing.
 *
 * A box never changes; all are forgotten when the next run begins, or the one after that where the
 * next may be given them as inputs. In a loop the boxes of a trip that nothing reaches any more are
 * released at its end: a box is known by the depth of the loop that made it.
 */
#ifndef RUTC_BOXES_H
#define RUTC_BOXES_H

#include <stdint.h>

#include "rutc_dlpack.h"

typedef enum rutc_holds {
  RUTC_HOLDS_NUMBERS,
  RUTC_HOLDS_STRINGS, /* int64 numbers of strings */
  RUTC_HOLDS_BOXES    /* int64 numbers of boxes */
} rutc_holds;

typedef struct rutc_box {
  DLTensor tensor; /* dense; data and shape lie in `memory` */
  rutc_holds holds;
  int32_t depth; /* of the loop that made it; -1: free */
  int reached;
  void *memory;
  int64_t capacity; /* bytes of `memory` */
  void *shown;   /* what a caller sees in place of numbers: rutc_text or DLTensor pointers */
  DLTensor view; /* of `shown` */
  int64_t next_free;
} rutc_box;

typedef struct rutc_boxes {
  rutc_box **items; /* that of number n at n - 1 */
  int64_t count;
  int64_t capacity;
  int64_t free; /* a number; 0: none */
} rutc_boxes;

/* A new box for a tensor of this type and shape, its elements not set, and its number; NULL: no
 * memory. Pointers to boxes stay valid. */
rutc_box *rutc_box_new(rutc_boxes *boxes, DLDataType dtype, int32_t ndim, const int64_t *shape,
                       int32_t depth, int64_t *number);

/* The box of a number; NULL: it holds nothing. */
rutc_box *rutc_box_at(const rutc_boxes *boxes, int64_t number);

/* Marks the box of a number, and all boxes in it, as reached. */
void rutc_box_reach(const rutc_boxes *boxes, int64_t number);

/* Releases the boxes of loops of this depth or deeper that are not reached. */
void rutc_boxes_sweep(rutc_boxes *boxes, int32_t depth);

/* Gives the boxes of loops of this depth or deeper to the loop around. */
void rutc_boxes_settle(rutc_boxes *boxes, int32_t depth);

/* Releases all boxes, and keeps their memory for others. */
void rutc_boxes_reset(rutc_boxes *boxes);

/* Releases all memory. */
void rutc_boxes_close(rutc_boxes *boxes);

#endif
