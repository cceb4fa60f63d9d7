#include "call.h"

enum { N = 624, M = 397 };

/* MT19937 [Matsumoto & Nishimura 1998]. */
typedef struct twister {
  uint32_t words[N];
  int next;
} twister;

static void seed_twister(twister *self, uint32_t seed) {
  self->words[0] = seed;
  for (uint32_t i = 1; i < N; i++) {
    uint32_t last = self->words[i - 1];
    self->words[i] = 1812433253u * (last ^ last >> 30) + i;
  }
  self->next = N;
}

static void refill(twister *self) {
  for (int i = 0; i < N; i++) {
    uint32_t y = (self->words[i] & 0x80000000u) | (self->words[(i + 1) % N] & 0x7FFFFFFFu);
    self->words[i] = self->words[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908B0DFu : 0);
  }
  self->next = 0;
}

static uint32_t next_word(twister *self) {
  if (self->next == N) refill(self);
  uint32_t y = self->words[self->next++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9D2C5680u;
  y ^= y << 15 & 0xEFC60000u;
  return y ^ y >> 18;
}

int rutc_routine_numpy_uniform(const rutc_call *call) {
  twister generator;
  seed_twister(&generator, (uint32_t)rutc_call_integer(call, "seed", 0));
  double *out = call->outs[0].data;
  int64_t count = rutc_call_count(&call->outs[0]);
  for (int64_t i = 0; i < count; i++) {
    uint32_t high = next_word(&generator) >> 5, low = next_word(&generator) >> 6;
    out[i] = ((double)high * 67108864.0 + low) / 9007199254740992.0;
  }
  return RUTC_OK;
}
