/* Sessions: what the functions of entry.h work on.
 *
 * session.c opens and closes, resize.c gives the sizes their values, bind.c connects the caller's
 * tensors, states.c what one run leaves for the next, execute.c runs the steps.
 */
#ifndef RUTC_SESSION_H
#define RUTC_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "entry.h"
#include "error.h"
#include "overlap.h"
#include "parts.h"
#include "pool.h"
#include "program.h"
#include "rutc_dlpack.h"
#include "small_run.h"
#include "states.h"
#include "weights.h"

/* Counts and times of one step. */
typedef struct rutc_timing {
  atomic_llong calls;
  atomic_llong ns; /* of threads that do different ones at once, their mean */
} rutc_timing;

/* What a run knows of one input or output. */
typedef struct rutc_binding {
  char *bound;  /* where the kernels find it; the buffer table holds addresses from here */
  char *memory; /* owned by the session, allocated when first needed: a dense copy of a strided
                   tensor, or an output that the caller gave no memory for */
  int64_t capacity; /* bytes of `memory` */
  int64_t *shape; /* the port's, at the sizes of this run */
  int saved; /* whether the input was copied before the outputs got their memory */
  rutc_span given; /* where the caller's tensor for an output lies */
} rutc_binding;

/* Memory for values of a size that the program computes. */
typedef struct rutc_region_memory {
  char *memory;
  int64_t capacity; /* bytes */
  int passes; /* whether the caller kept the last one, and may keep all to come */
} rutc_region_memory;

struct rutc_session {
  const rutc_model *model;
  const rutc_program *program; /* the model's first one that this CPU can run */
  rutc_options options; /* with the thread count filled in */
  pthread_mutex_t mutex;
  unsigned forks; /* of the process when it was opened: threads do not survive fork() */
  atomic_uint known_forks; /* up to which is known whether a run was going on at one */
  int stuck; /* whether one was, whose thread is not in this process */
  rutc_pool *pool; /* NULL: one thread, or an external pool */
  rutc_part *parts; /* one per thread */
  int64_t threads;  /* of the run at hand */
  rutc_small_run small_run;
  char *thread_scratch; /* `scratch_bytes` for each thread; the last of them are for launches in turn:
                           their buffers, and at the end what is near */
  int64_t scratch_bytes;
  rutc_weights weights;
  char *arena;
  int64_t arena_capacity;
  int64_t *sizes; /* symbols, counters of loops, and what is computed from the symbols */
  int sized;      /* whether the sizes have values, and memory is there for them */
  void **buffers;    /* program->buffers as addresses */
  rutc_region_memory *blocks;
  rutc_binding *bindings; /* inputs, then outputs */
  rutc_held *states;
  char *state_memory; /* of all states, and of what follows those that are not in place */
  const DLTensor **inputs; /* of the run at hand: the caller's, then the states */
  DLTensor *operands; /* of the call at hand */
  int64_t *operand_shapes; /* RUTC_MAX_NDIM for each */
  rutc_scratch scratch;
  rutc_strings strings;
  rutc_boxes boxes;
  rutc_boxes last_boxes; /* those of the run before, if they are kept */
  int keeps_last; /* whether strings and boxes of one run may be inputs of the next */
  int lends;      /* whether the caller has been given memory of the session */
  uint64_t *draws; /* how often each of program->calls was made */
  rutc_timing *timings; /* one per step; NULL: not asked for */
  int64_t clock_ns;     /* what is in the time of a step and is none of its own: its clock's */
  rutc_error error;
};

/* The error of the calling thread's last failed open. Only libraries of several targets have this
 * function, whose sources are compiled with RUTC_TARGETS. */
rutc_error *rutc_thread_error(void);

/* Gives the size of a step RUTC_BIND its value. */
int rutc_learn_size(rutc_session *session, const rutc_step *step);

/* Returns memory for so many bytes of scratch of each thread; NULL without memory. */
char *rutc_allocate_scratch(const rutc_session *session, int64_t each);

/* Makes the block of a step RUTC_RESERVE large enough, or the scratch of threads. */
int rutc_reserve(rutc_session *session, const rutc_step *step);

/* Computes all sizes from the symbols, allocates the arena and points the buffer table to it. Of the
 * ports' shapes it fills in those of the inputs. */
int rutc_resize(rutc_session *session);

/* Fills in the outputs' shapes, after rutc_resize: a tensor of the caller may have its shape there
 * from the run before, so inputs are checked first. */
void rutc_shape_outputs(rutc_session *session);

/* Points the buffers that lie in a port to its memory. */
void rutc_point_port(rutc_session *session, int32_t port, char *address);

/* Checks the inputs' types and shapes, and gives the symbols the values that these tell. */
int rutc_bind_sizes(rutc_session *session, const DLTensor *const *inputs);

/* Checks the caller's tensors and points the buffer table to them, after rutc_bind_sizes. */
int rutc_bind(rutc_session *session, const DLTensor *const *inputs, DLTensor *const *outputs);

/* Hands out what was computed in session memory, by copies to the caller's tensors. */
int rutc_unbind(rutc_session *session, DLTensor *const *outputs);

/* Does the launches that follow a step RUTC_IN_TURN, index by index. */
void rutc_take_turns(rutc_session *session, const rutc_step *step);

/* Runs tasks of a launch on the session's threads; `turns` as in RUTC_LAUNCH. */
void rutc_launch(rutc_session *session, const rutc_step *step, void *const *buffers, int64_t first,
                 int64_t tasks, int64_t turns);

/* What a kernel is given beside its buffers: its sizes, of which there are RUTC_MAX_SYMBOLS at most,
 * then a thread's scratch. */
void rutc_read_symbols(const rutc_session *session, const rutc_step *step, void *scratch,
                       int64_t *symbols);

/* Runs a task on so many of the session's threads. */
void rutc_run_on(rutc_session *session, int64_t count, void (*task)(void *arg, int64_t index),
                 void *arg);

/* Executes all steps of the program. */
int rutc_execute(rutc_session *session);

#endif
