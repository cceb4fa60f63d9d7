/* A fork-join thread pool.
 *
 * A launch calls the task on the caller, thread 0, and on every worker that comes before the
 * caller's call has returned; the calls share the work out among themselves. A worker that another
 * process keeps from running is not waited for, unless it has begun. While the pool is busy,
 * that is during one run of the model, threads without work watch for it for up to 2 ms, because the
 * next launch comes soon and waking a sleeping thread can take longer than the launch itself;
 * otherwise they watch for about 20 us. Then they sleep in the kernel. They do not watch at all when
 * there are more threads than CPUs.
 */
#ifndef RUTC_POOL_H
#define RUTC_POOL_H

#include "error.h"

typedef struct rutc_pool rutc_pool;

/* Between runs threads watch for the next one for so long. */
enum { RUTC_WATCH_NS = 20000 };

/* Creates a pool of `threads` >= 1 threads: the caller of rutc_pool_run and `threads` - 1 workers.
 * Returns NULL and fills `error` if the system refuses. `status` receives the reason. */
rutc_pool *rutc_pool_create(int threads, int pin, rutc_error *error, int *status);

/* Calls task(arg, 0) here and task(arg, i) for some of i in [1, count), count <= threads, each on
 * its own thread, and returns when all calls returned. The call on thread 0 must not return before
 * all work has been taken. Only one thread at a time may run a pool. */
void rutc_pool_run(rutc_pool *pool, int count, void (*task)(void *arg, int64_t index), void *arg);

/* Says whether launches follow each other (1) or the run is over (0). */
void rutc_pool_busy(rutc_pool *pool, int busy);

/* Whether all workers watch for a launch. */
int rutc_pool_awake(rutc_pool *pool);

/* Stops and joins the workers. Accepts NULL. */
void rutc_pool_destroy(rutc_pool *pool);

#endif
