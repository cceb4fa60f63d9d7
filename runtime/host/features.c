#define _GNU_SOURCE
#include "cpu.h"

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EAX, EBX, ECX, EDX };

/* Register state that the operating system must save for a feature to be usable (XCR0 bits). */
enum { NO_STATE = 0, AVX_STATE = 0x6, AVX512_STATE = 0xe6, AMX_STATE = 0x60000 };

/* The leaves of CPUID that tell features. */
enum { LEAF_1, LEAF_7, LEAF_7_1, LEAF_80000001, LEAVES };

static const uint32_t leaves_and_subleaves[LEAVES][2] = {{1, 0}, {7, 0}, {7, 1}, {0x80000001, 0}};

/* What each leaf says, 0 for those that the CPU lacks, and the register state that the operating
 * system saves, 0 without XSAVE. Both are asked for once: a virtual machine's host answers CPUID,
 * which takes as long as a small model's run. */
static uint32_t leaves[LEAVES][4];
static uint64_t saved_state;

static void read_cpu(void) {
  for (int i = 0; i < LEAVES; i++) {
    uint32_t *r = leaves[i], leaf = leaves_and_subleaves[i][0];
    if (leaf > __get_cpuid_max(leaf & 0x80000000, NULL)) continue;
    __cpuid_count(leaf, leaves_and_subleaves[i][1], r[EAX], r[EBX], r[ECX], r[EDX]);
  }
  if (!(leaves[LEAF_1][ECX] >> 27 & 1)) return;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  saved_state = (uint64_t)high << 32 | low;
}

typedef struct {
  const char *name;
  int leaf, bit_register, bit;
  uint64_t state;
} feature;

static const feature known_features[] = {
    {"sse3", LEAF_1, ECX, 0, NO_STATE},
    {"ssse3", LEAF_1, ECX, 9, NO_STATE},
    {"fma", LEAF_1, ECX, 12, AVX_STATE},
    {"cx16", LEAF_1, ECX, 13, NO_STATE},
    {"sse4.1", LEAF_1, ECX, 19, NO_STATE},
    {"sse4.2", LEAF_1, ECX, 20, NO_STATE},
    {"movbe", LEAF_1, ECX, 22, NO_STATE},
    {"popcnt", LEAF_1, ECX, 23, NO_STATE},
    {"avx", LEAF_1, ECX, 28, AVX_STATE},
    {"f16c", LEAF_1, ECX, 29, AVX_STATE},
    {"bmi", LEAF_7, EBX, 3, NO_STATE},
    {"avx2", LEAF_7, EBX, 5, AVX_STATE},
    {"bmi2", LEAF_7, EBX, 8, NO_STATE},
    {"avx512f", LEAF_7, EBX, 16, AVX512_STATE},
    {"avx512dq", LEAF_7, EBX, 17, AVX512_STATE},
    {"avx512ifma", LEAF_7, EBX, 21, AVX512_STATE},
    {"avx512cd", LEAF_7, EBX, 28, AVX512_STATE},
    {"avx512bw", LEAF_7, EBX, 30, AVX512_STATE},
    {"avx512vl", LEAF_7, EBX, 31, AVX512_STATE},
    {"avx512vbmi", LEAF_7, ECX, 1, AVX512_STATE},
    {"avx512vbmi2", LEAF_7, ECX, 6, AVX512_STATE},
    {"gfni", LEAF_7, ECX, 8, NO_STATE},
    {"vaes", LEAF_7, ECX, 9, AVX_STATE},
    {"vpclmulqdq", LEAF_7, ECX, 10, AVX_STATE},
    {"avx512vnni", LEAF_7, ECX, 11, AVX512_STATE},
    {"avx512bitalg", LEAF_7, ECX, 12, AVX512_STATE},
    {"avx512vpopcntdq", LEAF_7, ECX, 14, AVX512_STATE},
    {"amx-bf16", LEAF_7, EDX, 22, AMX_STATE},
    {"avx512fp16", LEAF_7, EDX, 23, AVX512_STATE},
    {"amx-tile", LEAF_7, EDX, 24, AMX_STATE},
    {"amx-int8", LEAF_7, EDX, 25, AMX_STATE},
    {"avxvnni", LEAF_7_1, EAX, 4, AVX_STATE},
    {"avx512bf16", LEAF_7_1, EAX, 5, AVX512_STATE},
    {"amx-fp16", LEAF_7_1, EAX, 21, AMX_STATE},
    {"avxifma", LEAF_7_1, EAX, 23, AVX_STATE},
    {"avxvnniint8", LEAF_7_1, EDX, 4, AVX_STATE},
    {"avxneconvert", LEAF_7_1, EDX, 5, AVX_STATE},
    {"amx-complex", LEAF_7_1, EDX, 8, AMX_STATE},
    {"avxvnniint16", LEAF_7_1, EDX, 10, AVX_STATE},
    {"lzcnt", LEAF_80000001, ECX, 5, NO_STATE},
};

static int has_feature(const feature *wanted) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_cpu);
  if (!(leaves[wanted->leaf][wanted->bit_register] >> wanted->bit & 1)) return 0;
  return (saved_state & wanted->state) == wanted->state;
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
