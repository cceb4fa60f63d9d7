/* Strings and maps of CPython as the library's tensors hold them, and back.
 *
 * A library is linked with no Python: a caller in Python passes the functions of CPython's own C
 * interface that are needed, and holds the interpreter's lock. Objects are opaque here. What fails
 * there leaves Python's error set.
 */
#ifndef RUTC_PYTHON_H
#define RUTC_PYTHON_H

#include <stdint.h>
#include <sys/types.h>

#include "string_table.h"

typedef struct rutc_python {
  const char *(*text_of)(void *object, ssize_t *bytes);                       /* PyUnicode_AsUTF8AndSize */
  void *(*new_text)(const char *data, ssize_t bytes, const char *errors); /* PyUnicode_DecodeUTF8 */
  void *(*new_float)(double value);                                       /* PyFloat_FromDouble */
  void *(*new_integer)(long long value);                                  /* PyLong_FromLongLong */
  void *(*new_list)(ssize_t count);                                       /* PyList_New */
  int (*put)(void *list, ssize_t place, void *object); /* PyList_SetItem: takes the reference */
  void *(*copy_map)(void *map);                        /* PyDict_Copy */
  int (*set)(void *map, void *key, void *value);       /* PyDict_SetItem */
  void (*hold)(void *object);                          /* Py_IncRef */
  void (*release)(void *object);                       /* Py_DecRef */
} rutc_python;

/* What the values of maps are. */
typedef enum rutc_values { RUTC_FLOATS, RUTC_DOUBLES, RUTC_INTEGERS } rutc_values;

/* Describes the text of each of `count` objects, which own it; -1: one is NULL, which numpy takes for
 * None, or no `str` of Unicode. */
int rutc_python_read(const rutc_python *python, void *const *objects, int64_t count,
                     rutc_text *texts);

/* Puts a `str` of each text in the place of an object; -1: no memory. */
int rutc_python_write(const rutc_python *python, const rutc_text *texts, int64_t count,
                      void **objects);

/* A new list of a map for each row of values {rows, keys}; NULL: no memory. `map` is one with these
 * keys. */
void *rutc_python_maps(const rutc_python *python, const void *values, int32_t kind, int64_t rows,
                       void *const *keys, int64_t key_count, void *map);

#endif
