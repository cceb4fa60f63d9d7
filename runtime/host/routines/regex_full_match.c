#include <stddef.h>
#include <string.h>

#include "call.h"
#include "utf8.h"

/* The instructions of a program, as tensor_ir/regex.py describes them. */
enum { ANY, SPLIT, JUMP, TEST, MATCH };
enum { TEXT_BEGIN, TEXT_END, LINE_BEGIN, LINE_END, WORD, NO_WORD };

/* States that wait for a character, each once; `mark` tells by the text's position which are in. */
typedef struct machine {
  const int64_t *program;
  int64_t *waiting;
  int64_t *next;
  int64_t *stack;
  int64_t *mark;
} machine;

static int is_word(int64_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

static int holds(int64_t kind, int64_t before, int64_t after) {
  switch (kind) {
    case TEXT_BEGIN: return before == RUTC_NO_CHARACTER;
    case TEXT_END: return after == RUTC_NO_CHARACTER;
    case LINE_BEGIN: return before == RUTC_NO_CHARACTER || before == '\n';
    case LINE_END: return after == RUTC_NO_CHARACTER || after == '\n';
    case WORD: return is_word(before) != is_word(after);
    default: return is_word(before) == is_word(after);
  }
}

/* Enters `state` and all that are reached from it without reading; `now` is never 0. */
static void follow(machine *m, int64_t *into, int64_t *count, int64_t state, int64_t now,
                   int64_t before, int64_t after) {
  int64_t depth = 0;
  m->stack[depth++] = state;
  while (depth > 0) {
    int64_t s = m->stack[--depth];
    if (m->mark[s] == now) continue;
    m->mark[s] = now;
    switch (m->program[s]) {
      case SPLIT:
        m->stack[depth++] = m->program[s + 2];
        m->stack[depth++] = m->program[s + 1];
        break;
      case JUMP:
        m->stack[depth++] = m->program[s + 1];
        break;
      case TEST:
        if (holds(m->program[s + 1], before, after)) m->stack[depth++] = s + 2;
        break;
      default:
        into[(*count)++] = s;
    }
  }
}

static int full_match(machine *m, rutc_text text, int64_t *now) {
  int64_t at = 0, before = RUTC_NO_CHARACTER, count = 0;
  int64_t after = rutc_utf8_next(text, &at);
  follow(m, m->waiting, &count, 0, ++*now, before, after);
  while (after != RUTC_NO_CHARACTER && count > 0) {
    int64_t c = after, moved = 0;
    after = rutc_utf8_next(text, &at);
    ++*now;
    for (int64_t i = 0; i < count; i++) {
      int64_t place = m->waiting[i] + 1, hit = 0;
      if (m->program[m->waiting[i]] != ANY) continue;
      for (; m->program[place] >= 0; place += 2) {
        hit |= c >= m->program[place] && c <= m->program[place + 1];
      }
      if (hit) follow(m, m->next, &moved, place + 1, *now, c, after);
    }
    int64_t *swap = m->waiting;
    m->waiting = m->next;
    m->next = swap;
    count = moved;
  }
  if (after != RUTC_NO_CHARACTER) return 0;
  for (int64_t i = 0; i < count; i++) {
    if (m->program[m->waiting[i]] == MATCH) return 1;
  }
  return 0;
}

int rutc_routine_regex_full_match(const rutc_call *call) {
  const int64_t *numbers = call->args[0].data;
  const int64_t *program = call->args[1].data;
  uint8_t *out = call->outs[0].data;
  int64_t size = rutc_call_count(&call->args[1]), count = rutc_call_count(&call->outs[0]);
  int64_t *memory = rutc_call_scratch(call, (5 * size + 8) * (int64_t)sizeof *memory);
  if (memory == NULL) return RUTC_OUT_OF_MEMORY;
  machine m = {program, memory, memory + size, memory + 3 * size + 4, memory + 2 * size};
  memset(m.mark, 0, (size_t)size * sizeof *m.mark);
  int64_t now = 0;
  for (int64_t i = 0; i < count; i++) {
    out[i] = (uint8_t)full_match(&m, call->strings->texts[numbers[i]], &now);
  }
  return RUTC_OK;
}
