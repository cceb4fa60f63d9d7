// What the instructions on tiles (AMX) do, in C: as Intel's manual defines them, for processors
// without. A tile is 16 rows of 64 bytes; a table gives each its rows and the bytes of a row.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

static __thread uint8_t tiles[TILES][ROWS][ROW_BYTES];
static __thread uint8_t table[64];

static int rows(int8_t t) { return table[48 + t]; }
static int bytes(int8_t t) { return table[16 + 2 * t] | table[17 + 2 * t] << 8; }

static void check(int good) {
  if (!good) abort();
}

void tiles_ldtilecfg(const uint8_t *from) {
  memcpy(table, from, sizeof table);
  memset(tiles, 0, sizeof tiles);
  check(table[0] == 1);
  for (int8_t t = 0; t < TILES; t++) check(rows(t) <= ROWS && bytes(t) <= ROW_BYTES);
}

void tiles_tilerelease(void) { memset(table, 0, sizeof table); }

void tiles_tilezero(int8_t t) {
  check(table[0] == 1);
  memset(tiles[t], 0, sizeof tiles[t]);
}

void tiles_tileloadd64(int8_t t, const uint8_t *from, int64_t stride) {
  check(table[0] == 1 && rows(t) > 0);
  memset(tiles[t], 0, sizeof tiles[t]);
  for (int r = 0; r < rows(t); r++) memcpy(tiles[t][r], from + r * stride, (size_t)bytes(t));
}

void tiles_tilestored64(int8_t t, uint8_t *to, int64_t stride) {
  check(table[0] == 1 && rows(t) > 0);
  for (int r = 0; r < rows(t); r++) memcpy(to + r * stride, tiles[t][r], (size_t)bytes(t));
}

static void check_product(int8_t c, int8_t a, int8_t b) {
  check(table[0] == 1 && c != a && c != b && a != b);
  check(rows(a) == rows(c) && rows(b) == bytes(a) / 4 && bytes(b) == bytes(c));
  check(bytes(a) % 4 == 0 && bytes(c) % 4 == 0);
}

static float bf16(const uint8_t *from) {
  uint16_t half;
  memcpy(&half, from, sizeof half);
  uint32_t word = (uint32_t)half << 16;
  // Subnormal numbers are zeros.
  if ((word & 0x7F800000) == 0) word &= 0x80000000;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

void tiles_tdpbf16ps(int8_t c, int8_t a, int8_t b) {
  check_product(c, a, b);
  for (int m = 0; m < rows(c); m++)
    for (int n = 0; n < bytes(c) / 4; n++) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < bytes(a) / 4; k++) {
        const uint8_t *x = &tiles[a][m][4 * k], *y = &tiles[b][k][4 * n];
        even = __builtin_fmaf(bf16(x), bf16(y), even);
        odd = __builtin_fmaf(bf16(x + 2), bf16(y + 2), odd);
      }
      memcpy(&sum, &tiles[c][m][4 * n], sizeof sum);
      sum += even + odd;
      memcpy(&tiles[c][m][4 * n], &sum, sizeof sum);
    }
}

#define BYTES(NAME, LEFT, RIGHT)                                                   \
  void tiles_##NAME(int8_t c, int8_t a, int8_t b) {                                \
    check_product(c, a, b);                                                        \
    for (int m = 0; m < rows(c); m++)                                              \
      for (int n = 0; n < bytes(c) / 4; n++) {                                     \
        int32_t sum;                                                               \
        memcpy(&sum, &tiles[c][m][4 * n], sizeof sum);                             \
        for (int k = 0; k < bytes(a); k++)                                         \
          sum += (LEFT)tiles[a][m][k] * (RIGHT)tiles[b][k / 4][4 * n + k % 4];     \
        memcpy(&tiles[c][m][4 * n], &sum, sizeof sum);                             \
      }                                                                            \
  }

BYTES(tdpbssd, int8_t, int8_t)
BYTES(tdpbsud, int8_t, uint8_t)
BYTES(tdpbusd, uint8_t, int8_t)
BYTES(tdpbuud, uint8_t, uint8_t)
