#define _GNU_SOURCE
#include "weights_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entry.h"
#include "memory.h"

struct rutc_mapping {
  rutc_mapping *next;
  dev_t device;
  ino_t number;
  void *data;
  size_t bytes;
  int64_t users;
};

static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static rutc_mapping *mappings;

/* Where the file may be: beside the library as it was named, and beside what that is a link to. ""
 * where that is not known. */
static char places[2][PATH_MAX + 16];

void rutc_mappings_lock(void) { pthread_mutex_lock(&mappings_lock); }

void rutc_mappings_unlock(void) { pthread_mutex_unlock(&mappings_lock); }

/* Makes the path of a library, which has a '/', that of its weights. */
static void name_weights(char *path) {
  char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
  strcpy(dot != NULL && dot > slash + 1 ? dot : path + strlen(path), ".weights");
}

void rutc_weights_locate(const rutc_model *model) {
  Dl_info library;
  if (dladdr(model, &library) == 0 || library.dli_fname == NULL) return;
  const char *name = library.dli_fname;
  char folder[PATH_MAX] = "";
  if (name[0] != '/' && getcwd(folder, sizeof folder) == NULL) return;
  int length = snprintf(places[0], PATH_MAX, name[0] != '/' ? "%s/%s" : "%s%s", folder, name);
  if (length < 0 || length >= PATH_MAX) {
    places[0][0] = '\0';
    return;
  }
  if (realpath(places[0], places[1]) == NULL) strcpy(places[1], places[0]);
  name_weights(places[0]);
  name_weights(places[1]);
}

/* Opens the file at a path, or where it may be otherwise; `shown` receives its path. Nothing waits
 * for what is no file. */
static int open_file(const char *path, const char **shown, rutc_error *error) {
  if (path == NULL && places[0][0] == '\0') {
    rutc_fail(error, RUTC_SYSTEM, "cannot tell the path of this model's library");
    return -1;
  }
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  *shown = path != NULL ? path : places[0];
  int file = open(*shown, flags);
  if (file < 0 && errno == ENOENT && path == NULL) {
    *shown = places[1];
    file = open(*shown, flags);
  }
  if (file < 0) {
    rutc_fail(error, RUTC_SYSTEM, "cannot open the weights file %s: %s%s", *shown, strerror(errno),
              path != NULL || errno != ENOENT
                  ? ""
                  : "; a library's weights lie beside it in a file of its name: rename and move both "
                    "together, or say where they are (options.weights_path, in Python weights=)");
  }
  return file;
}

/* Whether an open file is the one of this model, as far as its size and its last bytes tell. */
static int check_file(int file, const struct stat *status, const rutc_image *image,
                      const char *path, rutc_error *error) {
  size_t bytes = (size_t)image->bytes + sizeof image->sha256;
  if (!S_ISREG(status->st_mode)) {
    return rutc_fail(error, RUTC_UNSUPPORTED, "the weights file %s is no regular file", path);
  }
  if ((uint64_t)status->st_size != bytes) {
    return rutc_fail(error, RUTC_UNSUPPORTED,
                     "the weights file %s does not belong to this model, or is cut off: it must "
                     "have %zu bytes and has %lld",
                     path, bytes, (long long)status->st_size);
  }
  uint8_t digest[sizeof image->sha256];
  ssize_t count = pread(file, digest, sizeof digest, (off_t)image->bytes);
  if (count != (ssize_t)sizeof digest) {
    return rutc_fail(error, RUTC_SYSTEM, "cannot read the weights file %s: %s", path,
                     count < 0 ? strerror(errno) : "it is cut off");
  }
  if (memcmp(digest, image->sha256, sizeof digest) != 0) {
    return rutc_fail(error, RUTC_UNSUPPORTED,
                     "the weights file %s does not belong to this model: its SHA-256 differs from "
                     "that of the weights that the library was compiled with",
                     path);
  }
  return RUTC_OK;
}

/* Maps a file, a large one at a huge page: only there can the system map huge pages of it. */
static void *map(int file, size_t bytes) {
  size_t page = HUGE_PAGE_BYTES;
  if (bytes < 2 * page) return mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  char *room = mmap(NULL, bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  char *begin = (char *)(((uintptr_t)room + page - 1) / page * page);
  void *data = mmap(begin, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
  if (data == MAP_FAILED) {
    munmap(room, bytes + page);
    return MAP_FAILED;
  }
  size_t least = (size_t)sysconf(_SC_PAGESIZE);
  char *end = begin + (bytes + least - 1) / least * least, *room_end = room + bytes + page;
  if (begin > room) munmap(room, (size_t)(begin - room));
  if (end < room_end) munmap(end, (size_t)(room_end - end));
  return data;
}

/* The mapping of an open file, which has one user more now; NULL where there is none and cannot be. */
static rutc_mapping *mapping_of(int file, const struct stat *status) {
  for (rutc_mapping *m = mappings; m != NULL; m = m->next) {
    if (m->device != status->st_dev || m->number != status->st_ino) continue;
    m->users++;
    return m;
  }
  rutc_mapping *made = malloc(sizeof *made);
  if (made == NULL) return NULL;
  size_t bytes = (size_t)status->st_size;
  *made = (rutc_mapping){mappings, status->st_dev, status->st_ino, map(file, bytes), bytes, 1};
  if (made->data == MAP_FAILED) {
    free(made);
    return NULL;
  }
  mappings = made;
  return made;
}

int rutc_mapping_open(rutc_mapping **mapping, const rutc_image *image, const char *path,
                      rutc_error *error) {
  int file = open_file(path, &path, error);
  if (file < 0) return RUTC_SYSTEM;
  struct stat status;
  int result = RUTC_OK;
  if (fstat(file, &status) != 0) {
    result = rutc_fail(error, RUTC_SYSTEM, "cannot read the weights file %s: %s", path,
                       strerror(errno));
  }
  if (result == RUTC_OK) result = check_file(file, &status, image, path, error);
  if (result == RUTC_OK) {
    rutc_mappings_lock();
    *mapping = mapping_of(file, &status);
    int number = errno;
    rutc_mappings_unlock();
    if (*mapping == NULL) {
      result = rutc_fail(error, RUTC_SYSTEM, "cannot map the weights file %s: %s", path,
                         strerror(number));
    }
  }
  close(file);
  return result;
}

const uint8_t *rutc_mapping_data(const rutc_mapping *mapping) { return mapping->data; }

void rutc_mapping_close(rutc_mapping *mapping) {
  rutc_mappings_lock();
  if (--mapping->users == 0) {
    rutc_mapping **link = &mappings;
    while (*link != mapping) link = &(*link)->next;
    *link = mapping->next;
    munmap(mapping->data, mapping->bytes);
    free(mapping);
  }
  rutc_mappings_unlock();
}
