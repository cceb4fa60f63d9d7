#include "program.h"

static void reset(rutc_strings *strings, rutc_boxes *boxes) {
  rutc_strings_reset(strings);
  rutc_boxes_reset(boxes);
}

static void close_all(rutc_strings *strings, rutc_boxes *boxes) {
  rutc_strings_close(strings);
  rutc_boxes_close(boxes);
}

const rutc_keeper rutc_keeper_of_all = {rutc_strings_open, reset, close_all};
