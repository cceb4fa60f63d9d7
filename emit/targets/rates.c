/* Loops that measure what a core of this machine does in a cycle.

   Compiled for the processor at hand, with BYTES the width of its vector registers. What a loop
   computes passes through `keep`, so that no part of it can be left out. Instructions stand here as
   they are: the header that has functions for them takes twice as long to read as all this to
   compile, and a first compilation waits for it. */
typedef float vector __attribute__((vector_size(BYTES)));
typedef int places __attribute__((vector_size(BYTES)));

#if defined(__x86_64__)
#define keep(x) __asm__ volatile("" : "+x"(x))
#else
#define keep(x) __asm__ volatile("" : "+w"(x))
#endif
#define EACH(k, count) _Pragma("GCC unroll 16") for (int k = 0; k < count; k++)

/* Additions that wait for each other: one in each cycle. */
void additions(long count) {
  long x = 1;
  for (long i = 0; i < count; i += 16) EACH(k, 16) __asm__ volatile("" : "+r"(x) : "r"(x += i));
}

/* Multiply-adds that wait for each other. */
void chained_fmas(long count) {
  vector a = (vector){} + 0.5f, b = (vector){} + 1.0f, c = b;
  for (long i = 0; i < count; i += 16)
    EACH(k, 16) {
      c = c * a + b;
      keep(c);
    }
}

/* Multiply-adds of 12 chains, which hide how long each takes, of whole vectors and half ones. */
#define FMAS(name, type) \
  void name(long count) { \
    type a = (type){} + 0.5f, b = (type){} + 1.0f, c[12]; \
    EACH(k, 12) c[k] = b; \
    for (long i = 0; i < count; i += 12) \
      EACH(k, 12) { \
        c[k] = c[k] * a + b; \
        keep(c[k]); \
      } \
  }
typedef float half __attribute__((vector_size(BYTES / 2)));
FMAS(fmas, vector)
FMAS(half_fmas, half)

/* Sums of products of pairs of bf16, of 12 chains; multiply-adds where no instruction does it. */
void bf16_pairs(long count) {
#ifdef __AVX512BF16__
  vector a = (vector){}, c[12] = {};
  for (long i = 0; i < count; i += 12)
    EACH(k, 12) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(c[k]) : "v"(a));
#else
  fmas(count);
#endif
}

/* Divisions of 8 chains. */
void divisions(long count) {
  vector a = (vector){} + 3.0f, c[8];
  EACH(k, 8) c[k] = a;
  for (long i = 0; i < count; i += 8)
    EACH(k, 8) {
      c[k] = a / c[k];
      keep(c[k]);
    }
}

/* Gathers of elements that lie apart; the loads of a vector where no instruction does it. */
void gathers(const vector *from, long count) {
#if defined(__AVX512F__) && BYTES == 64
  places at = {7, 14, 5, 12, 3, 10, 1, 8, 15, 6, 13, 4, 11, 2, 9, 0};
  vector x = {};
  for (long i = 0; i < count; i += 8)
    EACH(k, 8)
      __asm__ volatile("kxnorw %%k1, %%k1, %%k1\n\tvgatherdps (%1,%2,4), %0%{%%k1%}"
                       : "+v"(x)
                       : "r"(from + k), "v"(at)
                       : "k1");
#elif defined(__AVX2__) && BYTES == 32
  places at = {3, 6, 1, 4, 7, 2, 5, 0}, all;
  vector x = {};
  for (long i = 0; i < count; i += 8)
    EACH(k, 8)
      __asm__ volatile("vpcmpeqd %1, %1, %1\n\tvgatherdps %1, (%2,%3,4), %0"
                       : "+x"(x), "=&x"(all)
                       : "r"(from + k), "x"(at));
#else
  for (long i = 0; i < count; i++)
    EACH(k, BYTES / 4) {
      float x = *((const volatile float *)from + k);
      keep(x);
    }
#endif
}

/* Loads of 16 vectors, over and over. */
void loads(const vector *from, long count) {
  for (long i = 0; i < count; i += 16)
    EACH(k, 16) {
      vector x = *(const volatile vector *)(from + k);
      keep(x);
    }
}

/* Reads a multiple of 8 vectors, `times` times. */
void reads(const vector *from, long vectors, long times) {
  vector sum[8] = {};
  for (long t = 0; t < times; t++) {
    for (long i = 0; i < vectors; i += 8) EACH(k, 8) sum[k] += from[i + k];
    EACH(k, 8) keep(sum[k]);
  }
}

#ifdef __F16C__
/* Whether the next two can be measured. */
int converts(void) { return 1; }

/* Takes a multiple of 256 bytes, in order, as numbers of 16 bits that are converted and added up:
   more operations wait for each line than for whole vectors of it. With `ahead`, it asks for each
   line when it is that many bytes away. */
void halves(const char *from, long bytes, long ahead) {
  vector sum[8] = {};
  for (long i = 0; i < bytes; i += 256) {
    if (ahead) EACH(k, 4) __builtin_prefetch(from + i + ahead + 64 * k, 0, 2);
    EACH(k, 512 / BYTES) {
      vector x;
      __asm__ volatile("vcvtph2ps (%1), %0" : "=v"(x) : "r"(from + i + BYTES / 2 * k));
      sum[k % 8] += x;
    }
  }
  EACH(k, 8) keep(sum[k]);
}

/* Lets no cache have any of so many bytes. */
void forget(const char *from, long bytes) {
  for (long i = 0; i < bytes; i += 64) __asm__ volatile("clflush (%0)" : : "r"(from + i));
  __asm__ volatile("mfence");
}
#else
int converts(void) { return 0; }
#endif
