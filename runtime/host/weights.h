/* The model's constants: the last segment of the library, or mapped from a file beside it, which
 * has the library's name with the extension ".weights" (model.so: model.weights). */
#ifndef RUTC_WEIGHTS_H
#define RUTC_WEIGHTS_H

#include "error.h"
#include "program.h"

typedef struct rutc_weights {
  const uint8_t *data; /* those of the program */
  void *mapping;       /* NULL: nothing is mapped */
  size_t mapped_bytes;
} rutc_weights;

int rutc_weights_open(rutc_weights *weights, const rutc_model *model, const rutc_program *program,
                      rutc_error *error);
void rutc_weights_close(rutc_weights *weights);

#endif
