"""Outputs in the session's memory as inputs of the next run, and other memory that runs share."""

from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Bind, Reserve
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.library import build_library
from rutc.runtime import load
from rutc.tensor_ir.indices.affine import Index
from tests.launches import Launches
from tests.runtime.conftest import Compile, kernel, run_c

N = Index.of("n")

HEAD = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
#include "tensors.h"

enum { WIDTH = 1024 };

static rutc_session *session;

static void open_model(void) {
  rutc_options options = {.struct_size = sizeof options, .threads = 2};
  session = model_open(&options);
}

static int run(const DLTensor *a, const DLTensor *b, DLTensor *y) {
  const DLTensor *inputs[] = {a, b};
  DLTensor *outputs[] = {y};
  int status = model_run(session, inputs, 2, outputs, 1);
  if (status != RUTC_OK) printf("%s\\n", model_last_error(session));
  return status == RUTC_OK;
}
"""

GROWING = (
    HEAD
    + """
/* How many elements of a tensor differ from those of row numbers that fall or rise. */
static int wrong(const DLTensor *rows, int rises) {
  int count = 0;
  int64_t n = rows->shape[0];
  for (int64_t i = 0; i < n * WIDTH; i++) {
    int64_t row = i / WIDTH, wanted = rises ? row : n - 1 - row;
    count += ((const float *)rows->data)[i] != (float)wanted;
  }
  return count;
}

int main(void) {
  static float row[WIDTH];
  int64_t row_shape[] = {WIDTH}, none[] = {0, WIDTH};
  open_model();
  for (int keep = 0; keep < 2; keep++) {
    DLTensor past = floats(row, 2, none), given = floats(row, 1, row_shape), present = {0};
    for (int i = 0; i < 200; i++) {
      for (int c = 0; c < WIDTH; c++) row[c] = (float)i;
      if (!run(&past, &given, &present)) return 1;
      past = present;
      if (!keep) present = (DLTensor){0};
    }
    printf("%d x %d: %d\\n", (int)past.shape[0], (int)past.shape[1], wrong(&past, 0));
    /* The rows in turned order, as they lie in the session's memory, and one more. */
    int64_t strides[] = {-WIDTH, 1};
    past.strides = strides;
    past.byte_offset = 199 * WIDTH * 4;
    for (int c = 0; c < WIDTH; c++) row[c] = -1;
    present = (DLTensor){0};
    if (!run(&past, &given, &present)) return 1;
    DLTensor rest = floats((float *)present.data + WIDTH, 2, none);
    int64_t shape[] = {200, WIDTH};
    rest.shape = shape;
    printf("%g, %d\\n", *(float *)present.data, wrong(&rest, 1));
  }
  model_close(session);
  return 0;
}
"""
)


def test_a_cache_that_grows_from_run_to_run(compile_c: Compile, tmp_path: Path) -> None:
    grow = kernel(
        "grow",
        "const float *past = bufs[0], *x = bufs[1]; float *y = bufs[2];"
        "for (int64_t i = begin; i < end; i++) for (int c = 0; c < 1024; c++)"
        "  y[i * 1024 + c] = i > 0 ? past[(i - 1) * 1024 + c] : x[c];",
    )
    inputs = (Port("past", "float32", (N, 1024)), Port("x", "float32", (1024,)))
    outputs = (Port("present", "float32", (N + 1, 1024)),)
    places = (Ref("input", 0), Ref("input", 1), Ref("output"))
    launch = Launches()
    steps = (launch("grow", places, N + 1),)
    program = Program(
        "model", inputs, outputs, 0, steps, kernels=launch.kernels, symbols=(("n", (0, 1 << 20)),)
    )
    build_library(program, [compile_c(grow)], tmp_path / "model.so", {})
    assert run_c(tmp_path, GROWING).splitlines() == ["200 x 1024: 0", "-1, 0"] * 2


COMPUTED = (
    HEAD
    + """
int main(void) {
  float first[2] = {1, 2};
  int64_t two[] = {2}, count = 2;
  DLTensor m = tensor(&count, (DLDataType){kDLInt, 64, 1}, 0, NULL);
  open_model();
  for (int keep = 0; keep < 2; keep++) {
    DLTensor x = floats(first, 1, two), y = {0};
    for (int i = 0; i < 40; i++) {
      count = i % 4 == 0 ? x.shape[0] : x.shape[0] * 5 / 4 + 1;
      if (!run(&x, &m, &y)) return 1;
      x = y;
      if (!keep) y = (DLTensor){0};
    }
    double sum = 0;
    for (int64_t i = 0; i < x.shape[0]; i++) sum += ((float *)x.data)[i] * (double)(i % 7);
    printf("%d: %.17g\\n", (int)x.shape[0], sum);
  }
  /* An output of the session is no place for another, but one for itself. */
  static float room[1 << 16];
  DLTensor x = floats(first, 1, two), y = {0};
  count = 4;
  run(&x, &m, &y);
  float *before = y.data;
  y.data = before + 1;
  run(&x, &m, &y);
  y.data = room;
  run(&x, &m, &y);
  printf("%g %g %g %g\\n", room[0], room[1], room[2], room[3]);
  /* What the caller keeps is no memory of the session any more, and may be none before a run. */
  y = (DLTensor){0};
  printf("%d ", model_keep_output(session, &y));
  run(&x, &m, &y);
  DLTensor kept = y, next = {0};
  printf("%d ", model_keep_output(session, &y));
  printf("%d ", model_keep_output(session, &kept));
  run(&kept, &m, &next);
  printf("%d ", next.data != kept.data);
  run(&x, &m, &kept);
  printf("%g %g\\n", ((float *)kept.data)[0], ((float *)next.data)[0]);
  free(kept.data);
  model_close(session);
  return 0;
}
"""
)


def reversing(folder: Path, compile_c: Compile) -> Path:
    """A model whose y of length m, which the run tells, is x backwards, again and again, + 1."""
    m = Index.of("m")
    reverse = kernel(
        "reverse",
        "const float *x = bufs[0]; float *y = bufs[1]; int64_t n = syms[0];"
        "for (int64_t i = begin; i < end; i++) y[i] = x[n - 1 - i % n] + 1;",
    )
    inputs = (Port("x", "float32", (N,)), Port("m", "int64", ()))
    outputs = (Port("y", "float32", (m,), block=0),)
    launch = Launches()
    steps = (
        Bind("m", Ref("input", 1)),
        Reserve(0, m * 4),
        launch("reverse", (Ref("input"), Ref("block")), m, (), (Index.of("n"),)),
    )
    symbols, bound = (("n", (1, 1 << 20)),), (("m", (0, 1 << 20)),)
    program = Program(
        "model", inputs, outputs, 0, steps, symbols=symbols, bound=bound, kernels=launch.kernels
    )
    build_library(program, [compile_c(reverse)], folder / "model.so", {})
    return folder / "model.so"


def reversed_x(x: np.ndarray, m: int) -> np.ndarray:
    return np.resize(x[::-1], m) + np.float32(1)


def test_outputs_of_computed_shapes(compile_c: Compile, tmp_path: Path) -> None:
    reversing(tmp_path, compile_c)
    x = np.array([1, 2], np.float32)
    for i in range(40):
        x = reversed_x(x, len(x) if i % 4 == 0 else len(x) * 5 // 4 + 1)
    total = float(np.sum(x.astype(np.float64) * (np.arange(len(x)) % 7)))
    *sums, refused, room, kept = run_c(tmp_path, COMPUTED).splitlines()
    assert sums == [f"{len(x)}: {total:.17g}"] * 2
    assert refused == 'output "y" lies in memory that belongs to the session'
    assert room == "3 2 3 2"
    assert kept == "0 1 0 1 3 3"


class Exported:
    """An array that other libraries see by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [np.asarray, Exported])
def test_one_array_as_input_and_output(compile_c: Compile, tmp_path: Path, wrap: type) -> None:
    with load(reversing(tmp_path, compile_c)) as session:
        for size in (5, 4, 9):
            x = np.arange(size, dtype=np.float32)
            expected = reversed_x(x, size)
            session.run_into({"x": wrap(x), "m": np.array(size)}, {"y": wrap(x)})
            np.testing.assert_array_equal(x, expected)
