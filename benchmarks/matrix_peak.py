"""What registers for matrices (AMX) can do: products of blocks that stay in them."""

import ctypes
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.peak import PeakLoop
from rutc.emit.linking.toolchain import find_toolchain
from rutc.emit.llvm.tile_permission import ask_for_tiles
from rutc.verify.interleaved import Run

ITERATIONS = 1 << 16
BLOCKS = 4
"""Products in an iteration, each added to sums of its own: two by two blocks."""
BLOCK_BYTES = 1024
"""16 rows of 64 bytes."""
SUMS = 16 * 16
KINDS = {"bf16": 2, "int8": 1}
"""The bytes of a factor."""

SOURCE = """
#include <immintrin.h>
#include <string.h>

static void begin(const char *blocks) {
  struct { unsigned char palette, start, zeros[14]; unsigned short bytes[16];
           unsigned char rows[16]; } shapes;
  memset(&shapes, 0, sizeof shapes);
  shapes.palette = 1;
  for (int i = 0; i < 8; i++) shapes.bytes[i] = 64, shapes.rows[i] = 16;
  /* Compilers may think that the next line reads a part of it alone. */
  __asm__ volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
  _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
  _tile_loadd(4, blocks, 64); _tile_loadd(5, blocks + 1024, 64);
  _tile_loadd(6, blocks + 2048, 64); _tile_loadd(7, blocks + 3072, 64);
}

#define LOOP(kind, multiply) \\
  void kind(long iterations, const char *blocks) { \\
    begin(blocks); \\
    for (long n = 0; n < iterations; n++) { \\
      multiply(0, 4, 6); multiply(1, 4, 7); \\
      multiply(2, 5, 6); multiply(3, 5, 7); \\
    } \\
    _tile_release(); \\
  }
LOOP(bf16, _tile_dpbf16ps)
LOOP(int8, _tile_dpbusd)
"""


def matrix_peak(kind: str) -> PeakLoop:
    """Returns the loop over factors of a kind: `bf16`, or `int8` with one operand's without sign.

    The factors are random: a processor multiplies zeros in less power, and so at a higher clock.

    Raises:
        UserError: there is no C compiler, or there are no such registers.
    """
    ask_for_tiles()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "peak.c").write_text(SOURCE)
        flags = ["-O2", "-mamx-tile", "-mamx-bf16", "-mamx-int8", "-shared", "-fPIC"]
        find_toolchain().run([*flags, "peak.c", "-o", "peak.so"], Path(folder))
        loop = ctypes.CDLL(str(Path(folder) / "peak.so"))[kind]
    loop.argtypes, loop.restype = (ctypes.c_long, ctypes.c_void_p), None
    rng = np.random.default_rng(0)
    factors = rng.standard_normal(BLOCKS * BLOCK_BYTES // 2, np.float32)
    if kind == "bf16":
        blocks = (factors.view(np.uint32) >> 16).astype(np.uint16)
    else:
        blocks = rng.integers(0, 1 << 16, len(factors)).astype(np.uint16)

    def run() -> object:
        loop(ITERATIONS, blocks.ctypes.data)
        # The blocks live as long as this function.
        return blocks

    return PeakLoop(run, matrix_flops(kind))


def run_matrix_peak(kind: str) -> Run:
    """Returns a run of the loop over factors of a kind."""
    return matrix_peak(kind).run


def matrix_flops(kind: str) -> int:
    """Returns the operations of that run."""
    return 2 * ITERATIONS * BLOCKS * SUMS * 64 // KINDS[kind]
