#define _GNU_SOURCE
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "cpu.h"
#include "pause.h"

#define CLOSED 0x80000000u

enum { CACHE_LINE = 64, BUSY_WATCH_NS = 2000000, STACK_BYTES = 4 << 20 };

/* A worker looks for work at every change of its ticket. `asleep` spares the caller a system call when
 * the worker still watches; both are accessed in sequentially consistent order, so either the
 * worker sees the new ticket or the caller sees it asleep. */
typedef struct worker {
  _Alignas(CACHE_LINE) atomic_uint ticket;
  atomic_uint asleep;
  int index;
  pthread_t thread;
  struct rutc_pool *pool;
} worker;

struct rutc_pool {
  int threads;
  int64_t watch_ns;
  int64_t busy_watch_ns;
  atomic_int busy; /* a run is in progress: the next launch comes soon */
  atomic_int stop;
  worker *workers; /* threads - 1 of them; workers[i] is thread i + 1 */
  /* Whoever enters gets what it has to do with the line that it needs for that. */
  _Alignas(CACHE_LINE) atomic_uint inside; /* workers in the launch; CLOSED: none may enter */
  atomic_uint caller_asleep;
  void (*task)(void *arg, int64_t index);
  void *arg;
};

static void sleep_while(atomic_uint *word, unsigned value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(atomic_uint *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Whether `word` is `value` or takes another value, seen while it is worth watching. */
static int watch_until_not(rutc_pool *pool, atomic_uint *word, unsigned value) {
  if (atomic_load_explicit(word, memory_order_acquire) != value) return 1;
  if (pool->watch_ns == 0) return 0;
  int64_t begin = rutc_now_ns();
  int64_t limit;
  do {
    for (int i = 0; i < 8; i++) {
      rutc_pause();
      if (atomic_load_explicit(word, memory_order_acquire) != value) return 1;
    }
    limit = atomic_load_explicit(&pool->busy, memory_order_relaxed) ? pool->busy_watch_ns
                                                                    : pool->watch_ns;
  } while (rutc_now_ns() - begin < limit);
  return 0;
}

static void wait_for_ticket(worker *self, unsigned last) {
  if (watch_until_not(self->pool, &self->ticket, last)) return;
  atomic_store(&self->asleep, 1);
  while (atomic_load(&self->ticket) == last) sleep_while(&self->ticket, last);
  atomic_store(&self->asleep, 0);
}

static void give_ticket(worker *target) {
  atomic_fetch_add(&target->ticket, 1);
  if (atomic_load(&target->asleep)) wake(&target->ticket);
}

/* A worker that comes late, after the launch has closed, leaves at once: nobody waits for it. */
static void *work(void *arg) {
  worker *self = arg;
  rutc_pool *pool = self->pool;
  for (unsigned ticket = 0;;) {
    wait_for_ticket(self, ticket);
    ticket = atomic_load(&self->ticket);
    if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return NULL;
    if (!(atomic_fetch_add(&pool->inside, 1) & CLOSED)) pool->task(pool->arg, self->index);
    if (atomic_fetch_sub(&pool->inside, 1) == (CLOSED | 1) && atomic_load(&pool->caller_asleep)) {
      wake(&pool->inside);
    }
  }
}

static void wait_for_workers(rutc_pool *pool) {
  unsigned inside;
  do {
    inside = atomic_load_explicit(&pool->inside, memory_order_acquire);
    if (inside == CLOSED) return;
  } while (watch_until_not(pool, &pool->inside, inside));
  atomic_store(&pool->caller_asleep, 1);
  while ((inside = atomic_load(&pool->inside)) != CLOSED) sleep_while(&pool->inside, inside);
  atomic_store(&pool->caller_asleep, 0);
}

void rutc_pool_run(rutc_pool *pool, int count, void (*task)(void *arg, int64_t index), void *arg) {
  if (count <= 0) return;
  pool->task = task;
  pool->arg = arg;
  atomic_fetch_and(&pool->inside, ~CLOSED);
  for (int i = 0; i < count - 1; i++) give_ticket(&pool->workers[i]);
  task(arg, 0);
  atomic_fetch_or(&pool->inside, CLOSED);
  wait_for_workers(pool);
}

void rutc_pool_busy(rutc_pool *pool, int busy) {
  atomic_store_explicit(&pool->busy, busy, memory_order_relaxed);
}

int rutc_pool_awake(rutc_pool *pool) {
  for (int i = 0; i < pool->threads - 1; i++) {
    if (atomic_load(&pool->workers[i].asleep)) return 0;
  }
  return 1;
}

static void pin_to(pthread_t thread, int cpu) {
  size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
  cpu_set_t *mask = CPU_ALLOC((size_t)cpu + 1);
  if (mask == NULL) return;
  CPU_ZERO_S(bytes, mask);
  CPU_SET_S((size_t)cpu, bytes, mask);
  pthread_setaffinity_np(thread, bytes, mask);
  CPU_FREE(mask);
}

/* Workers must not run the process's signal handlers, so they start with all signals blocked. */
static int start_worker(worker *target, int pin) {
  pthread_attr_t attributes;
  sigset_t all, before;
  int failure = pthread_attr_init(&attributes);
  if (failure != 0) return failure;
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  failure = pthread_create(&target->thread, &attributes, work, target);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (failure != 0) return failure;
  char name[16];
  snprintf(name, sizeof name, "rutc-%d", target->index);
  pthread_setname_np(target->thread, name);
  if (pin) pin_to(target->thread, rutc_cpu_nth(target->index));
  return 0;
}

rutc_pool *rutc_pool_create(int threads, int pin, rutc_error *error, int *status) {
  rutc_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
  worker *workers = aligned_alloc(CACHE_LINE, (size_t)threads * sizeof *workers);
  if (pool == NULL || workers == NULL) {
    free(pool);
    free(workers);
    *status = rutc_fail(error, RUTC_OUT_OF_MEMORY, "no memory for a pool of %d threads", threads);
    return NULL;
  }
  memset(pool, 0, sizeof *pool);
  memset(workers, 0, (size_t)threads * sizeof *workers);
  atomic_store(&pool->inside, CLOSED);
  pool->workers = workers;
  pool->watch_ns = threads <= rutc_cpu_available() ? RUTC_WATCH_NS : 0;
  pool->busy_watch_ns = threads <= rutc_cpu_available() ? BUSY_WATCH_NS : 0;
  pool->threads = 1;
  for (int i = 1; i < threads; i++) {
    worker *target = &workers[i - 1];
    target->index = i;
    target->pool = pool;
    int failure = start_worker(target, pin);
    if (failure != 0) {
      rutc_pool_destroy(pool);
      *status = rutc_fail(error, RUTC_SYSTEM, "cannot start thread %d of %d: %s", i + 1, threads,
                          strerror(failure));
      return NULL;
    }
    pool->threads++;
  }
  return pool;
}

void rutc_pool_destroy(rutc_pool *pool) {
  if (pool == NULL) return;
  atomic_store(&pool->stop, 1);
  for (int i = 0; i < pool->threads - 1; i++) give_ticket(&pool->workers[i]);
  for (int i = 0; i < pool->threads - 1; i++) pthread_join(pool->workers[i].thread, NULL);
  free(pool->workers);
  free(pool);
}
