/* Characters of UTF-8 text. */
#ifndef RUTC_UTF8_H
#define RUTC_UTF8_H

#include <stdint.h>

#include "string_table.h"

enum { RUTC_NO_CHARACTER = -1, RUTC_BAD_CHARACTER = 0xFFFD };

/* The character at `*at`, which moves on; RUTC_NO_CHARACTER at the end. Bytes that are no UTF-8
 * are RUTC_BAD_CHARACTER, one each. */
static inline int64_t rutc_utf8_next(rutc_text text, int64_t *at) {
  static const int64_t least[] = {0, 0x80, 0x800, 0x10000};
  if (*at >= text.bytes) return RUTC_NO_CHARACTER;
  const uint8_t *bytes = (const uint8_t *)text.data + *at;
  uint8_t first = bytes[0];
  (*at)++;
  if (first < 0x80) return first;
  int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
  if (more == 0 || first > 0xF7 || *at + more > text.bytes) return RUTC_BAD_CHARACTER;
  int64_t c = first & (0x3F >> more);
  for (int i = 1; i <= more; i++) {
    if ((bytes[i] & 0xC0) != 0x80) return RUTC_BAD_CHARACTER;
    c = c << 6 | (bytes[i] & 0x3F);
  }
  if (c < least[more] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return RUTC_BAD_CHARACTER;
  *at += more;
  return c;
}

/* Writes a character and returns its bytes, at most 4. */
static inline int rutc_utf8_write(char *to, int64_t c) {
  if (c < 0x80) {
    to[0] = (char)c;
    return 1;
  }
  int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static const int marks[] = {0, 0xC0, 0xE0, 0xF0};
  to[0] = (char)(marks[more] | c >> (6 * more));
  for (int i = 1; i <= more; i++) to[i] = (char)(0x80 | (c >> (6 * (more - i)) & 0x3F));
  return more + 1;
}

#endif
