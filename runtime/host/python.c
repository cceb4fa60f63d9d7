#include "python.h"

#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Texts that were made last, by the address of their bytes: those of a model's own strings are the
 * same in every element. For few elements a table costs more than it saves. */
enum { MOST_KNOWN_BITS = 11, FEW = 16 };

EXPORT int rutc_python_read(const rutc_python *python, void *const *objects, int64_t count,
                            rutc_text *texts) {
  for (int64_t i = 0; i < count; i++) {
    ssize_t bytes = 0;
    texts[i].data = objects[i] != NULL ? python->text_of(objects[i], &bytes) : NULL;
    if (texts[i].data == NULL) return -1;
    texts[i].bytes = bytes;
  }
  return 0;
}

static void *text_of(const rutc_python *python, const rutc_text *text) {
  return python->new_text(text->data, (ssize_t)text->bytes, "replace");
}

/* Gives a place a new object, whose reference it takes. */
static void replace(const rutc_python *python, void **place, void *object) {
  void *before = *place;
  *place = object;
  if (before != NULL) python->release(before);
}

EXPORT int rutc_python_write(const rutc_python *python, const rutc_text *texts, int64_t count,
                             void **objects) {
  if (count <= FEW) {
    for (int64_t i = 0; i < count; i++) {
      void *made = text_of(python, &texts[i]);
      if (made == NULL) return -1;
      replace(python, &objects[i], made);
    }
    return 0;
  }
  struct {
    rutc_text text;
    void *object; /* an element that was written before holds it */
  } known[1 << MOST_KNOWN_BITS];
  int bits = 1;
  while (bits < MOST_KNOWN_BITS && (int64_t)1 << bits < count) bits++;
  memset(known, 0, sizeof *known << bits);
  for (int64_t i = 0; i < count; i++) {
    /* The high bits of a product depend on all bits of the address [Knuth, TAOCP 3, 6.4]. */
    uint64_t mixed = (uint64_t)(uintptr_t)texts[i].data * UINT64_C(0x9e3779b97f4a7c15);
    int64_t place = (int64_t)(mixed >> (64 - bits));
    void *made = known[place].object;
    if (made != NULL && known[place].text.data == texts[i].data &&
        known[place].text.bytes == texts[i].bytes) {
      python->hold(made);
    } else {
      made = text_of(python, &texts[i]);
      if (made == NULL) return -1;
      known[place].text = texts[i];
      known[place].object = made;
    }
    replace(python, &objects[i], made);
  }
  return 0;
}

static void *value_at(const rutc_python *python, const void *values, int32_t kind, int64_t place) {
  switch (kind) {
    case RUTC_FLOATS: return python->new_float((double)((const float *)values)[place]);
    case RUTC_DOUBLES: return python->new_float(((const double *)values)[place]);
    default: return python->new_integer(((const int64_t *)values)[place]);
  }
}

/* Fills a map that has these keys already, so that its table stays as large as it is. */
static int fill(const rutc_python *python, void *map, const void *values, int32_t kind,
                int64_t first, void *const *keys, int64_t key_count) {
  for (int64_t k = 0; k < key_count; k++) {
    void *value = value_at(python, values, kind, first + k);
    if (value == NULL) return -1;
    int status = python->set(map, keys[k], value);
    python->release(value);
    if (status != 0) return -1;
  }
  return 0;
}

EXPORT void *rutc_python_maps(const rutc_python *python, const void *values, int32_t kind,
                              int64_t rows, void *const *keys, int64_t key_count, void *map) {
  void *list = python->new_list((ssize_t)rows);
  if (list == NULL) return NULL;
  for (int64_t i = 0; i < rows; i++) {
    void *made = python->copy_map(map);
    if (made == NULL || fill(python, made, values, kind, i * key_count, keys, key_count) != 0) {
      if (made != NULL) python->release(made);
      python->release(list);
      return NULL;
    }
    python->put(list, (ssize_t)i, made);
  }
  return list;
}
