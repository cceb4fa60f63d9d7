/* The model's constants: inside the library, or mapped from a file beside it. */
#ifndef RUTC_WEIGHTS_H
#define RUTC_WEIGHTS_H

#include "error.h"
#include "program.h"

typedef struct rutc_weights {
  const uint8_t *data;
  size_t mapped_bytes; /* 0: nothing to unmap */
} rutc_weights;

int rutc_weights_open(rutc_weights *weights, const rutc_program *program, rutc_error *error);
void rutc_weights_close(rutc_weights *weights);

#endif
