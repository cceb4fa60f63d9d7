/* The pieces of a text between delimiters, or between runs of white space. */
#ifndef RUTC_PIECES_H
#define RUTC_PIECES_H

#include <string.h>

#include "call.h"
#include "utf8.h"

typedef struct rutc_pieces {
  rutc_text text;
  rutc_text delimiter; /* empty: white space */
  int64_t left; /* splits that may still be made; negative: any number */
  int64_t at;   /* past the end: no more pieces */
} rutc_pieces;

static inline int rutc_is_space(int64_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/* The place of the first character from `at` on that is white space, or that is not. */
static inline int64_t rutc_find_space(rutc_text text, int64_t at, int wanted) {
  while (at < text.bytes) {
    int64_t next = at;
    if (rutc_is_space(rutc_utf8_next(text, &next)) == wanted) return at;
    at = next;
  }
  return at;
}

static inline rutc_pieces rutc_pieces_of(const rutc_call *call, rutc_text text) {
  const char *delimiter = rutc_call_text(call, "delimiter");
  rutc_text mark = {delimiter, (int64_t)strlen(delimiter)};
  int64_t at = mark.bytes == 0 ? rutc_find_space(text, 0, 0) : 0;
  if (mark.bytes == 0 && at == text.bytes) at++;
  return (rutc_pieces){text, mark, rutc_call_integer(call, "maxsplit", -1), at};
}

/* Gives the next piece; 0: there is none. */
static inline int rutc_next_piece(rutc_pieces *pieces, rutc_text *piece) {
  rutc_text text = pieces->text, mark = pieces->delimiter;
  int64_t begin = pieces->at, end = text.bytes, next = text.bytes + 1;
  if (begin > text.bytes) return 0;
  if (pieces->left != 0 && mark.bytes == 0) {
    end = rutc_find_space(text, begin, 1);
    next = rutc_find_space(text, end, 0);
    if (next == text.bytes) next++;
  } else if (pieces->left != 0) {
    for (int64_t i = begin; i + mark.bytes <= text.bytes; i++) {
      if (memcmp(text.data + i, mark.data, (size_t)mark.bytes) != 0) continue;
      end = i;
      next = i + mark.bytes;
      break;
    }
  }
  if (pieces->left > 0) pieces->left--;
  pieces->at = next;
  *piece = (rutc_text){end > begin ? text.data + begin : "", end - begin};
  return 1;
}

#endif
