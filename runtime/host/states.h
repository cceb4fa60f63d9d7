/* States: what a session keeps from one run for the next. */
#ifndef RUTC_STATES_H
#define RUTC_STATES_H

#include "rutc_dlpack.h"

struct rutc_session;

/* A state as it is: `tensor` describes it, and has no strides where it is dense. */
typedef struct rutc_held {
  DLTensor tensor;
  int64_t *shape;
  int64_t *strides;
  char *memory;
  char *next; /* where a run writes what comes after it: `memory`, or as much memory of its own */
} rutc_held;

/* Allocates memory for all states and resets them. */
int rutc_states_open(struct rutc_session *session);
void rutc_states_close(struct rutc_session *session);

/* Makes states that grow empty, and all others zeros. */
void rutc_states_reset(struct rutc_session *session);

/* Appends the states to the caller's inputs in session->inputs, which it returns. */
const DLTensor *const *rutc_states_join(struct rutc_session *session,
                                        const DLTensor *const *inputs);

/* Checks that there is room for what this run appends, after the sizes have their values. */
int rutc_states_check(struct rutc_session *session);

/* Says that there is no room for what a run would append to the state of that number. */
int rutc_states_full(struct rutc_session *session, int32_t number);

/* Points the buffer table to the states. */
void rutc_states_bind(struct rutc_session *session);

/* Copies a tensor into the state of that name. */
int rutc_states_set(struct rutc_session *session, const char *name, const DLTensor *tensor);

/* Describes the state of that name. */
int rutc_states_get(struct rutc_session *session, const char *name, DLTensor *tensor);

/* Makes what the run has written the states. */
void rutc_states_advance(struct rutc_session *session);

#endif
