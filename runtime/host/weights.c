#define _GNU_SOURCE
#include "weights.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHA256_BYTES = 32 };

/* Writes the path of `file` in the directory of the library that holds `program`. */
static int path_beside_library(char *path, size_t size, const rutc_program *program,
                               const char *file) {
  Dl_info library;
  if (dladdr(program, &library) == 0 || library.dli_fname == NULL) return 0;
  const char *slash = strrchr(library.dli_fname, '/');
  int directory = slash == NULL ? 0 : (int)(slash - library.dli_fname) + 1;
  int written = snprintf(path, size, "%.*s%s", directory, library.dli_fname, file);
  return written > 0 && (size_t)written < size;
}

static int map_file(rutc_weights *weights, const rutc_program *program, int file, const char *path,
                    rutc_error *error) {
  struct stat status;
  size_t bytes = (size_t)program->weight_bytes + SHA256_BYTES;
  if (fstat(file, &status) != 0 || (uint64_t)status.st_size != bytes) {
    return rutc_fail(error, RUTC_UNSUPPORTED,
                     "the weights file %s does not belong to this model: it must have %zu bytes",
                     path, bytes);
  }
  void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot map the weights file %s: %s", path,
                     strerror(errno));
  }
  weights->data = data;
  weights->mapped_bytes = bytes;
  if (memcmp(weights->data + program->weight_bytes, program->weights_sha256, SHA256_BYTES) != 0) {
    rutc_weights_close(weights);
    return rutc_fail(error, RUTC_UNSUPPORTED,
                     "the weights file %s does not belong to this model: its SHA-256 differs", path);
  }
  return RUTC_OK;
}

int rutc_weights_open(rutc_weights *weights, const rutc_program *program, rutc_error *error) {
  weights->data = program->weights;
  weights->mapped_bytes = 0;
  if (program->weights_file == NULL) return RUTC_OK;
  char path[4096];
  if (!path_beside_library(path, sizeof path, program, program->weights_file)) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot tell the directory of this model's library");
  }
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot open the weights file %s: %s", path,
                     strerror(errno));
  }
  int result = map_file(weights, program, file, path, error);
  close(file);
  return result;
}

void rutc_weights_close(rutc_weights *weights) {
  if (weights->mapped_bytes > 0) munmap((void *)weights->data, weights->mapped_bytes);
  weights->data = NULL;
  weights->mapped_bytes = 0;
}
