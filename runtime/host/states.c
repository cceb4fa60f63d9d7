#include "states.h"

#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "memory.h"
#include "session.h"
#include "tensor.h"

/* States begin at lines of their own, as those that threads share lie in no other's. */
enum { STATE_ALIGNMENT = 64 };

static const rutc_port *input_port(const rutc_session *session, int32_t state) {
  const rutc_program *program = session->program;
  return &program->ports[program->input_count - program->state_count + state];
}

/* The number of the port of what follows a state. */
static int32_t output_number(const rutc_session *session, int32_t state) {
  const rutc_program *program = session->program;
  return program->input_count + program->output_count - program->state_count + state;
}

/* The bytes that a state takes in the block of all of them. */
static int64_t place_bytes(const rutc_state *state) {
  return (state->bytes + STATE_ALIGNMENT - 1) / STATE_ALIGNMENT * STATE_ALIGNMENT;
}

/* Allocates one block for all states: it has huge pages though each state be smaller than one. */
static char *allocate_states(const rutc_program *program) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < program->state_count; i++) {
    const rutc_state *state = &program->states[i];
    int64_t each = place_bytes(state), copies = state->in_place ? 1 : 2;
    if (each > (INT64_MAX - bytes) / copies) return NULL;
    bytes += copies * each;
  }
  return rutc_allocate(bytes);
}

int rutc_states_open(rutc_session *session) {
  const rutc_program *program = session->program;
  session->inputs = calloc((size_t)program->input_count + 1, sizeof *session->inputs);
  session->states = calloc((size_t)program->state_count + 1, sizeof *session->states);
  int whole = session->inputs != NULL && session->states != NULL;
  char *place = session->state_memory = whole ? allocate_states(program) : NULL;
  whole = place != NULL;
  for (int32_t i = 0; whole && i < program->state_count; i++) {
    const rutc_state *state = &program->states[i];
    const rutc_port *port = input_port(session, i);
    rutc_held *held = &session->states[i];
    held->shape = calloc((size_t)port->ndim + 1, sizeof *held->shape);
    held->strides = calloc((size_t)port->ndim + 1, sizeof *held->strides);
    whole = held->shape != NULL && held->strides != NULL;
    if (!whole) break;
    held->memory = place;
    if (!state->in_place) place += place_bytes(state);
    held->next = place;
    place += place_bytes(state);
    held->tensor = (DLTensor){.data = held->memory,
                              .device = {kDLCPU, 0},
                              .ndim = port->ndim,
                              .dtype = {port->dtype_code, port->dtype_bits, 1},
                              .shape = held->shape,
                              .strides = state->in_place && state->axis >= 0 ? held->strides : NULL};
    int64_t stride = 1;
    for (int32_t d = port->ndim - 1; d >= 0; d--) {
      held->strides[d] = stride;
      stride *= d == state->axis ? state->capacity : port->shape[d];
    }
  }
  if (!whole) {
    return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY, "no memory for the states of a session");
  }
  rutc_states_reset(session);
  return RUTC_OK;
}

void rutc_states_close(rutc_session *session) {
  for (int32_t i = 0; session->states != NULL && i < session->program->state_count; i++) {
    rutc_held *held = &session->states[i];
    free(held->strides);
    free(held->shape);
  }
  free(session->states);
  free(session->state_memory);
  free(session->inputs);
}

void rutc_states_reset(rutc_session *session) {
  for (int32_t i = 0; i < session->program->state_count; i++) {
    const rutc_state *state = &session->program->states[i];
    const rutc_port *port = input_port(session, i);
    rutc_held *held = &session->states[i];
    for (int32_t d = 0; d < port->ndim; d++) {
      held->shape[d] = d == state->axis ? 0 : port->shape[d];
    }
    if (state->axis < 0) memset(held->memory, 0, (size_t)state->bytes);
  }
}

const DLTensor *const *rutc_states_join(rutc_session *session, const DLTensor *const *inputs) {
  const rutc_program *program = session->program;
  if (program->state_count == 0) return inputs;
  int32_t given = program->input_count - program->state_count;
  for (int32_t i = 0; i < given; i++) session->inputs[i] = inputs[i];
  for (int32_t i = 0; i < program->state_count; i++) {
    session->inputs[given + i] = &session->states[i].tensor;
  }
  return session->inputs;
}

int rutc_states_full(rutc_session *session, int32_t number) {
  const rutc_state *state = &session->program->states[number];
  return rutc_fail(&session->error, RUTC_STATE_FULL,
                   "state \"%s\" has %lld of at most %lld along axis %d, and what this run appends "
                   "does not fit: reset it, set a shorter one, or compile the model for more",
                   input_port(session, number)->name,
                   (long long)session->states[number].shape[state->axis],
                   (long long)state->capacity, (int)state->axis);
}

int rutc_states_check(rutc_session *session) {
  for (int32_t i = 0; i < session->program->state_count; i++) {
    const rutc_state *state = &session->program->states[i];
    if (state->axis < 0) continue;
    int64_t after = session->bindings[output_number(session, i)].shape[state->axis];
    if (after > state->capacity) return rutc_states_full(session, i);
  }
  return RUTC_OK;
}

void rutc_states_bind(rutc_session *session) {
  const rutc_program *program = session->program;
  for (int32_t i = 0; i < program->state_count; i++) {
    rutc_point_port(session, program->input_count - program->state_count + i,
                    session->states[i].memory);
    rutc_point_port(session, output_number(session, i), session->states[i].next);
  }
}

void rutc_states_advance(rutc_session *session) {
  for (int32_t i = 0; i < session->program->state_count; i++) {
    const rutc_state *state = &session->program->states[i];
    rutc_held *held = &session->states[i];
    char *written = held->next;
    held->next = held->memory;
    held->memory = written;
    held->tensor.data = written;
    if (state->axis < 0) continue;
    held->shape[state->axis] = session->bindings[output_number(session, i)].shape[state->axis];
  }
}

/* The number of the state whose input has a name; -1, with the error set, if none has. */
static int32_t find(rutc_session *session, const char *name) {
  for (int32_t i = 0; name != NULL && i < session->program->state_count; i++) {
    if (strcmp(input_port(session, i)->name, name) == 0) return i;
  }
  rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "the model has no state \"%s\"",
            name != NULL ? name : "NULL");
  return -1;
}

/* Checks a tensor that is to become a state. */
static int check(rutc_session *session, int32_t number, const DLTensor *tensor) {
  const rutc_state *state = &session->program->states[number];
  const rutc_port *port = input_port(session, number);
  if (tensor == NULL) {
    return rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "state \"%s\" is NULL", port->name);
  }
  int status = rutc_tensor_check(port, "state", tensor, NULL, &session->error);
  if (status != RUTC_OK) return status;
  if (state->axis >= 0 && tensor->shape[state->axis] > state->capacity) {
    return rutc_fail(&session->error, RUTC_STATE_FULL,
                     "state \"%s\" has room for %lld along axis %d, not for %lld", port->name,
                     (long long)state->capacity, (int)state->axis,
                     (long long)tensor->shape[state->axis]);
  }
  int64_t bytes = port->element_bytes;
  for (int32_t d = 0; d < tensor->ndim; d++) bytes *= tensor->shape[d];
  return rutc_tensor_check_data(port, "state", tensor, bytes, &session->error);
}

/* Whether a tensor that begins where a state does has each element where that has it. */
static int has_strides(const DLTensor *tensor, const rutc_held *held) {
  if (tensor->strides == NULL || held->tensor.strides == NULL) return 0;
  for (int32_t d = 0; d < tensor->ndim; d++) {
    if (tensor->strides[d] != held->strides[d]) return 0;
  }
  return 1;
}

int rutc_states_set(rutc_session *session, const char *name, const DLTensor *tensor) {
  int32_t number = find(session, name);
  if (number < 0) return RUTC_BAD_ARGUMENT;
  int status = check(session, number, tensor);
  if (status != RUTC_OK) return status;
  const rutc_state *state = &session->program->states[number];
  const rutc_port *port = input_port(session, number);
  rutc_held *held = &session->states[number];
  int64_t bytes = port->element_bytes;
  for (int32_t d = 0; d < tensor->ndim; d++) bytes *= tensor->shape[d];
  if (rutc_tensor_data(tensor) == held->memory && state->axis >= 0 &&
      tensor->shape[state->axis] <= held->shape[state->axis] && has_strides(tensor, held)) {
    held->shape[state->axis] = tensor->shape[state->axis];
    return RUTC_OK;
  }
  /* By way of dense memory: the tensor may be the state itself, which becomes shorter. */
  char *dense = rutc_allocate(bytes);
  if (dense == NULL) {
    return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY, "no memory for a copy of state \"%s\"",
                     port->name);
  }
  if (bytes > 0) rutc_tensor_gather(dense, tensor, port->element_bytes);
  if (state->axis >= 0) held->shape[state->axis] = tensor->shape[state->axis];
  if (bytes > 0) rutc_tensor_scatter(&held->tensor, dense, port->element_bytes);
  free(dense);
  return RUTC_OK;
}

int rutc_states_get(rutc_session *session, const char *name, DLTensor *tensor) {
  int32_t number = find(session, name);
  if (number < 0) return RUTC_BAD_ARGUMENT;
  if (tensor == NULL) {
    return rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "the descriptor of state \"%s\" is NULL",
                     name);
  }
  *tensor = session->states[number].tensor;
  return RUTC_OK;
}
