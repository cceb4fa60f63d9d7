#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "clock.h"
#include "float_mode.h"
#include "session.h"
#include "timing.h"

enum { CLAIMS_PER_PART = 8 };

typedef struct launch {
  rutc_kernel kernel;
  void *const *buffers;
  const int64_t *symbols;
  int64_t symbol_count;
  int64_t first; /* task */
  rutc_part *parts;
  int64_t count;
  int64_t run; /* tasks of a turn */
  char *scratch;
  int64_t scratch_bytes;
  int keep_subnormals;
} launch;

/* What a thread knows of a launch. */
typedef struct thread_launch {
  const launch *job;
  const int64_t *symbols;
} thread_launch;

/* Runs the tasks [begin, end) of a part, turn by turn. */
static void run_claim(const void *arg, const rutc_part *part, int64_t begin, int64_t end) {
  const thread_launch *self = arg;
  const launch *job = self->job;
  while (begin < end) {
    int64_t turn = begin / part->size, skipped = begin % part->size;
    int64_t count = part->size - skipped < end - begin ? part->size - skipped : end - begin;
    int64_t first = job->first + turn * job->run + part->begin + skipped;
    job->kernel(job->buffers, self->symbols, first, first + count);
    begin += count;
  }
}

static void run_parts(void *arg, int64_t index) {
  const launch *job = arg;
  int64_t symbols[RUTC_MAX_SYMBOLS + 1];
  for (int64_t i = 0; i < job->symbol_count; i++) symbols[i] = job->symbols[i];
  symbols[job->symbol_count] = (int64_t)(intptr_t)(job->scratch + index * job->scratch_bytes);
  thread_launch self = {.job = job, .symbols = symbols};
  uint64_t mode = rutc_enter_float_mode(job->keep_subnormals);
  rutc_take_parts(job->parts, job->count, index, run_claim, &self);
  rutc_set_float_mode(mode);
}

void rutc_run_on(rutc_session *session, int64_t count, void (*task)(void *arg, int64_t index),
                 void *arg) {
  session->small_run.launched = 1;
  if (session->options.parallel_for != NULL) {
    session->options.parallel_for(session->options.pool, task, arg, count);
  } else {
    rutc_pool_run(session->pool, (int)count, task, arg);
  }
}

void rutc_read_symbols(const rutc_session *session, const rutc_step *step, void *scratch,
                       int64_t *symbols) {
  const int64_t *places = session->program->launch_symbols + step->symbol;
  for (int64_t i = 0; i < step->symbol_count; i++) symbols[i] = session->sizes[places[i]];
  symbols[step->symbol_count] = (int64_t)(intptr_t)scratch;
}

void rutc_launch(rutc_session *session, const rutc_step *step, void *const *buffers, int64_t first,
                 int64_t tasks, int64_t turns) {
  int64_t threads = session->threads;
  int64_t symbols[RUTC_MAX_SYMBOLS + 1];
  rutc_read_symbols(session, step, session->thread_scratch, symbols);
  if (tasks <= 1 || threads == 1 || turns == 0) {
    if (tasks > 0) step->kernel(buffers, symbols, first, first + tasks);
    return;
  }
  if (tasks / turns < threads) turns = 1;
  int64_t run = tasks / turns, count = run < threads ? run : threads;
  rutc_share_out(session->parts, turns, run, count, CLAIMS_PER_PART);
  launch job = {.kernel = step->kernel,
                .buffers = buffers,
                .symbols = symbols,
                .symbol_count = step->symbol_count,
                .first = first,
                .parts = session->parts,
                .count = count,
                .run = run,
                .scratch = session->thread_scratch,
                .scratch_bytes = session->scratch_bytes,
                .keep_subnormals = session->program->keep_subnormals};
  rutc_run_on(session, count, run_parts, &job);
}

static void run_launch(rutc_session *session, const rutc_step *step) {
  rutc_launch(session, step, session->buffers + step->buffer, 0,
              rutc_size(session->sizes, step->count), rutc_size(session->sizes, step->target));
}

/* Describes the operands and results of a call, whose addresses are in the buffer table. */
static int run_call(rutc_session *session, const rutc_step *step) {
  const rutc_call_site *site = &session->program->calls[step->target];
  void **buffers = session->buffers + step->buffer;
  for (int32_t i = 0; i < site->arg_count + site->out_count; i++) {
    const rutc_operand *operand = &site->operands[i];
    int64_t *shape = session->operand_shapes + i * RUTC_MAX_NDIM;
    for (int32_t d = 0; d < operand->ndim; d++) {
      shape[d] = rutc_size(session->sizes, operand->shape[d]);
    }
    session->operands[i] = (DLTensor){.data = buffers[i],
                                      .device = {kDLCPU, 0},
                                      .ndim = operand->ndim,
                                      .dtype = operand->dtype,
                                      .shape = shape};
  }
  rutc_call call = {.args = session->operands,
                    .outs = session->operands + site->arg_count,
                    .arg_count = site->arg_count,
                    .out_count = site->out_count,
                    .attributes = site->attributes,
                    .attribute_count = site->attribute_count,
                    .origin = step->origin,
                    .draws = session->draws[step->target]++,
                    .scratch = &session->scratch,
                    .strings = &session->strings,
                    .boxes = &session->boxes,
                    .depth = (int32_t)step->symbol,
                    .error = &session->error};
  return site->routine(&call);
}

enum { FAILED = -1 };

/* Runs step `at` and returns the number of the next one, or FAILED with the error's status. */
static int64_t run_step(rutc_session *session, const rutc_step *step, int64_t at, int *status) {
  void **buffers = session->buffers + step->buffer;
  int64_t count = rutc_size(session->sizes, step->count);
  switch (step->op) {
    case RUTC_LAUNCH:
      run_launch(session, step);
      break;
    case RUTC_IN_TURN:
      rutc_take_turns(session, step);
      return step->target;
    case RUTC_COPY:
      if (count > 0) memmove(buffers[0], buffers[1], (size_t)count);
      break;
    case RUTC_BRANCH:
      return *(const uint8_t *)buffers[0] != 0 ? at + 1 : step->target;
    case RUTC_UNLESS:
      return count > 0 ? at + 1 : step->target;
    case RUTC_JUMP:
      return step->target;
    case RUTC_REPEAT:
      session->sizes[step->symbol] = 0;
      return count > 0 ? at + 1 : step->target;
    case RUTC_CALL:
      *status = run_call(session, step);
      return *status == RUTC_OK ? at + 1 : FAILED;
    case RUTC_BIND:
      *status = rutc_learn_size(session, step);
      return *status == RUTC_OK ? at + 1 : FAILED;
    case RUTC_RESERVE:
      *status = rutc_reserve(session, step);
      return *status == RUTC_OK ? at + 1 : FAILED;
    case RUTC_FAIL:
      *status = rutc_fail(&session->error, RUTC_RUN_FAILED, "%s", step->name);
      return FAILED;
    case RUTC_NEXT:
      return ++session->sizes[step->symbol] < count ? step->target : at + 1;
  }
  return at + 1;
}

static int execute_steps(rutc_session *session) {
  const rutc_step *steps = session->program->steps;
  int64_t count = session->program->step_count;
  int status = RUTC_OK;
  for (int64_t at = 0; at != FAILED && at < count;) {
    if (session->timings == NULL) {
      at = run_step(session, &steps[at], at, &status);
    } else {
      const rutc_step *step = &steps[at];
      int64_t start = rutc_step_ns(session);
      at = run_step(session, step, at, &status);
      rutc_add_call(session, step, start, 1);
    }
  }
  return status;
}

static int execute_on(rutc_session *session, int64_t threads) {
  session->threads = threads;
  if (threads > 1 && session->pool != NULL) rutc_pool_busy(session->pool, 1);
  int status = execute_steps(session);
  if (threads > 1 && session->pool != NULL) rutc_pool_busy(session->pool, 0);
  return status;
}

int rutc_execute(rutc_session *session) {
  int64_t threads = session->options.threads;
  if (threads == 1 || !rutc_size(session->sizes, session->program->small)) {
    return execute_on(session, threads);
  }
  /* Nobody knows whether the threads of another pool are awake. */
  if (session->pool == NULL) return execute_on(session, 1);
  int64_t began_ns = rutc_now_ns();
  int shared = rutc_small_run_shares(&session->small_run, session->pool, began_ns);
  int status = execute_on(session, shared ? threads : 1);
  rutc_small_run_ends(&session->small_run, shared, began_ns, rutc_now_ns());
  return status;
}
