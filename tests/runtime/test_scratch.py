"""The scratch of threads: what lies behind it may be read."""

from pathlib import Path
from typing import Any

import pytest

from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.library import build_library
from rutc.tensor_ir.indices.affine import Index
from tests.launches import Launches
from tests.runtime.conftest import Compile, kernel, run_c

SCRATCH = 4096
VECTOR = 64

PROGRAM = """
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include "model.h"
#include "tensors.h"

enum { PAGE = 4096 };

/* Blocks that end where a page does which cannot be read; they are never given back. */
void *aligned_alloc(size_t alignment, size_t bytes) {
  (void)alignment;
  size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
  char *pages = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(pages + size, PAGE, PROT_NONE);
  return pages + size - bytes;
}

void free(void *block) { (void)block; }

int main(void) {
  rutc_options options = {.struct_size = sizeof options, .threads = 1};
  rutc_session *session = model_open(&options);
  float data[8] = {0};
  int64_t shape[1] = {8};
  DLTensor x = floats(data, 1, shape), y = {0};
  const DLTensor *inputs[] = {&x};
  DLTensor *outputs[] = {&y};
  printf("%d\\n", session == NULL ? -1 : model_run(session, inputs, 1, outputs, 1));
  return 0;
}
"""


@pytest.mark.parametrize("told", ["while compiling", "by the run"])
def test_loads_may_go_on_behind_scratch(compile_c: Compile, tmp_path: Path, told: str) -> None:
    """A vector that begins in the last byte is loaded whole."""
    body = f"""
      const volatile char *scratch = (const char *)(intptr_t)syms[{0 if told[0] == "w" else 1}];
      float *out = bufs[1], read = 0;
      for (int64_t i = 0; i < {VECTOR}; i++) read += 0 * scratch[{SCRATCH} - 1 + i];
      for (int64_t i = begin; i < end; i++) out[i] = read;
    """
    launch = Launches()
    n = Index.of("n")
    more: dict[str, Any] = {"thread_bytes": SCRATCH}
    if told == "by the run":
        more = {"thread_bytes": n * (SCRATCH // 8), "sizes": (n,)}
    steps = (launch("beyond", (Ref("input"), Ref("output")), 8, ("node_0",), **more),)
    symbols = {} if told == "while compiling" else {"symbols": (("n", (1, 64)),)}
    x, y = (Port(port, "float32", (8 if not symbols else n,)) for port in "xy")
    program = Program(
        "model", (x,), (y,), steps=steps, kernels=launch.kernels, arena_bytes=4096, **symbols
    )
    objects = [compile_c(kernel("beyond", body))]
    build_library(program, objects, tmp_path / "model.so", {})
    assert run_c(tmp_path, PROGRAM, "-rdynamic") == "0\n"
