#define _GNU_SOURCE
#include "float_mode.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "timing.h"

enum { MAX_THREADS = 4096 };

static _Thread_local rutc_error thread_error;

/* How often this process, and those that it comes from, were made by fork() since the library was
 * loaded: to ask the system for the process's number takes as long as a small model. */
static atomic_uint forks;
static int watches_forks;

static void begin_child(void) {
  atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
  rutc_mappings_unlock();
}

static void watch_forks(void) {
  watches_forks = pthread_atfork(rutc_mappings_lock, rutc_mappings_unlock, begin_child) == 0;
}

static unsigned fork_count(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

/* Reads options of this or an older size; newer ones must leave the unknown rest zero. */
static int read_options(rutc_options *options, const rutc_options *given) {
  memset(options, 0, sizeof *options);
  if (given != NULL) {
    size_t size = given->struct_size;
    if (size < sizeof given->struct_size) {
      return rutc_fail(&thread_error, RUTC_BAD_ARGUMENT,
                       "options.struct_size must be set to sizeof(rutc_options)");
    }
    for (size_t i = sizeof *options; i < size; i++) {
      if (((const char *)given)[i] != 0) {
        return rutc_fail(&thread_error, RUTC_BAD_ARGUMENT,
                         "options set a field that this model's library is too old to know");
      }
    }
    memcpy(options, given, size < sizeof *options ? size : sizeof *options);
  }
  if (options->threads < 0 || options->threads > MAX_THREADS) {
    return rutc_fail(&thread_error, RUTC_BAD_ARGUMENT,
                     "options.threads must lie in [0, %d], not %d", MAX_THREADS,
                     (int)options->threads);
  }
  if (options->threads == 0) options->threads = rutc_cpu_available();
  return RUTC_OK;
}

/* Allocates what a run needs. Tables have an entry more, so that no size is zero. */
static int allocate(rutc_session *session) {
  const rutc_program *program = session->program;
  size_t ports = (size_t)program->input_count + (size_t)program->output_count;
  session->buffers = calloc((size_t)program->buffer_count + 1, sizeof *session->buffers);
  session->sizes = calloc((size_t)program->size_count + 1, sizeof *session->sizes);
  session->bindings = calloc(ports + 1, sizeof *session->bindings);
  session->blocks = calloc((size_t)program->block_count + 1, sizeof *session->blocks);
  session->operands = calloc((size_t)program->most_operands + 1, sizeof *session->operands);
  session->operand_shapes = calloc((size_t)program->most_operands + 1,
                                   RUTC_MAX_NDIM * sizeof *session->operand_shapes);
  session->draws = calloc((size_t)program->call_count + 1, sizeof *session->draws);
  session->parts = aligned_alloc(_Alignof(rutc_part),
                                 (size_t)session->options.threads * sizeof *session->parts);
  if (session->options.profile) {
    session->timings = calloc((size_t)program->step_count + 1, sizeof *session->timings);
  }
  int64_t scratch_bytes = program->thread_bytes + program->turn_bytes;
  session->scratch_bytes = scratch_bytes;
  if (scratch_bytes > 0) {
    session->thread_scratch = rutc_allocate_scratch(session, scratch_bytes);
    if (session->thread_scratch == NULL) {
      return rutc_fail(&thread_error, RUTC_OUT_OF_MEMORY,
                       "no memory for scratch: %d times %lld bytes, once for each thread",
                       (int)session->options.threads, (long long)scratch_bytes);
    }
  }
  int shapes = 1;
  for (size_t i = 0; session->bindings != NULL && i < ports; i++) {
    session->bindings[i].shape =
        calloc((size_t)program->ports[i].ndim + 1, sizeof *session->bindings[i].shape);
    shapes &= session->bindings[i].shape != NULL;
  }
  if (session->buffers == NULL || session->sizes == NULL || !shapes ||
      session->operand_shapes == NULL || session->blocks == NULL ||
      session->bindings == NULL || session->operands == NULL || session->draws == NULL ||
      session->parts == NULL ||
      (session->options.profile && session->timings == NULL)) {
    return rutc_fail(&thread_error, RUTC_OUT_OF_MEMORY,
                     "no memory for the tables of a session");
  }
  return RUTC_OK;
}

/* Takes the first program that this CPU can run; the error is that of the last, which asks least. */
static int choose_program(rutc_session *session) {
  const rutc_model *model = session->model;
  int status = RUTC_OK;
  for (int32_t i = 0; i < model->program_count; i++) {
    session->program = model->programs[i];
    status = rutc_cpu_require(session->program->features, &thread_error);
    if (status == RUTC_OK) return RUTC_OK;
  }
  return status;
}

/* Whether one of the ports takes or gives strings, or tensors as elements. */
static int has_handles(const rutc_port *ports, int32_t count) {
  int found = 0;
  for (int32_t i = 0; i < count; i++) found |= ports[i].dtype_code == kDLOpaqueHandle;
  return found;
}

static int open_session(rutc_session *session, const rutc_options *options) {
  int status = read_options(&session->options, options);
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  if (status == RUTC_OK && !watches_forks) {
    status = rutc_fail(&thread_error, RUTC_OUT_OF_MEMORY, "no memory to watch for fork()");
  }
  if (status == RUTC_OK) status = choose_program(session);
  if (status == RUTC_OK) {
    status = rutc_weights_open(&session->weights, session->model, session->program,
                               &session->options, &thread_error);
  }
  if (status == RUTC_OK) status = allocate(session);
  if (status != RUTC_OK) return status;
  if (session->program->state_count > 0) status = rutc_states_open(session);
  if (status != RUTC_OK) {
    thread_error = session->error;
    return status;
  }
  const rutc_program *program = session->program;
  if (program->keeper != NULL &&
      program->keeper->open(&session->strings, program->strings, program->string_count) != 0) {
    status = rutc_fail(&thread_error, RUTC_OUT_OF_MEMORY, "no memory for the model's strings");
  }
  if (status != RUTC_OK) return status;
  session->keeps_last = has_handles(program->ports, program->input_count) &&
                        has_handles(program->ports + program->input_count, program->output_count);
  if (program->symbol_count == 0) status = rutc_resize(session);
  if (program->symbol_count == 0 && status == RUTC_OK) rutc_shape_outputs(session);
  if (status != RUTC_OK) {
    thread_error = session->error;
    return status;
  }
  if (session->options.threads > 1 && session->options.parallel_for == NULL) {
    session->pool = rutc_pool_create(session->options.threads, session->options.pin_threads,
                                     &thread_error, &status);
  }
  if (session->timings != NULL) rutc_time_clock(session);
  return status;
}

rutc_session *rutc_session_open(const rutc_model *model, const rutc_options *options) {
  rutc_session *session = calloc(1, sizeof *session);
  if (session == NULL) {
    rutc_fail(&thread_error, RUTC_OUT_OF_MEMORY, "no memory for a session");
    return NULL;
  }
  session->model = model;
  session->forks = fork_count();
  atomic_init(&session->known_forks, session->forks);
  pthread_mutex_init(&session->mutex, NULL);
  uint64_t mode = rutc_enter_float_mode(1);
  int status = open_session(session, options);
  rutc_set_float_mode(mode);
  if (status == RUTC_OK) return session;
  rutc_session_close(session);
  return NULL;
}

void rutc_session_close(rutc_session *session) {
  if (session == NULL) return;
  if (session->forks == fork_count()) rutc_pool_destroy(session->pool);
  rutc_weights_close(&session->weights);
  if (session->bindings != NULL) {
    int32_t ports = session->program->input_count + session->program->output_count;
    for (int32_t i = 0; i < ports; i++) {
      free(session->bindings[i].memory);
      free(session->bindings[i].shape);
    }
  }
  if (session->states != NULL) rutc_states_close(session);
  for (int64_t i = 0; session->blocks != NULL && i < session->program->block_count; i++) {
    free(session->blocks[i].memory);
  }
  free(session->blocks);
  free(session->bindings);
  free(session->operands);
  free(session->draws);
  if (session->program != NULL && session->program->keeper != NULL) {
    session->program->keeper->close(&session->strings, &session->boxes, &session->last_boxes);
  }
  free(session->scratch.memory);
  free(session->timings);
  free(session->sizes);
  free(session->operand_shapes);
  free(session->parts);
  free(session->thread_scratch);
  free(session->buffers);
  free(session->arena);
  pthread_mutex_destroy(&session->mutex);
  free(session);
}

static int check_counts(rutc_session *session, const DLTensor *const *inputs, int32_t input_count,
                        DLTensor *const *outputs, int32_t output_count) {
  const rutc_program *program = session->program;
  int32_t taken = program->input_count - program->state_count;
  int32_t given = program->output_count - program->state_count;
  if (input_count != taken || output_count != given) {
    return rutc_fail(&session->error, RUTC_BAD_ARGUMENT,
                     "the model takes %d input%s and %d output%s, not %d and %d", (int)taken,
                     rutc_plural(taken), (int)given, rutc_plural(given), (int)input_count,
                     (int)output_count);
  }
  if ((inputs == NULL && input_count > 0) || (outputs == NULL && output_count > 0)) {
    return rutc_fail(&session->error, RUTC_BAD_ARGUMENT, "the array of %s is NULL",
                     inputs == NULL && input_count > 0 ? "inputs" : "outputs");
  }
  return RUTC_OK;
}

static int run(rutc_session *session, const DLTensor *const *inputs, int32_t input_count,
               DLTensor *const *outputs, int32_t output_count) {
  if (session->pool != NULL && session->forks != fork_count()) {
    return rutc_fail(&session->error, RUTC_UNSUPPORTED,
                     "the session was opened before fork() and its threads did not survive; open "
                     "a session in this process, or use threads = 1");
  }
  int status = check_counts(session, inputs, input_count, outputs, output_count);
  if (status == RUTC_OK) status = rutc_bind_sizes(session, rutc_states_join(session, inputs));
  if (status == RUTC_OK) status = rutc_states_check(session);
  if (status == RUTC_OK) status = rutc_bind(session, inputs, outputs);
  if (status != RUTC_OK) return status;
  rutc_states_bind(session);
  if (session->program->keeper != NULL) {
    session->program->keeper->reset(&session->strings, &session->boxes,
                                    session->keeps_last ? &session->last_boxes : NULL);
  }
  status = rutc_execute(session);
  if (status == RUTC_OK) status = rutc_unbind(session, outputs);
  if (status == RUTC_OK) rutc_states_advance(session);
  return status;
}

static int output_shapes(rutc_session *session, const DLTensor *const *inputs, int32_t input_count,
                         DLTensor *const *outputs, int32_t output_count) {
  const rutc_program *program = session->program;
  int status = check_counts(session, inputs, input_count, outputs, output_count);
  if (status == RUTC_OK) status = rutc_bind_sizes(session, rutc_states_join(session, inputs));
  if (status == RUTC_OK) status = rutc_states_check(session);
  if (status != RUTC_OK) return status;
  for (int32_t i = 0; i < output_count; i++) {
    const rutc_port *port = &program->ports[program->input_count + i];
    int64_t *shape = session->bindings[program->input_count + i].shape;
    for (int32_t d = 0; port->block >= 0 && d < port->ndim; d++) {
      shape[d] = port->shape[d] >= 0 ? port->shape[d] : -1;
    }
    DLTensor *output = outputs[i];
    if (output == NULL || (output->shape != NULL && output->ndim != port->ndim)) {
      return rutc_fail(&session->error, RUTC_BAD_ARGUMENT,
                       "the descriptor of output \"%s\" must have %d dimension%s, or no shape",
                       port->name, (int)port->ndim, rutc_plural(port->ndim));
    }
    output->device = (DLDevice){kDLCPU, 0};
    output->dtype = (DLDataType){port->dtype_code, port->dtype_bits, 1};
    output->ndim = port->ndim;
    if (output->shape == NULL) {
      output->shape = shape;
    } else if (output->shape != shape) {
      memcpy(output->shape, shape, (size_t)port->ndim * sizeof *shape);
    }
  }
  return RUTC_OK;
}

/* Fails where the session was in a run at a fork() that made this process: the run's thread is not
 * here, and holds the session for ever. One thread finds out, under a lock that no fork() leaves so. */
static int check_forks(rutc_session *session) {
  if (atomic_load_explicit(&session->known_forks, memory_order_acquire) != fork_count()) {
    rutc_mappings_lock();
    if (atomic_load_explicit(&session->known_forks, memory_order_relaxed) != fork_count()) {
      session->stuck = pthread_mutex_trylock(&session->mutex) != 0;
      if (session->stuck) {
        rutc_fail(&session->error, RUTC_UNSUPPORTED,
                  "another thread was in a run of the session at fork(); open a session in this "
                  "process");
      } else {
        pthread_mutex_unlock(&session->mutex);
      }
      atomic_store_explicit(&session->known_forks, fork_count(), memory_order_release);
    }
    rutc_mappings_unlock();
  }
  return session->stuck ? RUTC_UNSUPPORTED : RUTC_OK;
}

/* Locks the session if it is one of the model, and sets its mode; `mode` receives the caller's. */
static int enter(rutc_session *session, const rutc_model *model, uint64_t *mode) {
  if (session == NULL) {
    return rutc_fail(&thread_error, RUTC_BAD_ARGUMENT, "the session is NULL");
  }
  if (session->model != model) {
    return rutc_fail(&thread_error, RUTC_BAD_ARGUMENT, "the session is one of another model");
  }
  int status = check_forks(session);
  if (status != RUTC_OK) return status;
  pthread_mutex_lock(&session->mutex);
  *mode = rutc_enter_float_mode(session->program->keep_subnormals);
  return RUTC_OK;
}

static void leave(rutc_session *session, uint64_t mode) {
  rutc_set_float_mode(mode);
  pthread_mutex_unlock(&session->mutex);
}

int rutc_session_output_shapes(rutc_session *session, const rutc_model *model,
                               const DLTensor *const *inputs, int32_t input_count,
                               DLTensor *const *outputs, int32_t output_count) {
  uint64_t mode = 0;
  int status = enter(session, model, &mode);
  if (status != RUTC_OK) return status;
  status = output_shapes(session, inputs, input_count, outputs, output_count);
  leave(session, mode);
  return status;
}

int rutc_session_run(rutc_session *session, const rutc_model *model,
                     const DLTensor *const *inputs, int32_t input_count, DLTensor *const *outputs,
                     int32_t output_count) {
  uint64_t mode = 0;
  int status = enter(session, model, &mode);
  if (status != RUTC_OK) return status;
  status = run(session, inputs, input_count, outputs, output_count);
  leave(session, mode);
  return status;
}

int rutc_session_keep_output(rutc_session *session, const rutc_model *model,
                             const DLTensor *output) {
  uint64_t mode = 0;
  if (output == NULL || output->data == NULL || enter(session, model, &mode) != RUTC_OK) return 0;
  const rutc_program *program = session->program;
  int kept = 0;
  for (int32_t i = 0; i < program->output_count; i++) {
    int64_t number = program->ports[program->input_count + i].block;
    rutc_region_memory *block = number < 0 ? NULL : &session->blocks[number];
    if (block == NULL || block->memory != output->data) continue;
    /* The next run reserves it anew. */
    *block = (rutc_region_memory){.passes = 1};
    kept = 1;
  }
  leave(session, mode);
  return kept;
}

int rutc_session_reset(rutc_session *session, const rutc_model *model) {
  uint64_t mode = 0;
  int status = enter(session, model, &mode);
  if (status != RUTC_OK) return status;
  rutc_states_reset(session);
  leave(session, mode);
  return RUTC_OK;
}

int rutc_session_get_state(rutc_session *session, const rutc_model *model, const char *name,
                           DLTensor *state) {
  uint64_t mode = 0;
  int status = enter(session, model, &mode);
  if (status != RUTC_OK) return status;
  status = rutc_states_get(session, name, state);
  leave(session, mode);
  return status;
}

int rutc_session_set_state(rutc_session *session, const rutc_model *model, const char *name,
                           const DLTensor *state) {
  uint64_t mode = 0;
  int status = enter(session, model, &mode);
  if (status != RUTC_OK) return status;
  status = rutc_states_set(session, name, state);
  leave(session, mode);
  return status;
}

int32_t rutc_session_profile(rutc_session *session, rutc_profile_entry *entries,
                             int32_t capacity) {
  if (session == NULL || session->timings == NULL || check_forks(session) != RUTC_OK) return 0;
  pthread_mutex_lock(&session->mutex);
  int32_t count = 0;
  for (int64_t i = 0; i < session->program->step_count; i++) {
    const rutc_step *step = &session->program->steps[i];
    if (step->op != RUTC_LAUNCH && step->op != RUTC_CALL && step->op != RUTC_COPY) continue;
    if (count < capacity && entries != NULL) {
      const rutc_timing *timing = &session->timings[i];
      entries[count] = (rutc_profile_entry){step->name, step->origin, timing->calls,
                                            (double)timing->ns / 1000.0};
    }
    count++;
  }
  pthread_mutex_unlock(&session->mutex);
  return count;
}

const char *rutc_session_error(const rutc_session *session, const rutc_model *model) {
  return session == NULL || session->model != model ? thread_error.text : session->error.text;
}

#ifdef RUTC_TARGETS
rutc_error *rutc_thread_error(void) { return &thread_error; }
#endif
