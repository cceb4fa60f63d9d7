/* What a thread does between two looks at a word that another one changes. */
#ifndef RUTC_PAUSE_H
#define RUTC_PAUSE_H

static inline void rutc_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
