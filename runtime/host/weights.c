#define _GNU_SOURCE
#include "weights.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

/* Writes the path of the library that holds `model`, its extension replaced by ".weights". */
static int path_of_weights(char path[PATH_MAX + 16], const rutc_model *model) {
  Dl_info library;
  if (dladdr(model, &library) == 0 || library.dli_fname == NULL) return 0;
  if (realpath(library.dli_fname, path) == NULL) return 0;
  char *slash = strrchr(path, '/');
  char *dot = strrchr(path, '.');
  strcpy(dot != NULL && dot > slash + 1 ? dot : path + strlen(path), ".weights");
  return 1;
}

static int map_file(rutc_weights *weights, const rutc_weights_file *expected, int file,
                    const char *path, rutc_error *error) {
  struct stat status;
  size_t bytes = (size_t)expected->bytes + sizeof expected->sha256;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) ||
      (uint64_t)status.st_size != bytes) {
    return rutc_fail(error, RUTC_UNSUPPORTED,
                     "the weights file %s does not belong to this model: it must have %zu bytes",
                     path, bytes);
  }
  void *mapping = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (mapping == MAP_FAILED) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot map the weights file %s: %s", path,
                     strerror(errno));
  }
  weights->mapping = mapping;
  weights->mapped_bytes = bytes;
  if (memcmp((char *)mapping + expected->bytes, expected->sha256, sizeof expected->sha256) != 0) {
    rutc_weights_close(weights);
    return rutc_fail(error, RUTC_UNSUPPORTED,
                     "the weights file %s does not belong to this model: its SHA-256 differs", path);
  }
  return RUTC_OK;
}

/* The last segment of the library that holds `model`, which the compiler appends for the weights,
 * and its size. */
static const uint8_t *last_segment(const rutc_model *model, size_t *bytes) {
  Dl_info library;
  if (dladdr(model, &library) == 0) return NULL;
  const uint8_t *base = library.dli_fbase;
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)base;
  const Elf64_Phdr *segments = (const Elf64_Phdr *)(base + header->e_phoff);
  const uint8_t *last = NULL;
  for (int i = 0; i < header->e_phnum; i++) {
    if (segments[i].p_type != PT_LOAD) continue;
    last = base + segments[i].p_vaddr;
    *bytes = segments[i].p_filesz;
  }
  return last;
}

/* Whether a mapped byte is in the file: to read one that is not ends the process, but the system
 * only refuses to write it into a pipe. Where there are no pipes, nobody knows. */
static int is_there(const uint8_t *byte) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return 1;
  int missing = write(ends[1], byte, 1) < 0 && errno == EFAULT;
  close(ends[0]);
  close(ends[1]);
  return !missing;
}

/* Advice only: where the file system knows huge pages, the weights are read and mapped as such. */
static void advise(const uint8_t *data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  uintptr_t begin = ((uintptr_t)data + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
  uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
  if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

int rutc_weights_open(rutc_weights *weights, const rutc_model *model, const rutc_program *program,
                      rutc_error *error) {
  *weights = (rutc_weights){NULL, NULL, 0};
  if (program->weight_bytes == 0) return RUTC_OK;
  if (model->weights_file == NULL) {
    size_t bytes = 0;
    const uint8_t *image = last_segment(model, &bytes);
    if (image == NULL) return rutc_fail(error, RUTC_SYSTEM, "cannot find this model's weights");
    if (bytes > 0 && !is_there(image + bytes - 1)) {
      return rutc_fail(error, RUTC_UNSUPPORTED,
                       "the library is cut off: some of this model's weights are missing");
    }
    weights->data = image + program->weights_offset;
    advise(weights->data, program->weight_bytes);
    return RUTC_OK;
  }
  char path[PATH_MAX + 16];
  if (!path_of_weights(path, model)) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot tell the path of this model's library");
  }
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot open the weights file %s: %s", path,
                     strerror(errno));
  }
  int result = map_file(weights, model->weights_file, file, path, error);
  close(file);
  if (result == RUTC_OK) {
    weights->data = (const uint8_t *)weights->mapping + program->weights_offset;
    advise(weights->data, program->weight_bytes);
  }
  return result;
}

void rutc_weights_close(rutc_weights *weights) {
  if (weights->mapping != NULL) munmap(weights->mapping, weights->mapped_bytes);
  *weights = (rutc_weights){NULL, NULL, 0};
}
