/* The strings of a session, by number: equal strings have equal numbers, and "" is 0.
 *
 * The model's own strings come first and stay; those of a run are forgotten when the next begins,
 * but their bytes may be kept until the end of that one.
 */
#ifndef RUTC_STRING_TABLE_H
#define RUTC_STRING_TABLE_H

#include <stdint.h>

/* Text in UTF-8, without an end mark. */
typedef struct rutc_text {
  const char *data;
  int64_t bytes;
} rutc_text;

/* Memory for the bytes of strings; blocks stay until the session is closed. */
typedef struct rutc_block {
  struct rutc_block *next;
  int64_t capacity;
  int64_t used;
  char memory[];
} rutc_block;

typedef struct rutc_strings {
  rutc_text *texts; /* by number */
  int64_t count;
  int64_t capacity;
  int64_t own;     /* the model's strings */
  int64_t *places; /* a hash table of number + 1; 0: free */
  int64_t *where;  /* the place of each number */
  int64_t place_count; /* a power of two */
  rutc_block *blocks; /* the one in use comes first */
  rutc_block *last;   /* those of the run before, if they are kept */
  rutc_block *spare;
} rutc_strings;

/* The number of a string, whose bytes are copied if it is new; -1: no memory. */
int64_t rutc_intern(rutc_strings *strings, const char *data, int64_t bytes);

/* Memory for the bytes of a string that is to be interned with rutc_intern_kept; NULL: none. */
char *rutc_strings_room(rutc_strings *strings, int64_t bytes);

/* The number of a string in the memory that rutc_strings_room gave, which stays valid. */
int64_t rutc_intern_kept(rutc_strings *strings, const char *data, int64_t bytes);

/* Forgets all but the model's strings; with `keep`, the bytes of others stay until the next reset. */
void rutc_strings_reset(rutc_strings *strings, int keep);

/* Enters the model's strings; 0, or -1: no memory. */
int rutc_strings_open(rutc_strings *strings, const rutc_text *own, int64_t count);

/* Releases all memory. */
void rutc_strings_close(rutc_strings *strings);

#endif
