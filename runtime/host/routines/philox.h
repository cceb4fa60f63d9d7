/* Philox 4x32-10 [Salmon et al. 2011]: random words as a function of a key and a counter. */
#ifndef RUTC_PHILOX_H
#define RUTC_PHILOX_H

#include <stdint.h>

static inline void rutc_philox(uint64_t seed, uint64_t block, uint64_t draws, uint32_t words[4]) {
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
  uint32_t x0 = (uint32_t)block, x1 = (uint32_t)(block >> 32);
  uint32_t x2 = (uint32_t)draws, x3 = (uint32_t)(draws >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)x0 * 0xD2511F53u, p1 = (uint64_t)x2 * 0xCD9E8D57u;
    uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ key0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ key1;
    x0 = y0;
    x1 = (uint32_t)p1;
    x2 = y2;
    x3 = (uint32_t)p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = x0;
  words[1] = x1;
  words[2] = x2;
  words[3] = x3;
}

/* 53 bits as a number of [0, 1). */
static inline double rutc_unit(uint32_t high, uint32_t low) {
  return (double)((uint64_t)(high >> 5) << 26 | low >> 6) * 0x1p-53;
}

#endif
