/* The tables that the compiler generates for a model, and that the session executes. */
#ifndef RUTC_PROGRAM_H
#define RUTC_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "call.h"
#include "sizes.h"

#define RUTC_MAX_NDIM 64
#define RUTC_MAX_SYMBOLS 64

/* Computes tasks [begin, end) of a launch. Behind the sizes that the launch lists, `syms` holds the
 * address of the calling thread's scratch. */
typedef void (*rutc_kernel)(void *const *bufs, const int64_t *syms, int64_t begin, int64_t end);

/* A size that the inputs' shapes tell, and the range that it must lie in. */
typedef struct rutc_symbol {
  const char *name;
  int64_t low;
  int64_t high;
  int32_t input; /* its axis has `factor` times this extent */
  int32_t axis;
  int64_t factor;
} rutc_symbol;

/* An input or output; `shape` and `bytes` hold sizes as sizes.h says. */
typedef struct rutc_port {
  const char *name;
  const char *dtype;
  uint8_t dtype_code; /* a DLDataTypeCode */
  uint8_t dtype_bits;
  int32_t element_bytes;
  int32_t alignment; /* of the first element, in bytes */
  int32_t ndim;
  const int64_t *shape;
  const char *shape_text;
  int64_t bytes;
  int64_t first_patch; /* where patches[] lists the buffers that lie in this port */
  int64_t patch_count;
  const uint8_t *fixed; /* the bytes that alone an input may hold; NULL: any */
  const char *fixed_text;
  int64_t block; /* where an output lies whose shape the program computes; -1: in a port */
} rutc_port;

/* Memory of a size that the program computes; patches[] lists the buffers that lie in it. */
typedef struct rutc_region {
  int64_t first_patch;
  int64_t patch_count;
} rutc_region;

typedef enum rutc_space { RUTC_ARENA, RUTC_WEIGHTS, RUTC_BLOCK, RUTC_PORT } rutc_space;

/* An entry of the buffer table: a place in memory. */
typedef struct rutc_ref {
  rutc_space space;
  int32_t index; /* of the block, or of the port: inputs first, then outputs */
  int64_t offset; /* a size */
} rutc_ref;

typedef enum rutc_op {
  RUTC_LAUNCH, /* kernel(&buffers[buffer], the symbol_count sizes at the places that launch_symbols
                  lists from symbol on, 0, count), shared out to the threads: each does the same
                  part of every one of the `target` (a size) equal runs of tasks; if that is 0, the
                  calling thread does all */
  RUTC_IN_TURN, /* the launches up to target, each with as many tasks for each of count indices, one
                   index after the other, as turns[symbol] says; or all trips of a loop of launches and
                   copies, each thread for a part of the indices; go on at target */
  RUTC_COPY,   /* count bytes from buffers[buffer + 1] to buffers[buffer] */
  RUTC_BRANCH, /* if the byte at buffers[buffer] is 0, go on at target */
  RUTC_UNLESS, /* if count is not positive, go on at target */
  RUTC_JUMP,   /* go on at target */
  RUTC_REPEAT, /* size symbol = 0; if count is 0, go on at target */
  RUTC_NEXT,   /* size symbol += 1; if it is less than count, go on at target */
  RUTC_CALL,   /* calls[target] with its operands from buffers[buffer] on, then its results, in
                  `symbol` loops */
  RUTC_BIND,   /* size symbol = the i64 at buffers[buffer]; bound[target] says what it may be */
  RUTC_RESERVE, /* blocks[target] holds count bytes or more, or the scratch of each thread */
  RUTC_FAIL    /* the run ends with the error message `name` */
} rutc_op;

typedef struct rutc_step {
  rutc_op op;
  rutc_kernel kernel;
  int64_t buffer;
  int64_t count; /* a size */
  int64_t target;
  int64_t symbol;
  int64_t symbol_count;
  const char *name;
  const char *origin;
} rutc_step;

enum { RUTC_SCRATCH = -1 }; /* in the place of a block: the scratch of threads */

/* A buffer of launches in turn of which a thread has one index, of `bytes` bytes, for itself. */
typedef struct rutc_near {
  int64_t buffer; /* counted from the first of these launches */
  int64_t offset; /* a size: in what the thread has */
  int64_t bytes;  /* a size */
} rutc_near;

/* Launches in turn. */
typedef struct rutc_turns {
  int64_t buffer_count; /* of all launches together */
  int64_t near;         /* the first one in `nears` */
  int64_t near_count;
  int64_t near_bytes; /* a size, a multiple of 64: what the thread has for them */
} rutc_turns;

/* The type and shape of an operand or result of a call. */
typedef struct rutc_operand {
  DLDataType dtype;
  int32_t ndim;
  const int64_t *shape; /* sizes */
} rutc_operand;

/* A call of a routine. */
typedef struct rutc_call_site {
  rutc_routine routine;
  int32_t arg_count;
  int32_t out_count;
  const rutc_operand *operands; /* those of the arguments, then those of the results */
  const rutc_attribute *attributes;
  int32_t attribute_count;
} rutc_call_site;

/* What keeps the strings and boxes of a session. Few models have any: others do without this code. */
typedef struct rutc_keeper {
  int (*open)(rutc_strings *strings, const rutc_text *own, int64_t count); /* 0, or -1: no memory */
  /* Forgets the last run's; what they are made of stays until the next reset if `last` is given,
   * where boxes are put aside. */
  void (*reset)(rutc_strings *strings, rutc_boxes *boxes, rutc_boxes *last);
  void (*close)(rutc_strings *strings, rutc_boxes *boxes, rutc_boxes *last);
} rutc_keeper;

extern const rutc_keeper rutc_keeper_of_all;

/* A state: one of the last inputs, whose value is in the next run what the output with the same place
 * from the end is in this one. */
typedef struct rutc_state {
  int32_t axis; /* along which it grows; -1: none */
  int64_t capacity; /* elements along it that there is memory for */
  int in_place; /* whether a run writes to the memory of the input, whose strides are by `capacity` */
  int64_t bytes;
} rutc_state;

typedef struct rutc_program {
  const char *const *features; /* CPU features the kernels need, as LLVM spells them; NULL ends */
  const rutc_port *ports;
  int32_t input_count;
  int32_t output_count;
  const rutc_state *states;
  int32_t state_count;
  const rutc_ref *buffers;
  int64_t buffer_count;
  const int64_t *patches;
  const rutc_step *steps;
  int64_t step_count;
  const rutc_symbol *bound; /* the sizes that the program computes */
  const rutc_region *blocks;
  int64_t block_count;
  const rutc_call_site *calls;
  int64_t call_count;
  int64_t most_operands; /* of one call */
  const rutc_keeper *keeper; /* NULL: there are no calls, and no strings */
  const rutc_text *strings; /* the model's own; the first is "" */
  int64_t string_count;
  const rutc_symbol *symbols; /* the first places of the table of sizes */
  int64_t symbol_count;
  int keep_subnormals; /* 0: they count as zeros */
  int64_t small;       /* a size: whether threads take part in a run only while they are awake */
  int64_t thread_bytes; /* scratch of each thread, a multiple of 64, but what steps reserve */
  int64_t turn_bytes;   /* and of this for launches in turn: their buffers, and what is near of
                           known size */
  const rutc_turns *turns;
  const rutc_near *nears;
  int64_t size_count;
  void (*compute_sizes)(int64_t *sizes); /* fills in what follows from the symbols */
  double (*largest_bytes)(const int64_t *sizes); /* of any memory of symbolic size */
  double (*block_bytes)(const int64_t *sizes, int64_t place); /* the size at a place, unbounded */
  const int64_t *launch_symbols;
  int64_t arena_bytes; /* a size */
  int64_t weight_bytes;
} rutc_program;

/* The image of the weights of all programs. In a file its SHA-256 comes after it. */
typedef struct rutc_image {
  int64_t bytes;
  uint8_t sha256[32];
  int in_file; /* 0: the library's last segment has it */
} rutc_image;

/* A model: programs for different CPUs with the same ports, the most demanding first. */
typedef struct rutc_model {
  const rutc_program *const *programs;
  int32_t program_count;
  rutc_image image;
} rutc_model;

#endif
