/* Libraries of several targets: a program for each, of which a session runs one.
 *
 * Without a name that is the first program that the CPU can run, see rutc_model; a name, of a call or
 * of the environment, asks for one. Only such libraries have this code.
 */
#ifndef RUTC_TARGETS_H
#define RUTC_TARGETS_H

#include "entry.h"

/* What asks for a target where the caller does not. */
#define RUTC_TARGET_VARIABLE "RUTC_TARGET"

/* A target by its name, and the model as it would be without the others. */
typedef struct rutc_target {
  const char *name;
  rutc_model alone;
} rutc_target;

/* As rutc_session_open, with the program for the target of that name; `name` may be NULL. `targets`
 * has one for each of the model's programs. */
rutc_session *rutc_targets_open(const rutc_model *model, const rutc_target *targets,
                                const char *name, const rutc_options *options);

/* The name of the target whose program a session runs; NULL if it is none of the model's. */
const char *rutc_targets_name(const rutc_session *session, const rutc_model *model,
                              const rutc_target *targets);

#endif
