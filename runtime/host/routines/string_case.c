#include <stddef.h>

#include "call.h"
#include "case_map.h"
#include "utf8.h"

typedef struct case_map {
  const rutc_case_row *rows;
  int64_t count;
} case_map;

#define ROWS(table) {table, (int64_t)(sizeof table / sizeof table[0])}

static const case_map lower_map = ROWS(rutc_lower_rows);
static const case_map upper_map = ROWS(rutc_upper_rows);

static int64_t mapped(const case_map *map, int64_t c) {
  int64_t low = 0, high = map->count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (map->rows[middle].last < c) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == map->count) return c;
  const rutc_case_row *row = &map->rows[low];
  return c >= row->first && (c - row->first) % row->step == 0 ? c + row->distance : c;
}

/* Bytes that are no UTF-8 stay as they are. */
static int64_t convert(const case_map *map, rutc_text text, char *to) {
  int64_t at = 0, length = 0;
  while (at < text.bytes) {
    int64_t begin = at;
    int64_t c = rutc_utf8_next(text, &at);
    if (c == RUTC_BAD_CHARACTER) {
      while (begin < at) to[length++] = text.data[begin++];
    } else {
      length += rutc_utf8_write(to + length, mapped(map, c));
    }
  }
  return length;
}

int rutc_routine_string_case(const rutc_call *call) {
  const int64_t *in = call->args[0].data;
  int64_t *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  const case_map *map = rutc_call_integer(call, "upper", 0) ? &upper_map : &lower_map;
  for (int64_t i = 0; i < count; i++) {
    rutc_text text = call->strings->texts[in[i]];
    char *room = rutc_strings_room(call->strings, 3 * text.bytes);
    if (room == NULL) return rutc_call_no_memory(call);
    out[i] = rutc_intern_kept(call->strings, room, convert(map, text, room));
    if (out[i] < 0) return rutc_call_no_memory(call);
  }
  return RUTC_OK;
}
