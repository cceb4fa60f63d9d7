/* The machine of regular expressions, whose programs tensor_ir/regex.py describes. */
#ifndef RUTC_REGEX_H
#define RUTC_REGEX_H

#include <stddef.h>
#include <string.h>

#include "call.h"
#include "utf8.h"

enum { ANY, SPLIT, JUMP, TEST, MATCH };
enum { TEXT_BEGIN, TEXT_END, LINE_BEGIN, LINE_END, WORD, NO_WORD };

/* States that wait for a character, each once; `mark` tells which are in. */
typedef struct rutc_machine {
  const int64_t *program;
  int64_t *waiting;
  int64_t *next;
  int64_t *stack;
  int64_t *mark;
  int64_t now; /* a number for every position of every text; never 0 where states are marked */
} rutc_machine;

static inline int rutc_is_word(int64_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

static inline int rutc_is_met(int64_t kind, int64_t before, int64_t after) {
  switch (kind) {
    case TEXT_BEGIN: return before == RUTC_NO_CHARACTER;
    case TEXT_END: return after == RUTC_NO_CHARACTER;
    case LINE_BEGIN: return before == RUTC_NO_CHARACTER || before == '\n';
    case LINE_END: return after == RUTC_NO_CHARACTER || after == '\n';
    case WORD: return rutc_is_word(before) != rutc_is_word(after);
    default: return rutc_is_word(before) == rutc_is_word(after);
  }
}

/* Enters `state` and all that are reached from it without reading. */
static inline void rutc_follow(rutc_machine *m, int64_t *into, int64_t *count, int64_t state,
                               int64_t before, int64_t after) {
  int64_t depth = 0;
  m->stack[depth++] = state;
  while (depth > 0) {
    int64_t s = m->stack[--depth];
    if (m->mark[s] == m->now) continue;
    m->mark[s] = m->now;
    switch (m->program[s]) {
      case SPLIT:
        m->stack[depth++] = m->program[s + 2];
        m->stack[depth++] = m->program[s + 1];
        break;
      case JUMP:
        m->stack[depth++] = m->program[s + 1];
        break;
      case TEST:
        if (rutc_is_met(m->program[s + 1], before, after)) m->stack[depth++] = s + 2;
        break;
      default:
        into[(*count)++] = s;
    }
  }
}

/* The memory of a machine for programs of up to `size` integers. */
static inline int64_t rutc_machine_bytes(int64_t size) {
  return (5 * size + 8) * (int64_t)sizeof(int64_t);
}

/* A machine for programs of up to `size` integers; NULL in `waiting`: there is no memory. */
static inline rutc_machine rutc_machine_of(const rutc_call *call, int64_t size) {
  int64_t *memory = rutc_call_scratch(call, rutc_machine_bytes(size));
  if (memory == NULL) return (rutc_machine){0};
  rutc_machine m = {NULL, memory, memory + size, memory + 3 * size + 4, memory + 2 * size, 0};
  memset(m.mark, 0, (size_t)size * sizeof *m.mark);
  return m;
}

/* Whether one of the states accepts. */
static inline int rutc_accepts(const rutc_machine *m, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    if (m->program[m->waiting[i]] == MATCH) return 1;
  }
  return 0;
}

/* Moves all states over the character `c`, which `after` follows; returns how many are left. */
static inline int64_t rutc_step(rutc_machine *m, int64_t count, int64_t c, int64_t after) {
  int64_t moved = 0;
  m->now++;
  for (int64_t i = 0; i < count; i++) {
    int64_t place = m->waiting[i] + 1, hit = 0;
    if (m->program[m->waiting[i]] != ANY) continue;
    for (; m->program[place] >= 0; place += 2) {
      hit |= c >= m->program[place] && c <= m->program[place + 1];
    }
    if (hit) rutc_follow(m, m->next, &moved, place + 1, c, after);
  }
  int64_t *swap = m->waiting;
  m->waiting = m->next;
  m->next = swap;
  return moved;
}

#endif
