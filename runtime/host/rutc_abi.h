/* Types shared by all models compiled by rutc: status codes, options, profile entries. */
#ifndef RUTC_ABI_H
#define RUTC_ABI_H

#include <stdint.h>

#define RUTC_ABI_VERSION 1

/* The stack, in bytes, that a thread has to have left when it calls a model or runs a task that
 * parallel_for was given. */
#define RUTC_STACK_BYTES 262144

/* What a call answers. Anything but RUTC_OK leaves a message for NAME_last_error. */
enum {
  RUTC_OK = 0,
  RUTC_BAD_ARGUMENT = 1,  /* a NULL pointer, a wrong count, an option out of range */
  RUTC_BAD_TENSOR = 2,    /* a tensor with the wrong dtype, shape, device, alignment or strides */
  RUTC_OUT_OF_MEMORY = 3, /* an allocation failed */
  RUTC_UNSUPPORTED = 4,   /* this machine or process cannot run the model */
  RUTC_SYSTEM = 5,        /* the operating system refused something, such as a thread */
  RUTC_RUN_FAILED = 6,    /* the inputs lead to a part of the model that cannot run */
  RUTC_STATE_FULL = 7     /* a state has no room for what the run would append */
};

/* Options of NAME_open. Zero in a field means its default, so begin with
 * `rutc_options options = {.struct_size = sizeof options};`. */
typedef struct rutc_options {
  uint32_t struct_size;  /* sizeof(rutc_options): tells old callers from new ones */
  int32_t threads;       /* threads of a run, the caller's included; 0: all CPUs that the process
                            may use, by its affinity mask and its cgroup's quota */
  int32_t pin_threads;   /* not 0: every thread of the pool stays on one CPU of the affinity mask */
  int32_t profile;       /* not 0: measure every step, for NAME_profile: of one thread its processor
                            time, of several the time that passes */
  /* An external thread pool in place of the session's own threads: calls task(arg, index) for every
   * index in [0, count), in any order and on any threads, and returns when all calls returned. */
  void (*parallel_for)(void *pool, void (*task)(void *arg, int64_t index), void *arg,
                       int64_t count);
  void *pool; /* handed to parallel_for */
  /* Of a model whose weights are in a file: where that is, if not beside the library, or else its
   * content in memory, from a multiple of 64 bytes on, which stays as it is until NAME_close. */
  const char *weights_path;
  const void *weights;
  int64_t weights_bytes; /* of `weights` */
  int64_t check_weights; /* not 0: compare all weights with their SHA-256, which reads all of them */
} rutc_options;

/* One step of the model as measured so far; the strings live as long as the library is loaded. */
typedef struct rutc_profile_entry {
  const char *name;   /* the kernel, or "copy" */
  const char *origin; /* the ONNX nodes it computes, separated by ", " */
  int64_t calls;
  double total_us;
} rutc_profile_entry;

/* A loaded model with its memory and threads. Sessions are independent of each other. Calls with
 * the same session wait for one another. */
typedef struct rutc_session rutc_session;

#endif
