/* Files of weights: where one is, and the mappings of them, which a library's sessions share.
 *
 *   bytes of the image of all weights .. | their SHA-256
 *
 * To open a file reads its last bytes only: they tell those of another model, or of another
 * compilation of this one. */
#ifndef RUTC_WEIGHTS_FILE_H
#define RUTC_WEIGHTS_FILE_H

#include "error.h"
#include "program.h"

/* A file that is mapped for reading. */
typedef struct rutc_mapping rutc_mapping;

/* Maps the file at a path; NULL: the one beside the library, which has the library's name with the
 * extension ".weights" (model.so: model.weights). */
int rutc_mapping_open(rutc_mapping **mapping, const rutc_image *image, const char *path,
                      rutc_error *error);

const uint8_t *rutc_mapping_data(const rutc_mapping *mapping);

/* Ends one use of a mapping. */
void rutc_mapping_close(rutc_mapping *mapping);

/* Around fork(): the child is to find the mappings as they should be. */
void rutc_mappings_lock(void);
void rutc_mappings_unlock(void);

#endif
