/* Philox 4x32-10 [Salmon et al. 2011]: random words as a function of a key and a counter. */
#ifndef RUTC_PHILOX_H
#define RUTC_PHILOX_H

#include <stdint.h>

/* Blocks that are made at once, by vectors of words. */
enum { PHILOX_BLOCKS = 64 };

/* words[k][i] is word k of the block of the counter (first + i, draws). */
static inline void rutc_philox(uint64_t seed, uint64_t first, uint64_t draws,
                               uint32_t words[4][PHILOX_BLOCKS]) {
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  for (int i = 0; i < PHILOX_BLOCKS; i++) {
    uint64_t block = first + (uint64_t)i;
    words[0][i] = (uint32_t)block;
    words[1][i] = (uint32_t)(block >> 32);
    words[2][i] = (uint32_t)draws;
    words[3][i] = (uint32_t)(draws >> 32);
  }
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < PHILOX_BLOCKS; i++) {
      uint64_t p0 = (uint64_t)words[0][i] * 0xD2511F53u, p1 = (uint64_t)words[2][i] * 0xCD9E8D57u;
      uint32_t x0 = (uint32_t)(p1 >> 32) ^ words[1][i] ^ key0;
      uint32_t x2 = (uint32_t)(p0 >> 32) ^ words[3][i] ^ key1;
      words[0][i] = x0;
      words[1][i] = (uint32_t)p1;
      words[2][i] = x2;
      words[3][i] = (uint32_t)p0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/* 53 bits as a number of [0, 1): each part is a number without a sign, and so is their sum, exactly. */
static inline double rutc_unit(uint32_t high, uint32_t low) {
  return ((double)(int32_t)(high >> 5) * 0x1p26 + (double)(int32_t)(low >> 6)) * 0x1p-53;
}

#endif
