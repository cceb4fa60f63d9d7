/* Blocks of memory for the arena and for copies of tensors. */
#ifndef RUTC_MEMORY_H
#define RUTC_MEMORY_H

#include <stddef.h>
#include <stdint.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* The longest vector: kernels may load one that begins in the scratch of a thread, and goes on
 * behind it. What they do not need of it they leave out. */
enum { READ_ON_BYTES = 64 };

/* Returns at least `bytes` >= 0 bytes, aligned to 64 bytes, or to 2 MiB with huge pages asked for
 * when the block is that large; NULL without memory. Release it with free(). */
void *rutc_allocate(int64_t bytes);

/* As rutc_allocate, but always aligned to 64 bytes, and without the advice: what is released with
 * every run, or about as often, is in memory that the C library takes from the system once. */
void *rutc_allocate_passing(int64_t bytes);

#endif
