/* What the entry points NAME_open, NAME_run, ... of a model call. */
#ifndef RUTC_ENTRY_H
#define RUTC_ENTRY_H

#include "program.h"
#include "rutc_abi.h"
#include "rutc_dlpack.h"

/* Notes where the file of weights is. To be called when the library is loaded: its path may be
 * relative to the folder that the process is in then. */
void rutc_weights_locate(const rutc_model *model);

/* Opens a session with `options` (NULL: defaults); NULL on failure, see rutc_session_error. */
rutc_session *rutc_session_open(const rutc_model *model, const rutc_options *options);

/* Runs the model once. */
int rutc_session_run(rutc_session *session, const rutc_model *model,
                     const DLTensor *const *inputs, int32_t input_count, DLTensor *const *outputs,
                     int32_t output_count);

/* Fills in the descriptors of the outputs, but for their data, for inputs of these shapes. */
int rutc_session_output_shapes(rutc_session *session, const rutc_model *model,
                               const DLTensor *const *inputs, int32_t input_count,
                               DLTensor *const *outputs, int32_t output_count);

/* Writes up to `capacity` entries and returns how many there are. */
int32_t rutc_session_profile(rutc_session *session, rutc_profile_entry *entries, int32_t capacity);

/* The message of the session's last failed run; for NULL or a session of another model, that of the
 * calling thread's last failed call with such a one. Empty when nothing failed. */
const char *rutc_session_error(const rutc_session *session, const rutc_model *model);

/* Gives the caller the memory of an output of a computed shape, as the last run described it; returns
 * whether it has it now, to be released with free(). */
int rutc_session_keep_output(rutc_session *session, const rutc_model *model,
                             const DLTensor *output);

/* Makes the states as they were at first. */
int rutc_session_reset(rutc_session *session, const rutc_model *model);

/* Describes a state, or copies a tensor into it. */
int rutc_session_get_state(rutc_session *session, const rutc_model *model, const char *name,
                           DLTensor *state);
int rutc_session_set_state(rutc_session *session, const rutc_model *model, const char *name,
                           const DLTensor *state);

/* Stops the session's threads and releases its memory. Accepts NULL. */
void rutc_session_close(rutc_session *session);

#endif
