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

/* Points the buffer table to the arena and the weights; rutc_point_port adds inputs and outputs. */
static void point_buffers(rutc_session *session) {
  const rutc_program *program = session->program;
  for (int64_t i = 0; i < program->buffer_count; i++) {
    const rutc_ref *ref = &program->buffers[i];
    int64_t offset = rutc_size(session->sizes, ref->offset);
    if (ref->space == RUTC_ARENA) session->buffers[i] = session->arena + offset;
    if (ref->space == RUTC_WEIGHTS) session->buffers[i] = (char *)session->weights.data + offset;
  }
}

void rutc_point_port(rutc_session *session, int32_t port, char *address) {
  if (session->bindings[port].bound == address) return;
  session->bindings[port].bound = address;
  const rutc_program *program = session->program;
  const rutc_port *description = &program->ports[port];
  const int64_t *patches = program->patches + description->first_patch;
  for (int64_t i = 0; i < description->patch_count; i++) {
    int64_t offset = rutc_size(session->sizes, program->buffers[patches[i]].offset);
    session->buffers[patches[i]] = address + offset;
  }
}

int rutc_learn_size(rutc_session *session, const rutc_step *step) {
  const rutc_program *program = session->program;
  const rutc_symbol *symbol = &program->bound[step->target];
  int64_t value = *(const int64_t *)session->buffers[step->buffer];
  if (value < symbol->low || value > symbol->high) {
    return rutc_fail(&session->error, RUTC_RUN_FAILED,
                     "%s: the size %s is %lld, outside of %lld..%lld", step->origin, symbol->name,
                     (long long)value, (long long)symbol->low, (long long)symbol->high);
  }
  if (session->sizes[step->symbol] == value) return RUTC_OK;
  session->sizes[step->symbol] = value;
  program->compute_sizes(session->sizes);
  return RUTC_OK;
}

char *rutc_allocate_scratch(const rutc_session *session, int64_t each) {
  int64_t threads = session->options.threads;
  if (each > (INT64_MAX - READ_ON_BYTES) / threads) return NULL;
  int64_t bytes = each * threads + READ_ON_BYTES;
  /* What is near fills much of a cache whose sets follow from physical addresses. */
  int in_turn = session->program->turn_bytes > 0 && each >= HUGE_PAGE_BYTES / 8;
  return rutc_allocate(in_turn && bytes < HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : bytes);
}

/* Gives each thread so many bytes of scratch, in which nothing is kept between launches. */
static int reserve_scratch(rutc_session *session, int64_t bytes) {
  int64_t each = bytes + session->program->turn_bytes;
  if (each <= session->scratch_bytes) return RUTC_OK;
  char *memory = rutc_allocate_scratch(session, each);
  if (memory == NULL) {
    return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY,
                     "no memory for scratch: %d times %lld bytes, once for each thread",
                     (int)session->options.threads, (long long)each);
  }
  free(session->thread_scratch);
  session->thread_scratch = memory;
  session->scratch_bytes = each;
  return RUTC_OK;
}

int rutc_reserve(rutc_session *session, const rutc_step *step) {
  const rutc_program *program = session->program;
  if (step->count < 0) {
    double exact = program->block_bytes(session->sizes, -1 - step->count);
    if (exact > TOO_MANY_BYTES) {
      return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY,
                       "the computed sizes need %.3g bytes of memory", exact);
    }
  }
  int64_t bytes = rutc_size(session->sizes, step->count);
  if (step->target == RUTC_SCRATCH) return reserve_scratch(session, bytes);
  rutc_region_memory *block = &session->blocks[step->target];
  if (block->memory != NULL && bytes <= block->capacity) return RUTC_OK;
  /* Some more, so that a value that grows from run to run is not moved in each. */
  int64_t capacity = block->passes ? bytes : bytes + bytes / 4;
  free(block->memory);
  block->memory = block->passes ? rutc_allocate_passing(capacity) : rutc_allocate(capacity);
  block->capacity = capacity;
  if (block->memory == NULL) {
    return rutc_fail(&session->error, RUTC_OUT_OF_MEMORY, "no memory for %lld bytes",
                     (long long)capacity);
  }
  const int64_t *patches = program->patches + program->blocks[step->target].first_patch;
  for (int64_t i = 0; i < program->blocks[step->target].patch_count; i++) {
    session->buffers[patches[i]] = block->memory;
  }
  return RUTC_OK;
}

static void shape_ports(rutc_session *session, int32_t begin, int32_t end) {
  for (int32_t i = begin; i < end; i++) {
    const rutc_port *port = &session->program->ports[i];
    rutc_binding *binding = &session->bindings[i];
    binding->bound = NULL;
    for (int32_t d = 0; d < port->ndim; d++) {
      binding->shape[d] = rutc_size(session->sizes, port->shape[d]);
    }
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
  shape_ports(session, 0, program->input_count);
  session->sized = 1;
  return RUTC_OK;
}

void rutc_shape_outputs(rutc_session *session) {
  const rutc_program *program = session->program;
  shape_ports(session, program->input_count, program->input_count + program->output_count);
}
