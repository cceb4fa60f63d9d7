/* Decompression of zlib streams [RFC 1950, RFC 1951]. */
#ifndef RUTC_INFLATE_H
#define RUTC_INFLATE_H

#include <stdint.h>
#include <string.h>

typedef struct rutc_bits {
  const uint8_t *data;
  int64_t bytes, at;
  uint32_t held;
  int count;
  int failed;
} rutc_bits;

static inline uint32_t rutc_take_bits(rutc_bits *self, int count) {
  while (self->count < count) {
    if (self->at >= self->bytes) {
      self->failed = 1;
      return 0;
    }
    self->held |= (uint32_t)self->data[self->at++] << self->count;
    self->count += 8;
  }
  uint32_t value = self->held & ((1u << count) - 1);
  self->held >>= count;
  self->count -= count;
  return value;
}

/* A canonical prefix code: how many codes have each length, and the symbols in order. */
typedef struct rutc_code {
  uint16_t counts[16];
  uint16_t symbols[288];
} rutc_code;

static inline void rutc_make_code(rutc_code *self, const uint8_t *lengths, int count) {
  uint16_t starts[16] = {0};
  memset(self->counts, 0, sizeof self->counts);
  for (int i = 0; i < count; i++) self->counts[lengths[i]]++;
  self->counts[0] = 0;
  for (int n = 1; n < 15; n++) starts[n + 1] = (uint16_t)(starts[n] + self->counts[n]);
  for (int i = 0; i < count; i++) {
    if (lengths[i] > 0) self->symbols[starts[lengths[i]]++] = (uint16_t)i;
  }
}

static inline int rutc_take_symbol(rutc_bits *bits, const rutc_code *code) {
  int value = 0, first = 0, place = 0;
  for (int length = 1; length < 16; length++) {
    value |= (int)rutc_take_bits(bits, 1);
    int count = code->counts[length];
    if (value - first < count) return code->symbols[place + value - first];
    place += count;
    first = (first + count) << 1;
    value <<= 1;
  }
  bits->failed = 1;
  return 0;
}

/* The literal and the distance codes of a block; 0 where they are damaged. */
static inline int rutc_take_codes(rutc_bits *bits, uint32_t kind, rutc_code *literals,
                                  rutc_code *distances) {
  static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  uint8_t lengths[320] = {0};
  if (kind == 1) {
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    rutc_make_code(literals, lengths, 288);
    memset(lengths, 5, 30);
    rutc_make_code(distances, lengths, 30);
    return 1;
  }
  int literal_count = (int)rutc_take_bits(bits, 5) + 257;
  int distance_count = (int)rutc_take_bits(bits, 5) + 1;
  int order_count = (int)rutc_take_bits(bits, 4) + 4;
  if (literal_count > 286 || distance_count > 30) return 0;
  for (int i = 0; i < order_count; i++) lengths[order[i]] = (uint8_t)rutc_take_bits(bits, 3);
  rutc_code meta;
  rutc_make_code(&meta, lengths, 19);
  memset(lengths, 0, sizeof lengths);
  for (int i = 0; i < literal_count + distance_count && !bits->failed;) {
    int symbol = rutc_take_symbol(bits, &meta);
    if (symbol < 16) {
      lengths[i++] = (uint8_t)symbol;
      continue;
    }
    if (symbol == 16 && i == 0) return 0;
    uint8_t again = symbol == 16 ? lengths[i - 1] : 0;
    int times = symbol == 16   ? 3 + (int)rutc_take_bits(bits, 2)
                : symbol == 17 ? 3 + (int)rutc_take_bits(bits, 3)
                               : 11 + (int)rutc_take_bits(bits, 7);
    if (i + times > literal_count + distance_count) return 0;
    while (times-- > 0) lengths[i++] = again;
  }
  rutc_make_code(literals, lengths, literal_count);
  rutc_make_code(distances, lengths + literal_count, distance_count);
  return !bits->failed;
}

/* The number that a length or distance symbol stands for: a base and extra bits. */
static inline int64_t rutc_take_extended(rutc_bits *bits, int symbol, int per, int64_t first) {
  int groups = symbol < 2 * per ? 0 : symbol / per - 1;
  int64_t base = first + symbol;
  if (groups > 0) base = first + ((int64_t)(per + symbol % per) << groups);
  return base + (groups > 0 ? (int64_t)rutc_take_bits(bits, groups) : 0);
}

/* Writes exactly `room` bytes; 0 where the stream is damaged or holds another number. */
static inline int rutc_inflate(const uint8_t *data, int64_t bytes, uint8_t *out, int64_t room) {
  rutc_bits bits = {data, bytes, 2, 0, 0, 0};
  rutc_code literals, distances;
  int64_t at = 0;
  for (uint32_t last = 0; !last && !bits.failed;) {
    last = rutc_take_bits(&bits, 1);
    uint32_t kind = rutc_take_bits(&bits, 2);
    if (kind == 3) return 0;
    if (kind == 0) {
      bits.held = 0;
      bits.count = 0;
      if (bits.at + 4 > bytes) return 0;
      int64_t size = data[bits.at] | (int64_t)data[bits.at + 1] << 8;
      bits.at += 4;
      if (bits.at + size > bytes || at + size > room) return 0;
      memcpy(out + at, data + bits.at, (size_t)size);
      bits.at += size;
      at += size;
      continue;
    }
    if (!rutc_take_codes(&bits, kind, &literals, &distances)) return 0;
    while (!bits.failed) {
      int symbol = rutc_take_symbol(&bits, &literals);
      if (symbol == 256) break;
      if (symbol < 256) {
        if (at >= room) return 0;
        out[at++] = (uint8_t)symbol;
        continue;
      }
      if (symbol > 285) return 0;
      int64_t length = symbol == 285 ? 258 : rutc_take_extended(&bits, symbol - 257, 4, 3);
      int code = rutc_take_symbol(&bits, &distances);
      if (code > 29) return 0;
      int64_t distance = rutc_take_extended(&bits, code, 2, 1);
      if (distance > at || at + length > room || bits.failed) return 0;
      for (; length > 0; length--, at++) out[at] = out[at - distance];
    }
  }
  return !bits.failed && at == room;
}

#endif
