#define _GNU_SOURCE
#include <string.h>

#include "clock.h"
#include "session.h"

typedef struct launch {
  rutc_kernel kernel;
  void *const *buffers;
  const int64_t *symbols;
  int64_t tasks;
  int64_t parts;
} launch;

/* Part `index` of an even split of the tasks; the first `tasks % parts` parts have one more. */
static void run_part(void *arg, int64_t index) {
  const launch *self = arg;
  int64_t each = self->tasks / self->parts;
  int64_t more = self->tasks % self->parts;
  int64_t begin = index * each + (index < more ? index : more);
  int64_t end = begin + each + (index < more);
  self->kernel(self->buffers, self->symbols, begin, end);
}

static void run_launch(rutc_session *session, const rutc_step *step) {
  void *const *buffers = session->buffers + step->buffer;
  int64_t threads = session->options.threads;
  if (step->count <= 1 || threads == 1) {
    if (step->count > 0) step->kernel(buffers, session->symbols, 0, step->count);
    return;
  }
  int64_t parts = step->count < threads ? step->count : threads;
  launch job = {step->kernel, buffers, session->symbols, step->count, parts};
  if (session->options.parallel_for != NULL) {
    session->options.parallel_for(session->options.pool, run_part, &job, parts);
  } else {
    rutc_pool_run(session->pool, (int)parts, run_part, &job);
  }
}

/* Runs step `at` and returns the number of the next one. */
static int64_t run_step(rutc_session *session, const rutc_step *step, int64_t at) {
  void **buffers = session->buffers + step->buffer;
  switch (step->op) {
    case RUTC_LAUNCH:
      run_launch(session, step);
      break;
    case RUTC_COPY:
      if (step->count > 0) memmove(buffers[0], buffers[1], (size_t)step->count);
      break;
    case RUTC_BRANCH:
      return *(const uint8_t *)buffers[0] != 0 ? at + 1 : step->target;
    case RUTC_JUMP:
      return step->target;
    case RUTC_REPEAT:
      session->symbols[step->symbol] = 0;
      return step->count > 0 ? at + 1 : step->target;
    case RUTC_FAIL: /* ends the run before it comes here */
    case RUTC_NEXT:
      return ++session->symbols[step->symbol] < step->count ? step->target : at + 1;
  }
  return at + 1;
}

static int execute_steps(rutc_session *session) {
  const rutc_step *steps = session->program->steps;
  int64_t count = session->program->step_count;
  for (int64_t at = 0; at < count;) {
    if (steps[at].op == RUTC_FAIL) {
      return rutc_fail(&session->error, RUTC_RUN_FAILED, "%s", steps[at].name);
    }
    if (session->timings == NULL) {
      at = run_step(session, &steps[at], at);
    } else {
      rutc_timing *timing = &session->timings[at];
      int64_t start = rutc_now_ns();
      at = run_step(session, &steps[at], at);
      timing->ns += rutc_now_ns() - start;
      timing->calls++;
    }
  }
  return RUTC_OK;
}

int rutc_execute(rutc_session *session) {
  if (session->pool != NULL) rutc_pool_busy(session->pool, 1);
  int status = execute_steps(session);
  if (session->pool != NULL) rutc_pool_busy(session->pool, 0);
  return status;
}
