#define _GNU_SOURCE
#include "cpu.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EAX, EBX, ECX, EDX };

/* Register state that the operating system must save for a feature to be usable (XCR0 bits). */
enum { NO_STATE = 0, AVX_STATE = 0x6, AVX512_STATE = 0xe6, AMX_STATE = 0x60000 };

typedef struct {
  const char *name;
  uint32_t leaf, subleaf;
  int bit_register, bit;
  uint64_t state;
} feature;

static const feature known_features[] = {
    {"sse3", 1, 0, ECX, 0, NO_STATE},
    {"ssse3", 1, 0, ECX, 9, NO_STATE},
    {"fma", 1, 0, ECX, 12, AVX_STATE},
    {"cx16", 1, 0, ECX, 13, NO_STATE},
    {"sse4.1", 1, 0, ECX, 19, NO_STATE},
    {"sse4.2", 1, 0, ECX, 20, NO_STATE},
    {"movbe", 1, 0, ECX, 22, NO_STATE},
    {"popcnt", 1, 0, ECX, 23, NO_STATE},
    {"avx", 1, 0, ECX, 28, AVX_STATE},
    {"f16c", 1, 0, ECX, 29, AVX_STATE},
    {"bmi", 7, 0, EBX, 3, NO_STATE},
    {"avx2", 7, 0, EBX, 5, AVX_STATE},
    {"bmi2", 7, 0, EBX, 8, NO_STATE},
    {"avx512f", 7, 0, EBX, 16, AVX512_STATE},
    {"avx512dq", 7, 0, EBX, 17, AVX512_STATE},
    {"avx512ifma", 7, 0, EBX, 21, AVX512_STATE},
    {"avx512cd", 7, 0, EBX, 28, AVX512_STATE},
    {"avx512bw", 7, 0, EBX, 30, AVX512_STATE},
    {"avx512vl", 7, 0, EBX, 31, AVX512_STATE},
    {"avx512vbmi", 7, 0, ECX, 1, AVX512_STATE},
    {"avx512vbmi2", 7, 0, ECX, 6, AVX512_STATE},
    {"gfni", 7, 0, ECX, 8, NO_STATE},
    {"vaes", 7, 0, ECX, 9, AVX_STATE},
    {"vpclmulqdq", 7, 0, ECX, 10, AVX_STATE},
    {"avx512vnni", 7, 0, ECX, 11, AVX512_STATE},
    {"avx512bitalg", 7, 0, ECX, 12, AVX512_STATE},
    {"avx512vpopcntdq", 7, 0, ECX, 14, AVX512_STATE},
    {"amx-bf16", 7, 0, EDX, 22, AMX_STATE},
    {"avx512fp16", 7, 0, EDX, 23, AVX512_STATE},
    {"amx-tile", 7, 0, EDX, 24, AMX_STATE},
    {"amx-int8", 7, 0, EDX, 25, AMX_STATE},
    {"avxvnni", 7, 1, EAX, 4, AVX_STATE},
    {"avx512bf16", 7, 1, EAX, 5, AVX512_STATE},
    {"amx-fp16", 7, 1, EAX, 21, AMX_STATE},
    {"avxifma", 7, 1, EAX, 23, AVX_STATE},
    {"avxvnniint8", 7, 1, EDX, 4, AVX_STATE},
    {"avxneconvert", 7, 1, EDX, 5, AVX_STATE},
    {"amx-complex", 7, 1, EDX, 8, AMX_STATE},
    {"avxvnniint16", 7, 1, EDX, 10, AVX_STATE},
    {"lzcnt", 0x80000001, 0, ECX, 5, NO_STATE},
};

/* Register state that the operating system saves; 0 without XSAVE. */
static uint64_t saved_state(void) {
  uint32_t r[4];
  if (!__get_cpuid_count(1, 0, &r[EAX], &r[EBX], &r[ECX], &r[EDX])) return 0;
  if (!(r[ECX] >> 27 & 1)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static int has_feature(const feature *wanted) {
  uint32_t r[4];
  if (!__get_cpuid_count(wanted->leaf, wanted->subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX])) {
    return 0;
  }
  if (!(r[wanted->bit_register] >> wanted->bit & 1)) return 0;
  return (saved_state() & wanted->state) == wanted->state;
}

/* Linux gives a process the AMX tile registers only when asked. */
static int enable_feature(const feature *wanted) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  if (wanted->state != AMX_STATE) return 1;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

typedef struct {
  const char *name;
  unsigned long type; /* of the auxiliary vector: AT_HWCAP or AT_HWCAP2 */
  int bit;
} feature;

static const feature known_features[] = {
    {"neon", AT_HWCAP, 1},      {"aes", AT_HWCAP, 3},       {"sha2", AT_HWCAP, 6},
    {"crc", AT_HWCAP, 7},       {"lse", AT_HWCAP, 8},       {"fullfp16", AT_HWCAP, 10},
    {"rdm", AT_HWCAP, 12},      {"dotprod", AT_HWCAP, 20},  {"sve", AT_HWCAP, 22},
    {"fp16fml", AT_HWCAP, 23},  {"sve2", AT_HWCAP2, 1},     {"i8mm", AT_HWCAP2, 13},
    {"bf16", AT_HWCAP2, 14},    {"sme", AT_HWCAP2, 23},
};

static int has_feature(const feature *wanted) {
  return (int)(getauxval(wanted->type) >> wanted->bit & 1);
}

static int enable_feature(const feature *wanted) {
  (void)wanted;
  return 1;
}

#else
#error "rutc's host runtime knows x86-64 and aarch64 only"
#endif

static const feature *find_feature(const char *name) {
  for (size_t i = 0; i < sizeof known_features / sizeof known_features[0]; i++) {
    if (strcmp(known_features[i].name, name) == 0) return &known_features[i];
  }
  return NULL;
}

int rutc_cpu_require(const char *const *features, rutc_error *error) {
  for (; *features != NULL; features++) {
    const feature *wanted = find_feature(*features);
    if (wanted == NULL) {
      return rutc_fail(error, RUTC_UNSUPPORTED,
                       "the model needs the CPU feature %s, which this build cannot check for",
                       *features);
    }
    if (!has_feature(wanted)) {
      return rutc_fail(error, RUTC_UNSUPPORTED,
                       "the model was compiled for CPUs with %s, which this CPU lacks; compile it "
                       "again with a --target that this CPU supports",
                       *features);
    }
    if (!enable_feature(wanted)) {
      return rutc_fail(error, RUTC_UNSUPPORTED,
                       "the CPU has %s but the operating system does not let this process use it",
                       *features);
    }
  }
  return RUTC_OK;
}
