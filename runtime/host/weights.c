#define _GNU_SOURCE
#include "weights.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"
#include "sha256.h"

enum { ALIGNMENT = 64 }; /* of what the caller has in memory: that of each constant in the image */

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

/* Finds the image of all weights in the library itself. */
static int find_segment(const rutc_model *model, const uint8_t **image, rutc_error *error) {
  size_t bytes = 0;
  *image = last_segment(model, &bytes);
  if (*image == NULL || bytes != (size_t)model->image.bytes) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot find this model's weights");
  }
  if (!is_there(*image + bytes - 1)) {
    return rutc_fail(error, RUTC_UNSUPPORTED,
                     "the library is cut off: some of this model's weights are missing");
  }
  return RUTC_OK;
}

/* Takes the content of the file from the caller's memory. */
static int take_memory(const rutc_options *options, const rutc_image *image, rutc_error *error) {
  int64_t bytes = image->bytes + (int64_t)sizeof image->sha256;
  if (options->weights_bytes != bytes) {
    return rutc_fail(error, RUTC_BAD_ARGUMENT,
                     "options.weights do not belong to this model, or are cut off: they must have "
                     "%lld bytes and have %lld",
                     (long long)bytes, (long long)options->weights_bytes);
  }
  if ((uintptr_t)options->weights % ALIGNMENT != 0) {
    return rutc_fail(error, RUTC_BAD_ARGUMENT,
                     "options.weights must begin at a multiple of %d bytes", (int)ALIGNMENT);
  }
  const uint8_t *digest = (const uint8_t *)options->weights + image->bytes;
  if (memcmp(digest, image->sha256, sizeof image->sha256) != 0) {
    return rutc_fail(error, RUTC_BAD_ARGUMENT,
                     "options.weights do not belong to this model: their SHA-256 differs from that "
                     "of the weights that the library was compiled with");
  }
  return RUTC_OK;
}

/* Reads all weights. */
static int check_image(const uint8_t *data, const rutc_image *image, rutc_error *error) {
  uint8_t digest[RUTC_SHA256_BYTES];
  rutc_sha256(data, (size_t)image->bytes, digest);
  if (memcmp(digest, image->sha256, sizeof digest) == 0) return RUTC_OK;
  return rutc_fail(error, RUTC_UNSUPPORTED,
                   "the weights have changed since they were compiled: their SHA-256 differs");
}

int rutc_weights_open(rutc_weights *weights, const rutc_model *model, const rutc_program *program,
                      const rutc_options *options, rutc_error *error) {
  *weights = (rutc_weights){NULL, NULL};
  const rutc_image *image = &model->image;
  int paths = options->weights_path != NULL, memories = options->weights != NULL;
  if (paths + memories > image->in_file) {
    return rutc_fail(error, RUTC_BAD_ARGUMENT,
                     image->in_file ? "options name a file of weights and memory that has them: "
                                      "give one of the two"
                                    : "options name weights, but those of this model, if it has "
                                      "any, are in its library");
  }
  if (program->weight_bytes == 0) return RUTC_OK;
  const uint8_t *data = options->weights;
  int status;
  if (!image->in_file) {
    status = find_segment(model, &data, error);
  } else if (memories) {
    status = take_memory(options, image, error);
  } else {
    status = rutc_mapping_open(&weights->mapping, image, options->weights_path, error);
    if (status == RUTC_OK) data = rutc_mapping_data(weights->mapping);
  }
  if (status == RUTC_OK && options->check_weights) status = check_image(data, image, error);
  if (status != RUTC_OK) return status;
  weights->data = data;
  if (!memories) advise(weights->data, program->weight_bytes);
  return RUTC_OK;
}

void rutc_weights_close(rutc_weights *weights) {
  if (weights->mapping != NULL) rutc_mapping_close(weights->mapping);
  *weights = (rutc_weights){NULL, NULL};
}
