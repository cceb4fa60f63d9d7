#include "sha256.h"

#include <string.h>

#if defined(__x86_64__) && !defined(RUTC_PORTABLE)
#include <cpuid.h>
#include <smmintrin.h>
#define HAS_INSTRUCTIONS 1
#endif

enum { BLOCK = 64, LENGTH = 8, ROUNDS = 64 };

/* The fractions of the cube roots of the first primes. */
static const uint32_t CONSTANTS[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void take_block(uint32_t *state, const uint8_t *block) {
  uint32_t words[ROUNDS];
  for (int i = 0; i < 16; i++) {
    const uint8_t *w = block + 4 * i;
    words[i] = (uint32_t)w[0] << 24 | (uint32_t)w[1] << 16 | (uint32_t)w[2] << 8 | w[3];
  }
  for (int i = 16; i < ROUNDS; i++) {
    uint32_t x = words[i - 15], y = words[i - 2];
    uint32_t first = turned(x, 7) ^ turned(x, 18) ^ x >> 3;
    uint32_t second = turned(y, 17) ^ turned(y, 19) ^ y >> 10;
    words[i] = words[i - 16] + first + words[i - 7] + second;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int i = 0; i < ROUNDS; i++) {
    uint32_t chosen = (e & f) ^ (~e & g), most = (a & b) ^ (a & c) ^ (b & c);
    uint32_t first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + chosen + CONSTANTS[i] +
                     words[i];
    uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + most;
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void take_blocks(uint32_t *state, const uint8_t *data, size_t count) {
  for (size_t i = 0; i < count; i++) take_block(state, data + i * BLOCK);
}

#ifdef HAS_INSTRUCTIONS
/* By their own names: the header that has others for them has those for all that a processor can,
   and takes three times as long to read as all else here to compile. */
#define MESSAGE(n, a, b) ((__m128i)__builtin_ia32_sha256msg##n((__v4si)(a), (__v4si)(b)))
#define TWO_ROUNDS(a, b, c) \
  ((__m128i)__builtin_ia32_sha256rnds2((__v4si)(a), (__v4si)(b), (__v4si)(c)))

/* The same by the processor's own instructions, which have the state in the order f e b a, h g d c. */
__attribute__((target("sha,sse4.1"))) static void take_blocks_at_once(uint32_t *state,
                                                                      const uint8_t *data,
                                                                      size_t count) {
  const __m128i bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i first = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
  __m128i second = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
  __m128i feba = _mm_alignr_epi8(first, second, 8);
  __m128i hgdc = _mm_blend_epi16(second, first, 0xf0);
  for (; count > 0; count--, data += BLOCK) {
    const __m128i before[2] = {feba, hgdc};
    __m128i words[4];
    for (int i = 0; i < ROUNDS / 4; i++) {
      __m128i *own = &words[i % 4], last = words[(i + 3) % 4];
      if (i < 4) {
        *own = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + i), bytes);
      } else {
        __m128i sum = MESSAGE(1, *own, words[(i + 1) % 4]);
        sum = _mm_add_epi32(sum, _mm_alignr_epi8(last, words[(i + 2) % 4], 4));
        *own = MESSAGE(2, sum, last);
      }
      __m128i added = _mm_add_epi32(*own, _mm_loadu_si128((const __m128i *)CONSTANTS + i));
      hgdc = TWO_ROUNDS(hgdc, feba, added);
      feba = TWO_ROUNDS(feba, hgdc, _mm_shuffle_epi32(added, 0x0e));
    }
    feba = _mm_add_epi32(feba, before[0]);
    hgdc = _mm_add_epi32(hgdc, before[1]);
  }
  first = _mm_shuffle_epi32(feba, 0x1b);
  second = _mm_shuffle_epi32(hgdc, 0xb1);
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(first, second, 0xf0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(second, first, 8));
}

static int has_instructions(void) {
  enum { SSSE3 = 1 << 9, SSE4_1 = 1 << 19, SHA = 1 << 29 };
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & SSSE3) || !(c & SSE4_1)) return 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & SHA);
}
#endif

void rutc_sha256(const uint8_t *data, size_t bytes, uint8_t digest[RUTC_SHA256_BYTES]) {
  /* The fractions of the square roots of the first primes. */
  uint32_t state[8] = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
  };
  void (*take)(uint32_t *, const uint8_t *, size_t) = take_blocks;
#ifdef HAS_INSTRUCTIONS
  if (has_instructions()) take = take_blocks_at_once;
#endif
  size_t whole = bytes / BLOCK * BLOCK, rest = bytes - whole;
  take(state, data, whole / BLOCK);
  uint8_t end[2 * BLOCK] = {0};
  if (rest > 0) memcpy(end, data + whole, rest);
  end[rest] = 0x80;
  size_t size = rest + 1 + LENGTH <= BLOCK ? BLOCK : 2 * BLOCK;
  for (int i = 0; i < LENGTH; i++) end[size - 1 - i] = (uint8_t)((uint64_t)bytes * 8 >> 8 * i);
  take(state, end, size / BLOCK);
  for (int i = 0; i < RUTC_SHA256_BYTES; i++) {
    digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
  }
}
