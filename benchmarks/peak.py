"""The machine's fused multiply-add peak, measured by a loop of nothing else."""

import ctypes
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rutc.emit.toolchain import find_toolchain

ITERATIONS = 1 << 18
ACCUMULATORS = 12

SOURCE = """
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef float vector __attribute__((vector_size(BYTES)));

int lanes(void) { return BYTES / 4; }

/* The accumulators are independent, so that latency hides; a and b keep them finite. */
float fma_loop(long iterations, float start) {
  vector a = (vector){} + 0.999f, b = (vector){} + start, c[ACCUMULATORS];
  for (int i = 0; i < ACCUMULATORS; i++) c[i] = b + (float)i;
  for (long n = 0; n < iterations; n++) {
#pragma GCC unroll 16
    for (int i = 0; i < ACCUMULATORS; i++) c[i] = c[i] * a + b;
  }
  vector sum = c[0];
  for (int i = 1; i < ACCUMULATORS; i++) sum += c[i];
  return sum[0];
}
"""


@dataclass(frozen=True, slots=True)
class PeakLoop:
    """A run of the loop on one core, and how many floating-point operations it does."""

    run: Callable[[], object]
    flops: int


def fma_peak() -> PeakLoop:
    """Returns the loop, compiled for this machine.

    Raises:
        UserError: there is no C compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "peak.c").write_text(SOURCE)
        flags = ["-O3", "-march=native", "-ffp-contract=fast", f"-DACCUMULATORS={ACCUMULATORS}"]
        find_toolchain().run([*flags, "-shared", "-fPIC", "peak.c", "-o", "peak.so"], Path(folder))
        library = ctypes.CDLL(str(Path(folder) / "peak.so"))
    loop = library.fma_loop
    loop.argtypes = (ctypes.c_long, ctypes.c_float)
    loop.restype = ctypes.c_float
    flops = 2 * ITERATIONS * ACCUMULATORS * int(library.lanes())
    return PeakLoop(lambda: loop(ITERATIONS, 1e-3), flops)
