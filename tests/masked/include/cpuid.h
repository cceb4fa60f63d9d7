/* The compiler's header, with answers that name neither AVX-512, VNNI, AVX10, APX nor AMX. */
#ifndef MASKED_CPUID_H
#define MASKED_CPUID_H
#pragma GCC system_header /* as the one that it stands for */
#include_next <cpuid.h>

enum {
  MASKED_LEAF_7_EBX = 1 << 16 | 1 << 17 | 1 << 21 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 30 |
                      (int)(1u << 31),
  MASKED_LEAF_7_ECX = 1 << 1 | 1 << 6 | 1 << 11 | 1 << 12 | 1 << 14,
  MASKED_LEAF_7_EDX = 1 << 2 | 1 << 3 | 1 << 8 | 1 << 22 | 1 << 23 | 1 << 24 | 1 << 25,
  MASKED_STATES = 7, /* what XSAVE may keep: x87, SSE, AVX */
};

static inline void masked_cpuid(unsigned leaf, unsigned part, unsigned *a, unsigned *b, unsigned *c,
                                unsigned *d) {
  __asm__ volatile("cpuid" : "=a"(*a), "=b"(*b), "=c"(*c), "=d"(*d) : "0"(leaf), "2"(part));
  if (leaf == 7 && part == 0) {
    *b &= ~(unsigned)MASKED_LEAF_7_EBX;
    *c &= ~(unsigned)MASKED_LEAF_7_ECX;
    *d &= ~(unsigned)MASKED_LEAF_7_EDX;
  } else if (leaf == 7) {
    *a = *b = *c = *d = 0;
  } else if (leaf == 0xd && part == 0) {
    *a &= MASKED_STATES;
  }
}

static inline int masked_cpuid_if_known(unsigned leaf, unsigned part, unsigned *a, unsigned *b,
                                        unsigned *c, unsigned *d) {
  unsigned most = __get_cpuid_max(leaf & 0x80000000u, 0);
  if (most == 0 || most < leaf) return 0;
  masked_cpuid(leaf, part, a, b, c, d);
  return 1;
}

#define __get_cpuid_count masked_cpuid_if_known
#undef __cpuid_count
#define __cpuid_count(leaf, part, a, b, c, d) masked_cpuid(leaf, part, &(a), &(b), &(c), &(d))
#endif
