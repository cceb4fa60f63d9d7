/* What the process may use of the machine: CPUs and instruction set extensions. */
#ifndef RUTC_CPU_H
#define RUTC_CPU_H

#include "error.h"

/* CPUs of the calling thread's affinity mask, at least 1. */
int rutc_cpu_affinity(void);

/* The number-th CPU of the affinity mask, counting from 0 and starting over at its end. */
int rutc_cpu_nth(int number);

/* CPUs that the process may use: its affinity mask limited by its cgroup's quota, at least 1. */
int rutc_cpu_available(void);

/* Checks that the CPU has all features, a NULL-terminated list in LLVM's spelling, and asks the
 * operating system for those that a process must request (AMX). */
int rutc_cpu_require(const char *const *features, rutc_error *error);

#endif
