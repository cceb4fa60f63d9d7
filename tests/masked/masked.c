/* Answers CPUID, where UD2 stands for it, without AVX-512, VNNI and AMX. */
#define _GNU_SOURCE
#include <cpuid.h> /* include/cpuid.h: its answers are masked */
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

enum { UD2_SIZE = 2 };

static void answer(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)registers[REG_RIP];
  unsigned a, b, c, d;
  (void)info;
  if (code[0] != 0x0f || code[1] != 0x0b) {
    signal(number, SIG_DFL); /* a fault of the program's own: it runs into it again */
    return;
  }
  __cpuid_count((unsigned)registers[REG_RAX], (unsigned)registers[REG_RCX], a, b, c, d);
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += UD2_SIZE;
}

__attribute__((constructor)) static void start(void) {
  struct sigaction action = {.sa_sigaction = answer};
  /* On the stack at hand: libraries that give threads another one may leave it behind unmapped, as
   * OpenVINO does where of two networks the one that was compiled first is closed first. */
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, NULL);
}
