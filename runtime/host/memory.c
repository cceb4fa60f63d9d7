#define _GNU_SOURCE
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { VECTOR_BYTES = 64 };

static void *allocate_aligned(int64_t bytes, size_t alignment) {
  if (bytes < 0 || (uint64_t)bytes > SIZE_MAX - 2 * alignment) return NULL;
  size_t size = ((size_t)bytes + alignment - 1) / alignment * alignment;
  size = size > 0 ? size : alignment;
  void *block = aligned_alloc(alignment, size);
#ifdef MADV_HUGEPAGE
  /* Advice only: without huge pages the block works the same. */
  if (block != NULL && alignment == HUGE_PAGE_BYTES) madvise(block, size, MADV_HUGEPAGE);
#endif
  return block;
}

void *rutc_allocate(int64_t bytes) {
  return allocate_aligned(bytes, bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : VECTOR_BYTES);
}

void *rutc_allocate_passing(int64_t bytes) { return allocate_aligned(bytes, VECTOR_BYTES); }
