#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "float_mode.h"
#include "session.h"
#include "timing.h"

enum { LINE = 64 };

typedef struct turns {
  rutc_session *session;
  const rutc_step *steps; /* the launches, or a loop of them */
  int64_t step_count;
  const rutc_turns *shape;
  int64_t buffer; /* the first one */
  int64_t trips;
  int64_t threads;
} turns;

/* What a thread has for itself: the scratch of kernels, the buffers of all launches, what is near. */
typedef struct place {
  char *scratch;
  void **buffers;
  char *near;
} place;

static place place_of(const turns *self, int64_t thread) {
  int64_t each = self->session->scratch_bytes;
  size_t bytes = (size_t)self->shape->buffer_count * sizeof(void *);
  place own = {.scratch = self->session->thread_scratch + thread * each};
  own.near = own.scratch + each - rutc_size(self->session->sizes, self->shape->near_bytes);
  own.buffers = (void **)(void *)(own.near - (bytes + LINE - 1) / LINE * LINE);
  memcpy(own.buffers, self->session->buffers + self->buffer, bytes);
  return own;
}

/* What is near lies where this index would be if memory began with the first one. */
static void point_to(const turns *self, const place *own, int64_t trip) {
  const rutc_near *nears = self->session->program->nears + self->shape->near;
  const int64_t *sizes = self->session->sizes;
  for (int64_t i = 0; i < self->shape->near_count; i++) {
    uintptr_t address = (uintptr_t)(own->near + rutc_size(sizes, nears[i].offset));
    int64_t before = trip * rutc_size(sizes, nears[i].bytes);
    own->buffers[nears[i].buffer] = (void *)(address - (uintptr_t)before);
  }
}

static int64_t started(const rutc_session *session) {
  return session->timings != NULL ? rutc_step_ns(session) : 0;
}

/* Each of `threads` threads does other launches meanwhile. */
static void ended(rutc_session *session, const rutc_step *step, int64_t start, int64_t threads) {
  if (session->timings != NULL) rutc_add_call(session, step, start, threads);
}

/* Does all launches for one index on the calling thread. */
static void run_index(const turns *self, int64_t trip, const place *own) {
  rutc_session *session = self->session;
  int64_t symbols[RUTC_MAX_SYMBOLS + 1];
  point_to(self, own, trip);
  for (int64_t i = 0; i < self->step_count; i++) {
    const rutc_step *step = &self->steps[i];
    rutc_read_symbols(session, step, own->scratch, symbols);
    int64_t tasks = rutc_size(session->sizes, step->count) / self->trips;
    int64_t start = started(session);
    step->kernel(own->buffers + (step->buffer - self->buffer), symbols, trip * tasks,
                 (trip + 1) * tasks);
    ended(session, step, start, self->threads);
  }
}

/* A thread at work, and what it has for itself. */
typedef struct thread_turns {
  const turns *turns;
  const place *own;
} thread_turns;

static void run_indices(const void *arg, const rutc_part *part, int64_t begin, int64_t end) {
  const thread_turns *self = arg;
  for (int64_t i = begin; i < end; i++) run_index(self->turns, part->begin + i, self->own);
}

static void run_turns(void *arg, int64_t thread) {
  const turns *self = arg;
  rutc_session *session = self->session;
  place own = place_of(self, thread);
  thread_turns mine = {.turns = self, .own = &own};
  uint64_t mode = rutc_enter_float_mode(session->program->keep_subnormals);
  rutc_take_parts(session->parts, self->threads, thread, run_indices, &mine);
  rutc_set_float_mode(mode);
}

/* Does all launches for one index, each on all threads. */
static void share_index(const turns *self, int64_t trip, const place *own) {
  rutc_session *session = self->session;
  point_to(self, own, trip);
  for (int64_t i = 0; i < self->step_count; i++) {
    const rutc_step *step = &self->steps[i];
    int64_t tasks = rutc_size(session->sizes, step->count) / self->trips;
    int64_t of_all = rutc_size(session->sizes, step->target);
    int64_t each = of_all % self->trips == 0 ? of_all / self->trips : 1;
    int64_t start = started(session);
    rutc_launch(session, step, own->buffers + (step->buffer - self->buffer), trip * tasks, tasks,
                each == 0 || tasks % each == 0 ? each : 1);
    ended(session, step, start, 1);
  }
}

/* Whether one of the launches is worth several threads. */
static int is_large(const rutc_session *session, const turns *self) {
  int large = 0;
  for (int64_t i = 0; i < self->step_count; i++) {
    large |= rutc_size(session->sizes, self->steps[i].target) != 0;
  }
  return large;
}

/* The counter of a loop: its place in the table of sizes, where each thread would see another's. */
typedef struct counter {
  int64_t place;
  int64_t value;
} counter;

static void launch_part(const turns *self, const rutc_step *step, const counter *trip, void *scratch,
                        int64_t begin, int64_t end) {
  const rutc_session *session = self->session;
  const int64_t *places = session->program->launch_symbols + step->symbol;
  int64_t symbols[RUTC_MAX_SYMBOLS + 1];
  rutc_read_symbols(session, step, scratch, symbols);
  for (int64_t i = 0; i < step->symbol_count; i++) {
    if (places[i] == trip->place) symbols[i] = trip->value;
  }
  int64_t tasks = rutc_size(session->sizes, step->count) / self->trips;
  step->kernel(session->buffers + step->buffer, symbols, begin * tasks, end * tasks);
}

static void copy_part(const turns *self, const rutc_step *step, int64_t begin, int64_t end) {
  void *const *buffers = self->session->buffers + step->buffer;
  int64_t bytes = rutc_size(self->session->sizes, step->count) / self->trips;
  if (end * bytes == begin * bytes) return;
  memmove((char *)buffers[0] + begin * bytes, (const char *)buffers[1] + begin * bytes,
          (size_t)((end - begin) * bytes));
}

/* A thread that does trips of a loop, and its memory for kernels. */
typedef struct thread_loop {
  const turns *turns;
  void *scratch;
} thread_loop;

/* Does all trips of a loop for the indices of a part: their tasks, and their part of copies. */
static void run_loop(const void *arg, const rutc_part *part, int64_t begin, int64_t end) {
  const thread_loop *mine = arg;
  const turns *self = mine->turns;
  rutc_session *session = self->session;
  const rutc_step *loop = self->steps, *next = loop + self->step_count - 1;
  int64_t trips = rutc_size(session->sizes, loop->count);
  counter trip = {.place = loop->symbol};
  for (; trip.value < trips; trip.value++) {
    for (const rutc_step *step = loop + 1; step < next; step++) {
      int64_t start = started(session);
      if (step->op == RUTC_COPY) {
        copy_part(self, step, part->begin + begin, part->begin + end);
      } else {
        launch_part(self, step, &trip, mine->scratch, part->begin + begin, part->begin + end);
      }
      ended(session, step, start, self->threads);
    }
  }
}

static void run_loop_parts(void *arg, int64_t thread) {
  const turns *self = arg;
  rutc_session *session = self->session;
  char *scratch = session->thread_scratch + thread * session->scratch_bytes;
  thread_loop mine = {.turns = self, .scratch = scratch};
  uint64_t mode = rutc_enter_float_mode(session->program->keep_subnormals);
  rutc_take_parts(session->parts, self->threads, thread, run_loop, &mine);
  rutc_set_float_mode(mode);
}

/* Each thread does all trips of a loop for a part of the indices. */
static void share_loop(turns *self) {
  rutc_session *session = self->session;
  if (self->threads > self->trips) self->threads = self->trips;
  rutc_share_out(session->parts, 1, self->trips, self->threads, 1);
  if (self->threads == 1) {
    run_loop_parts(self, 0);
  } else {
    rutc_run_on(session, self->threads, run_loop_parts, self);
  }
}

/* As many indices as threads have the same number of are theirs; on the others all work together. */
void rutc_take_turns(rutc_session *session, const rutc_step *step) {
  turns self = {.session = session,
                .steps = step + 1,
                .step_count = step->target - (step - session->program->steps) - 1,
                .shape = &session->program->turns[step->symbol],
                .buffer = step->buffer,
                .trips = rutc_size(session->sizes, step->count),
                .threads = session->threads};
  if (self.steps[0].op == RUTC_REPEAT) {
    share_loop(&self);
    return;
  }
  self.threads = is_large(session, &self) ? session->threads : 1;
  int64_t own = self.trips - self.trips % self.threads;
  if (own > 0) {
    rutc_share_out(session->parts, 1, own, self.threads, own);
    if (self.threads == 1) {
      run_turns(&self, 0);
    } else {
      rutc_run_on(session, self.threads, run_turns, &self);
    }
  }
  if (own < self.trips) {
    place shared = place_of(&self, 0);
    for (int64_t trip = own; trip < self.trips; trip++) share_index(&self, trip, &shared);
  }
}
