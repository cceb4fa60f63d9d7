"""The floating-point mode of runs is their own, and the caller has its own again afterwards."""

import platform
from pathlib import Path

import pytest

from rutc.emit.linking.library import build_library
from tests.runtime.conftest import Compile, elementwise, run_c, simple, unary

MODES = """
#define _GNU_SOURCE
#include <fenv.h>
#include <stdio.h>
#include <string.h>
#include "model.h"
#include "tensors.h"

static float data[8] = {3, -1, 7, 1e-40f, 0, 5, 11, 13}, result[8];
static int64_t shape[1] = {8};

/* The bits of what the model makes of data. */
static void run(rutc_session *session, const char *what) {
  DLTensor x = floats(data, 1, shape), y = floats(result, 1, shape);
  const DLTensor *inputs[] = {&x};
  DLTensor *outputs[] = {&y};
  int status = model_run(session, inputs, 1, outputs, 1);
  printf("%s: %d", what, status);
  for (int i = 0; i < 8; i++) {
    uint32_t bits;
    memcpy(&bits, &result[i], 4);
    printf(" %08x", bits);
  }
  printf("\\n");
}

static void set_flushing(int on) {
#if defined(__x86_64__)
  unsigned mode = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(on ? mode | 0x8040 : mode & ~0x8040u);
#else
  (void)on;
#endif
}

int main(void) {
  rutc_options options = {.struct_size = sizeof options, .threads = 3};
  rutc_session *first = model_open(&options);
  run(first, "usual");
  const int roundings[] = {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
  for (int i = 0; i < 3; i++) {
    fesetround(roundings[i]);
    set_flushing(1);
    rutc_session *second = model_open(&options);
    run(first, "other");
    run(second, "opened so");
    model_close(second);
    if (fegetround() != roundings[i]) printf("the rounding has changed\\n");
    set_flushing(0);
  }
  fesetround(FE_TONEAREST);
  feclearexcept(FE_ALL_EXCEPT);
  int traps = FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_INEXACT;
  feenableexcept(traps);
  run(first, "with traps");
  if (fegetexcept() != traps && fegetexcept() != 0) printf("the traps have changed\\n");
  fedisableexcept(FE_ALL_EXCEPT);
  model_close(first);
  return 0;
}
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="feenableexcept is glibc's")
@pytest.mark.parametrize("keep", [False, True])
def test_the_mode_of_runs_is_their_own(compile_c: Compile, tmp_path: Path, *, keep: bool) -> None:
    source = unary("root", "float32", "i == 3 ? x * 0.7f : sqrtf(x) / 3 + 1 / x")
    program = simple("model", **elementwise("root"), keep_subnormals=keep)
    build_library(program, [compile_c(source)], tmp_path / "model.so", {})
    usual, *others = run_c(tmp_path, MODES, "-lm").splitlines()
    _, status, *bits = usual.split()
    assert status == "0"
    assert (int(bits[3], 16) != 0) == keep
    assert len(others) == 7
    assert {line.partition(": ")[2] for line in others} == {usual.partition(": ")[2]}
