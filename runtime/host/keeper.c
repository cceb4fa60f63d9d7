#include "program.h"

static void reset(rutc_strings *strings, rutc_boxes *boxes, rutc_boxes *last) {
  if (last != NULL) {
    rutc_boxes before = *boxes;
    *boxes = *last;
    *last = before;
  }
  rutc_strings_reset(strings, last != NULL);
  rutc_boxes_reset(boxes);
}

static void close_all(rutc_strings *strings, rutc_boxes *boxes, rutc_boxes *last) {
  rutc_strings_close(strings);
  rutc_boxes_close(boxes);
  rutc_boxes_close(last);
}

const rutc_keeper rutc_keeper_of_all = {rutc_strings_open, reset, close_all};
