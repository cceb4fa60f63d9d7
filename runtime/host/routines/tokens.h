/* The tokens of a text: what regular expressions match, or what is between their matches. */
#ifndef RUTC_TOKENS_H
#define RUTC_TOKENS_H

#include "regex.h"

/* Where a program goes on in a text. */
typedef struct rutc_search {
  const int64_t *program; /* its length, and then itself */
  rutc_text text;
  int64_t at;
} rutc_search;

typedef struct rutc_tokens {
  const rutc_call *call;
  rutc_machine machine;
  const int64_t *programs; /* each after its length */
  const int64_t *end;
  rutc_search *searches; /* room for one of each program */
  int64_t least;  /* characters of a token */
  int between;    /* whether matches separate tokens; else they are tokens */
  int64_t *out;   /* where tokens go; NULL: they are counted only */
  int64_t room;   /* how many have room */
  int64_t found;
} rutc_tokens;

static inline int64_t rutc_characters(rutc_text text) {
  int64_t at = 0, count = 0;
  while (rutc_utf8_next(text, &at) != RUTC_NO_CHARACTER) count++;
  return count;
}

/* The end of the longest match that begins at `from`, after the character `before`; -1: none. */
static inline int64_t rutc_longest_match(rutc_machine *m, rutc_text text, int64_t from,
                                         int64_t before) {
  int64_t at = from, count = 0, last = -1, end = from;
  int64_t after = rutc_utf8_next(text, &at);
  m->now++;
  rutc_follow(m, m->waiting, &count, 0, before, after);
  for (;;) {
    if (rutc_accepts(m, count)) last = end;
    if (after == RUTC_NO_CHARACTER || count == 0) return last;
    int64_t c = after;
    end = at;
    after = rutc_utf8_next(text, &at);
    count = rutc_step(m, count, c, after);
  }
}

/* Finds the first match from `*begin` on; 0: there is none. */
static inline int rutc_find_match(rutc_machine *m, rutc_text text, int64_t *begin, int64_t *end) {
  int64_t at = *begin;
  /* Tests tell ASCII from others only, for which the last byte of a character does. */
  int64_t before = at > 0 ? (uint8_t)text.data[at - 1] : RUTC_NO_CHARACTER;
  for (;;) {
    *end = rutc_longest_match(m, text, at, before);
    *begin = at;
    if (*end >= 0) return 1;
    before = rutc_utf8_next(text, &at);
    if (before == RUTC_NO_CHARACTER) return 0;
  }
}

/* Counts a token, and writes it; 0: there is no memory or no room. */
static inline int rutc_take_token(rutc_tokens *t, rutc_text token) {
  if (t->out != NULL) {
    if (t->found == t->room) return 0;
    t->out[t->found] = rutc_intern(t->call->strings, token.data, token.bytes);
    if (t->out[t->found] < 0) return 0;
  }
  t->found++;
  return 1;
}

/* Gives the next token that a program finds in its text; 0: there is none. */
static inline int rutc_next_token(rutc_tokens *t, rutc_search *s, rutc_text *token) {
  rutc_text text = s->text;
  t->machine.program = s->program + 1;
  while (s->at <= text.bytes) {
    int64_t begin = s->at, end = text.bytes, next = text.bytes + 1;
    int matched = rutc_find_match(&t->machine, text, &begin, &end);
    if (!matched && !t->between) return 0;
    *token = (rutc_text){text.data + begin, end - begin};
    if (t->between) *token = (rutc_text){text.data + s->at, (matched ? begin : text.bytes) - s->at};
    int taken = token->bytes > 0 && rutc_characters(*token) >= t->least;
    if (matched) {
      /* After what was no token, or an empty separator, the search goes on one character on. */
      next = begin;
      if (t->between ? end > begin : taken) {
        next = end;
      } else if (rutc_utf8_next(text, &next) == RUTC_NO_CHARACTER) {
        next = text.bytes + 1;
      }
    }
    s->at = next;
    if (taken) return 1;
  }
  return 0;
}

/* The tokens of a text, of which each program splits what the one before it found; 0: a failure. */
static inline int rutc_split_tokens(rutc_tokens *t, rutc_text text) {
  if (t->programs == t->end) return rutc_take_token(t, text);
  int64_t depth = 0;
  t->searches[0] = (rutc_search){t->programs, text, 0};
  while (depth >= 0) {
    rutc_search *s = &t->searches[depth];
    rutc_text token;
    if (!rutc_next_token(t, s, &token)) {
      depth--;
      continue;
    }
    const int64_t *following = s->program + 1 + s->program[0];
    if (following < t->end) {
      t->searches[++depth] = (rutc_search){following, token, 0};
    } else if (!rutc_take_token(t, token)) {
      return 0;
    }
  }
  return 1;
}

/* The tokens of all texts of a call; `machine.waiting` is NULL where there is no memory. */
static inline rutc_tokens rutc_tokens_of(const rutc_call *call) {
  const int64_t *programs = call->args[1].data;
  int64_t size = rutc_call_count(&call->args[1]), count = 0;
  for (const int64_t *p = programs; p < programs + size; p += 1 + p[0]) count++;
  int64_t machine_bytes = rutc_machine_bytes(size);
  /* The machine's own request gets the beginning of this memory. */
  char *memory = rutc_call_scratch(call, machine_bytes + count * (int64_t)sizeof(rutc_search));
  if (memory == NULL) return (rutc_tokens){0};
  return (rutc_tokens){
      .call = call,
      .machine = rutc_machine_of(call, size),
      .programs = programs,
      .end = programs + size,
      .searches = (rutc_search *)(memory + machine_bytes),
      .least = rutc_call_integer(call, "least", 1),
      .between = (int)rutc_call_integer(call, "between", 0),
  };
}

#endif
