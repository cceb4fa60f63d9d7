/* The model's constants: the last segment of the library, a file (weights_file.h), or what the caller
 * has of that file in memory. */
#ifndef RUTC_WEIGHTS_H
#define RUTC_WEIGHTS_H

#include "error.h"
#include "program.h"
#include "weights_file.h"

typedef struct rutc_weights {
  const uint8_t *data;   /* those of the program */
  rutc_mapping *mapping; /* NULL: nothing is to be released */
} rutc_weights;

int rutc_weights_open(rutc_weights *weights, const rutc_model *model, const rutc_program *program,
                      const rutc_options *options, rutc_error *error);
void rutc_weights_close(rutc_weights *weights);

#endif
