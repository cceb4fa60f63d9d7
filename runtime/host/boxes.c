#include "boxes.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum { FREE = -1, FIRST_BOXES = 16, ALIGNMENT = 64, SMALL = 256, LOOKS = 16 };

/* More elements than any memory has, so that byte counts do not overflow. */
#define MOST_BYTES 4.0e18

static void release(rutc_boxes *boxes, int64_t number) {
  rutc_box *box = boxes->items[number - 1];
  free(box->shown);
  box->shown = NULL;
  box->depth = FREE;
  box->next_free = boxes->free;
  boxes->free = number;
}

/* Whether memory of `capacity` bytes serves for `bytes`, and is not much more. */
static int fits(int64_t capacity, int64_t bytes) {
  return capacity >= bytes && capacity / 4 <= bytes + SMALL;
}

/* A free box, or a new one; of the free ones looked at, one whose memory fits, if there is. */
static rutc_box *take_box(rutc_boxes *boxes, int64_t bytes, int64_t *number) {
  int64_t *link = &boxes->free;
  for (int looked = 0; *link != 0 && looked < LOOKS; looked++) {
    rutc_box *box = boxes->items[*link - 1];
    if (fits(box->capacity, bytes)) break;
    link = &box->next_free;
  }
  if (*link == 0 || !fits(boxes->items[*link - 1]->capacity, bytes)) link = &boxes->free;
  if (*link != 0) {
    *number = *link;
    rutc_box *box = boxes->items[*number - 1];
    *link = box->next_free;
    return box;
  }
  if (boxes->count == boxes->capacity) {
    int64_t capacity = boxes->capacity > 0 ? 2 * boxes->capacity : FIRST_BOXES;
    rutc_box **items = realloc(boxes->items, (size_t)capacity * sizeof *items);
    if (items == NULL) return NULL;
    boxes->items = items;
    boxes->capacity = capacity;
  }
  rutc_box *box = calloc(1, sizeof *box);
  if (box == NULL) return NULL;
  boxes->items[boxes->count++] = box;
  *number = boxes->count;
  return box;
}

rutc_box *rutc_box_new(rutc_boxes *boxes, DLDataType dtype, int32_t ndim, const int64_t *shape,
                       int32_t depth, int64_t *number) {
  double most = dtype.bits / 8;
  int64_t bytes = dtype.bits / 8;
  for (int32_t i = 0; i < ndim; i++) most *= (double)(shape[i] > 1 ? shape[i] : 1);
  if (most > MOST_BYTES) return NULL;
  for (int32_t i = 0; i < ndim; i++) bytes *= shape[i];
  int64_t head = ((int64_t)sizeof *shape * ndim + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  rutc_box *box = take_box(boxes, head + bytes, number);
  if (box == NULL) return NULL;
  box->depth = depth;
  if (box->memory == NULL || !fits(box->capacity, head + bytes)) {
    /* Some more, so that a value that grows from trip to trip is not moved in each. */
    int64_t capacity = head + bytes + bytes / 4;
    free(box->memory);
    box->memory = rutc_allocate(capacity);
    box->capacity = box->memory != NULL ? capacity : 0;
    if (box->memory == NULL) {
      release(boxes, *number);
      return NULL;
    }
  }
  if (ndim > 0) memcpy(box->memory, shape, (size_t)ndim * sizeof *shape);
  box->holds = RUTC_HOLDS_NUMBERS;
  box->tensor = (DLTensor){.data = (char *)box->memory + head,
                           .device = {kDLCPU, 0},
                           .ndim = ndim,
                           .dtype = dtype,
                           .shape = box->memory};
  return box;
}

rutc_box *rutc_box_at(const rutc_boxes *boxes, int64_t number) {
  if (number < 1 || number > boxes->count) return NULL;
  rutc_box *box = boxes->items[number - 1];
  return box->depth != FREE ? box : NULL;
}

void rutc_box_reach(const rutc_boxes *boxes, int64_t number) {
  rutc_box *box = rutc_box_at(boxes, number);
  if (box == NULL || box->reached) return;
  box->reached = 1;
  if (box->holds != RUTC_HOLDS_BOXES) return;
  const int64_t *inner = box->tensor.data;
  for (int64_t i = 0; i < box->tensor.shape[0]; i++) rutc_box_reach(boxes, inner[i]);
}

void rutc_boxes_sweep(rutc_boxes *boxes, int32_t depth) {
  for (int64_t number = boxes->count; number > 0; number--) {
    rutc_box *box = boxes->items[number - 1];
    if (box->depth >= depth && !box->reached) release(boxes, number);
    box->reached = 0;
  }
}

void rutc_boxes_settle(rutc_boxes *boxes, int32_t depth) {
  for (int64_t i = 0; i < boxes->count; i++) {
    if (boxes->items[i]->depth >= depth) boxes->items[i]->depth = depth - 1;
  }
}

void rutc_boxes_reset(rutc_boxes *boxes) {
  boxes->free = 0;
  /* Backwards, so that the next run finds them in the order in which it made them in this one. */
  for (int64_t number = boxes->count; number > 0; number--) release(boxes, number);
}

void rutc_boxes_close(rutc_boxes *boxes) {
  for (int64_t i = 0; i < boxes->count; i++) {
    free(boxes->items[i]->memory);
    free(boxes->items[i]->shown);
    free(boxes->items[i]);
  }
  free(boxes->items);
}
