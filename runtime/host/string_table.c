#include "string_table.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 16, FIRST_PLACES = 64 };

/* The bits of a word spread over all of it: the multiplier is 2^64 over the golden ratio, odd. */
static uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
  return hash ^ hash >> 32;
}

static uint64_t hash_of(const char *data, int64_t bytes) {
  uint64_t hash = (uint64_t)bytes, word = 0;
  int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    memcpy(&word, data + i, 8);
    hash = mixed(hash, word);
  }
  word = 0;
  for (int shift = 0; i < bytes; i++, shift += 8) word |= (uint64_t)(uint8_t)data[i] << shift;
  return mixed(hash, word);
}

/* The place of a string in the hash table, or the free one where it belongs. */
static int64_t place_of(const rutc_strings *strings, const char *data, int64_t bytes) {
  int64_t mask = strings->place_count - 1;
  int64_t place = (int64_t)hash_of(data, bytes) & mask;
  for (;; place = (place + 1) & mask) {
    int64_t number = strings->places[place] - 1;
    if (number < 0) return place;
    const rutc_text *text = &strings->texts[number];
    if (text->bytes == bytes && (bytes == 0 || memcmp(text->data, data, (size_t)bytes) == 0)) {
      return place;
    }
  }
}

static void fill_places(rutc_strings *strings) {
  memset(strings->places, 0, (size_t)strings->place_count * sizeof *strings->places);
  for (int64_t i = 0; i < strings->count; i++) {
    const rutc_text *text = &strings->texts[i];
    int64_t place = place_of(strings, text->data, text->bytes);
    strings->places[place] = i + 1;
    strings->where[i] = place;
  }
}

/* Room for one more string: at most half of the places are taken. */
static int make_room(rutc_strings *strings) {
  if (strings->count < strings->capacity) return 0;
  int64_t capacity = strings->capacity > 0 ? 2 * strings->capacity : FIRST_PLACES / 2;
  rutc_text *texts = realloc(strings->texts, (size_t)capacity * sizeof *texts);
  if (texts == NULL) return -1;
  strings->texts = texts;
  int64_t *where = realloc(strings->where, (size_t)capacity * sizeof *where);
  if (where == NULL) return -1;
  strings->where = where;
  int64_t *places = realloc(strings->places, 2 * (size_t)capacity * sizeof *places);
  if (places == NULL) return -1;
  strings->places = places;
  strings->capacity = capacity;
  strings->place_count = 2 * capacity;
  fill_places(strings);
  return 0;
}

char *rutc_strings_room(rutc_strings *strings, int64_t bytes) {
  rutc_block *block = strings->blocks;
  if (block == NULL || block->capacity - block->used < bytes) {
    rutc_block **link = &strings->spare;
    while (*link != NULL && (*link)->capacity < bytes) link = &(*link)->next;
    block = *link;
    if (block != NULL) {
      *link = block->next;
    } else {
      int64_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
      block = malloc(sizeof *block + (size_t)capacity);
      if (block == NULL) return NULL;
      block->capacity = capacity;
    }
    block->used = 0;
    block->next = strings->blocks;
    strings->blocks = block;
  }
  return block->memory + block->used;
}

static int64_t enter_string(rutc_strings *strings, int64_t place, const char *data, int64_t bytes) {
  strings->texts[strings->count] = (rutc_text){data, bytes};
  strings->where[strings->count] = place;
  strings->places[place] = ++strings->count;
  return strings->count - 1;
}

int64_t rutc_intern_kept(rutc_strings *strings, const char *data, int64_t bytes) {
  if (make_room(strings) != 0) return -1;
  int64_t place = place_of(strings, data, bytes);
  if (strings->places[place] > 0) return strings->places[place] - 1;
  strings->blocks->used += bytes;
  return enter_string(strings, place, data, bytes);
}

int64_t rutc_intern(rutc_strings *strings, const char *data, int64_t bytes) {
  if (make_room(strings) != 0) return -1;
  int64_t place = place_of(strings, data, bytes);
  if (strings->places[place] > 0) return strings->places[place] - 1;
  char *copy = rutc_strings_room(strings, bytes);
  if (copy == NULL) return -1;
  if (bytes > 0) memcpy(copy, data, (size_t)bytes);
  strings->blocks->used += bytes;
  return enter_string(strings, place, copy, bytes);
}

static void move_blocks(rutc_block **from, rutc_block **to) {
  while (*from != NULL) {
    rutc_block *block = *from;
    *from = block->next;
    block->next = *to;
    *to = block;
  }
}

void rutc_strings_reset(rutc_strings *strings, int keep) {
  move_blocks(&strings->last, &strings->spare);
  move_blocks(&strings->blocks, keep ? &strings->last : &strings->spare);
  /* Those that came last go first: each leaves its place as it found it. */
  while (strings->count > strings->own) strings->places[strings->where[--strings->count]] = 0;
}

int rutc_strings_open(rutc_strings *strings, const rutc_text *own, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    if (make_room(strings) != 0) return -1;
    enter_string(strings, place_of(strings, own[i].data, own[i].bytes), own[i].data, own[i].bytes);
  }
  strings->own = count;
  return 0;
}

static void release_block(rutc_block *block) {
  while (block != NULL) {
    rutc_block *next = block->next;
    free(block);
    block = next;
  }
}

void rutc_strings_close(rutc_strings *strings) {
  release_block(strings->blocks);
  release_block(strings->last);
  release_block(strings->spare);
  free(strings->texts);
  free(strings->places);
  free(strings->where);
}
