/* A fork-join thread pool.
 *
 * A run hands every taking-part thread one call; the caller is thread 0. Between runs the workers
 * watch for work for about 20 us, so that launches in a row start within a microsecond or two, and
 * then sleep in the kernel. They do not watch at all when there are more threads than CPUs.
 */
#ifndef RUTC_POOL_H
#define RUTC_POOL_H

#include "error.h"

typedef struct rutc_pool rutc_pool;

/* Creates a pool of `threads` >= 1 threads: the caller of rutc_pool_run and `threads` - 1 workers.
 * Returns NULL and fills `error` if the system refuses. `status` receives the reason. */
rutc_pool *rutc_pool_create(int threads, int pin, rutc_error *error, int *status);

/* Calls task(arg, i) once for each i in [0, count), count <= threads, each on its own thread, and
 * returns when all calls returned. Only one thread at a time may run a pool. */
void rutc_pool_run(rutc_pool *pool, int count, void (*task)(void *arg, int64_t index), void *arg);

/* Stops and joins the workers. Accepts NULL. */
void rutc_pool_destroy(rutc_pool *pool);

#endif
