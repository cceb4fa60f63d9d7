"""What the machine can do: loops of fused multiply-adds, and passes over memory."""

import ctypes
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rutc.emit.linking.toolchain import find_toolchain
from rutc.verify.interleaved import Run

ITERATIONS = 1 << 18
ACCUMULATORS = 12
FED_STEPS = 64
FED_ITERATIONS = 1 << 11

SOURCE = """
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
/* Sums, vectors of a step and one of a row: 28 of 32 registers, or 15 of 16. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define ROWS 8
#define COLUMNS 3
#else
#define ROWS 6
#define COLUMNS 2
#endif
#if defined(__aarch64__)
#define REGISTER "+w"
#else
#define REGISTER "+v"
#endif
typedef float vector __attribute__((vector_size(BYTES)));

int lanes(void) { return BYTES / 4; }
int rows(void) { return ROWS; }
int columns(void) { return COLUMNS; }

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

/* A register tile whose operands come from the first cache, as those of a product do. The vectors
   of a step stay in registers: as operands in memory each row would load them anew. */
float fed_loop(long iterations, const float *x, const vector *w) {
  vector c[ROWS][COLUMNS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 16
    for (int j = 0; j < COLUMNS; j++) c[i][j] = (vector){};
  for (long n = 0; n < iterations; n++) {
#pragma GCC unroll 4
    for (long k = 0; k < STEPS; k++) {
      vector b[COLUMNS];
#pragma GCC unroll 16
      for (int j = 0; j < COLUMNS; j++) {
        b[j] = w[COLUMNS * k + j];
        __asm__("" : REGISTER(b[j]));
      }
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 16
        for (int j = 0; j < COLUMNS; j++)
          c[i][j] += x[ROWS * k + i] * b[j];
    }
    __asm__ volatile("" ::: "memory");
  }
  vector sum = {};
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < COLUMNS; j++) sum += c[i][j];
  return sum[0];
}

/* Reads all of one array and writes all of another, once. */
float pass_over(const vector *in, long reads, vector *out, long writes) {
  vector sum[4] = {};
  for (long i = 0; i + 4 <= reads; i += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) sum[j] += in[i + j];
  }
  vector all = sum[0] + sum[1] + sum[2] + sum[3];
  for (long i = 0; i < writes; i++) out[i] = all;
  return all[0];
}

/* Passes over arrays number first, first + 1, .. of `sets` in turn. */
void passes(vector **in, long reads, vector **out, long writes, long sets, long first,
            long count) {
  for (long k = first; k < first + count; k++)
    pass_over(in[k % sets], reads, out[k % sets], writes);
}
"""


@dataclass(frozen=True, slots=True)
class PeakLoop:
    """A run of a loop on one core, and how many floating-point operations it does."""

    run: Run
    flops: int


@dataclass(frozen=True, slots=True)
class Peaks:
    """The loops, compiled for one kind of processor.

    `registers` does nothing but multiply-adds; `fed` loads its operands from the first cache, 11
    for 24 multiply-adds with AVX-512, 8 for 12 with AVX2. `traffic` makes passes that read and
    write so many bytes: over so many arrays in turn, so many passes in a run.
    """

    registers: PeakLoop
    fed: PeakLoop
    traffic: Callable[..., Run]


def measured_peaks(architecture: str = "native") -> Peaks:
    """Returns the loops, compiled for an architecture by its name to the C compiler.

    Raises:
        UserError: there is no C compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(_compiled(architecture, Path(folder), "-shared")))
    lanes, rows, columns = (int(f()) for f in (library.lanes, library.rows, library.columns))
    loop = library.fma_loop
    loop.argtypes = (ctypes.c_long, ctypes.c_float)
    loop.restype = ctypes.c_float
    fed = library.fed_loop
    fed.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    fed.restype = ctypes.c_float
    # Both together are a part of the first cache.
    x, w = (
        np.random.default_rng(0).standard_normal(FED_STEPS * n + 16, np.float32)
        for n in (rows, columns * lanes)
    )
    passes = library.passes
    passes.argtypes = (*(ctypes.c_void_p, ctypes.c_long) * 2, *(ctypes.c_long,) * 3)
    passes.restype = None

    def feed() -> object:
        return fed(FED_ITERATIONS, _line(x), _line(w))

    def traffic(read_bytes: int, written_bytes: int, sets: int = 1, count: int = 1) -> Run:
        step = 4 * lanes
        # Never written to, all of it would be one page of zeros, or none yet.
        arrays = [
            [np.ones(size // 4 + lanes * 8, np.float32) for _ in range(sets)]
            for size in (read_bytes, written_bytes)
        ]
        begin, end = ((ctypes.c_void_p * sets)(*map(_line, several)) for several in arrays)
        done = 0

        def run() -> object:
            nonlocal done
            first, done = done, (done + count) % sets
            passes(begin, read_bytes // step, end, written_bytes // step, sets, first, count)
            # The arrays live as long as this function.
            return arrays

        return run

    return Peaks(
        PeakLoop(lambda: loop(ITERATIONS, 1e-3), 2 * ITERATIONS * ACCUMULATORS * lanes),
        PeakLoop(feed, 2 * FED_ITERATIONS * FED_STEPS * rows * columns * lanes),
        traffic,
    )


def assembly(architecture: str) -> str:
    """Returns the assembly code of the loops, compiled for an architecture.

    Raises:
        UserError: there is no C compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _compiled(architecture, Path(folder), "-S").read_text()


def _compiled(architecture: str, folder: Path, output: str) -> Path:
    """The loops, compiled to what the flag `output` says."""
    (folder / "peak.c").write_text(SOURCE)
    flags = ["-O3", f"-march={architecture}", "-ffp-contract=fast", "-fPIC", output]
    flags += [f"-DACCUMULATORS={ACCUMULATORS}", f"-DSTEPS={FED_STEPS}"]
    find_toolchain().run([*flags, "peak.c", "-o", "peak.out"], folder)
    return folder / "peak.out"


def run_peak(architecture: str) -> Run:
    """Returns a run of the loop of multiply-adds."""
    return measured_peaks(architecture).registers.run


def run_fed(architecture: str) -> Run:
    """Returns a run of the loop that loads its operands."""
    return measured_peaks(architecture).fed.run


def run_traffic(architecture: str, *sizes: int) -> Run:
    """Returns a run of passes over memory; `sizes` are those of `Peaks.traffic`."""
    return measured_peaks(architecture).traffic(*sizes)


def run_reading(bytes_: int, threads: int) -> Run:
    """Returns a run that reads so many bytes of memory, each thread a part."""
    traffic = measured_peaks().traffic
    parts = [traffic(bytes_ // threads, 0) for _ in range(threads)]
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(lambda part: part(), parts))


def _line(array: np.ndarray) -> int:
    """The address of the first whole cache line of an array."""
    return (int(array.ctypes.data) + 63) // 64 * 64
