#include <stdlib.h>

#include "memory.h"
#include "session.h"
#include "sizes.h"

/* More bytes than any memory may have. */
#define TOO_MANY_BYTES 4.0e18

static int resize_arena(rutc_session *session) {
  int64_t bytes = rutc_size(session->sizes, session->program->arena_bytes);
  if (session->arena != NULL && bytes <= session->arena_capacity) return RUTC_OK;
  free(session->arena);
  session->arena = rutc_allocate(bytes);
  session->arena_capacity = bytes;
  if (session->arena != NULL) return RUTC_OK;
  return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY,
                   "no memory for the model's arena of %lld bytes", (long long)bytes);
}

/* Points the buffer table to the arena and the weights; rutc_bind adds inputs and outputs. */
static void point_buffers(rutc_session *session) {
  const rutc_program *program = session->program;
  for (int64_t i = 0; i < program->buffer_count; i++) {
    const rutc_ref *ref = &program->buffers[i];
    int64_t offset = rutc_size(session->sizes, ref->offset);
    if (ref->space == RUTC_ARENA) session->buffers[i] = session->arena + offset;
    if (ref->space == RUTC_WEIGHTS) session->buffers[i] = (char *)session->weights.data + offset;
  }
}

int rutc_resize(rutc_session *session) {
  const rutc_program *program = session->program;
  session->sized = 0;
  double most = program->largest_bytes(session->sizes);
  if (most > TOO_MANY_BYTES) {
    return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY,
                     "inputs of these shapes need %.3g bytes of memory", most);
  }
  program->compute_sizes(session->sizes);
  int status = resize_arena(session);
  if (status != RUTC_OK) return status;
  point_buffers(session);
  for (int32_t i = 0; i < program->input_count + program->output_count; i++) {
    const rutc_port *port = &program->ports[i];
    rutc_binding *binding = &session->bindings[i];
    binding->bound = NULL;
    for (int32_t d = 0; d < port->ndim; d++) {
      binding->shape[d] = rutc_size(session->sizes, port->shape[d]);
    }
  }
  session->sized = 1;
  return RUTC_OK;
}
