/* The model m, compiled by rutc.
 *
 * m_run takes and gives tensors in this order:
 *   input 0: "x", float64 [x_0, 1]
 *   output 0: "y", float32 [x_0, 11]
 */
#ifndef RUTC_MODEL_m_H
#define RUTC_MODEL_m_H

/* Tensor descriptors, binary compatible with DLPack 1.x.
 *
 * Only what a compiled model exchanges is declared here. A program that also uses DLPack's own
 * header includes that one first (or has it in the include path as <dlpack/dlpack.h>); its
 * declarations are then used instead of these.
 */
#if !defined(DLPACK_DLPACK_H_) && !defined(RUTC_DLPACK_H)
#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif
#endif

#if !defined(DLPACK_DLPACK_H_) && !defined(RUTC_DLPACK_H)
#define RUTC_DLPACK_H

#include <stdint.h>

/* Where a tensor's memory is. Models compiled for the CPU accept kDLCPU only. */
typedef enum {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

/* The kind of an element; its width stands beside it. */
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLOpaqueHandle = 3U,
  kDLBfloat = 4U,
  kDLComplex = 5U,
  kDLBool = 6U,
  kDLFloat8_e4m3fn = 10U,
  kDLFloat8_e4m3fnuz = 11U,
  kDLFloat8_e5m2 = 12U,
  kDLFloat8_e5m2fnuz = 13U,
  kDLFloat8_e8m0fnu = 14U
} DLDataTypeCode;

typedef struct {
  uint8_t code;   /* a DLDataTypeCode */
  uint8_t bits;   /* of one element */
  uint16_t lanes; /* 1: a scalar element */
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;     /* in elements; NULL: dense, last dimension fastest */
  uint64_t byte_offset; /* from data to the first element */
} DLTensor;

#endif

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

#ifdef __cplusplus
extern "C" {
#endif

#define m_INPUTS 1
#define m_OUTPUTS 1

/* The version of this interface that the library has; compare with RUTC_ABI_VERSION. */
int32_t m_abi_version(void);

/* The model's description as JSON; it lives as long as the library is loaded. */
const char *m_manifest(void);

/* Opens a session; options may be NULL. On failure returns NULL: see m_last_error(NULL). */
rutc_session *m_open(const rutc_options *options);

/* Fills in the outputs' descriptors, except for their data, for inputs of these shapes. A shape of
 * the caller's is written to; with shape == NULL it points to the session's own numbers, which the
 * next call changes. An extent that only a run can tell is -1. The inputs' data is not read. */
int32_t m_output_shapes(rutc_session *session, const DLTensor *const *inputs,
    int32_t input_count, DLTensor *const *outputs, int32_t output_count);

/* Runs the model and returns RUTC_OK or why not. Inputs are dense or strided. Outputs are memory of
 * the caller, dense or strided; an output with data == NULL is given memory of the session, which
 * the next run overwrites, and with shape == NULL too, its whole descriptor is filled in. It may
 * be an input of that run. */
int32_t m_run(rutc_session *session, const DLTensor *const *inputs, int32_t input_count,
    DLTensor *const *outputs, int32_t output_count);

/* The times of a session opened with options.profile: writes up to `capacity` entries, one per
 * step, and returns how many steps there are. */
int32_t m_profile(rutc_session *session, rutc_profile_entry *entries, int32_t capacity);

/* Why the session's last failed run failed. With NULL, or a session of another model: why the
 * last m_open on this thread failed, or the last call with such a session. Never NULL;
 * valid until the next failure. */
const char *m_last_error(const rutc_session *session);

/* Stops the session's threads and releases its memory; NULL is allowed. */
void m_close(rutc_session *session);

#ifdef __cplusplus
}
#endif

#endif
