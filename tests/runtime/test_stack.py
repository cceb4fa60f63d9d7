"""How much of its stack a thread needs that calls a model, as the header tells."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from rutc.driver.compiler import compile_model
from rutc.driver.options import Options
from rutc.emit.frame import MOST_STACK_BYTES, scratch_bytes
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.runtime import load
from rutc.tensor_ir import DType
from rutc.tensor_ir.kernel import Space
from rutc.tensor_ir.lower import lower
from rutc.tensor_ir.machine import Machine
from tests.machines import V4, on_machines
from tests.onnx_files import write_model
from tests.runtime.conftest import run_c

ROWS, WIDTH, LAYERS = 96, 6000, 5
"""Each layer keeps a row of 23 KiB."""

PROGRAM = f"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "rows.h"
#include "tensors.h"

enum {{ ROWS = {ROWS}, WIDTH = {WIDTH}, PAINT = 0xa5 }};
static float data[ROWS * WIDTH];
static int status;

typedef struct job {{
  void (*task)(void *arg, int64_t index);
  void *arg;
  int64_t index;
}} job;

/* Calls the function on a stack of its own; returns how many bytes of it were written. */
static long used_by(void *(*body)(void *), void *arg) {{
  unsigned char *stack = mmap(NULL, RUTC_STACK_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  pthread_t thread;
  memset(stack, PAINT, RUTC_STACK_BYTES);
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, RUTC_STACK_BYTES);
  pthread_create(&thread, &attributes, body, arg);
  pthread_join(thread, NULL);
  long clean = 0;
  while (clean < RUTC_STACK_BYTES && stack[clean] == PAINT) clean++;
  munmap(stack, RUTC_STACK_BYTES);
  return RUTC_STACK_BYTES - clean;
}}

static void *perform(void *given) {{
  const job *own = given;
  own->task(own->arg, own->index);
  return NULL;
}}

static long most;

static void on_threads(void *pool, void (*task)(void *, int64_t), void *arg, int64_t count) {{
  (void)pool;
  for (int64_t i = 0; i < count; i++) {{
    job own = {{task, arg, i}};
    long used = used_by(perform, &own);
    if (used > most) most = used;
  }}
}}

static void *call(void *options) {{
  rutc_session *session = rows_open(options);
  int64_t shape[2] = {{ROWS, WIDTH}};
  DLTensor x = floats(data, 2, shape), y = {{0}};
  const DLTensor *inputs[] = {{&x}};
  DLTensor *outputs[] = {{&y}};
  status |= session == NULL || rows_run(session, inputs, 1, outputs, 1) != RUTC_OK;
  rows_close(session);
  return NULL;
}}

int main(void) {{
  rutc_options one = {{.struct_size = sizeof one, .threads = 1}};
  rutc_options own = {{.struct_size = sizeof own, .threads = 4, .parallel_for = on_threads}};
  long caller = used_by(call, &one);
  used_by(call, &own);
  printf("%d %ld %ld %d\\n", status, caller, most, RUTC_STACK_BYTES);
  return 0;
}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Softmax after softmax: all in a kernel that keeps a row of each."""
    path = tmp_path_factory.mktemp("stack") / "rows.onnx"
    names = ["x", *(f"h{n}" for n in range(1, LAYERS)), "y"]
    nodes = [helper.make_node("Softmax", [a], [b]) for a, b in pairwise(names)]
    return write_model(path, nodes, {"x": [ROWS, WIDTH]}, {"y": [ROWS, WIDTH]})


def test_all_that_a_kernel_keeps_on_the_stack_has_a_limit(model: Path) -> None:
    plan = decide(optimize(import_model(model)), V4)
    extents = {d: extent.value for d, extent in plan.graph.dims}
    moved = 0
    for group in plan.groups():
        kernel = lower(group, plan.values, plan.layouts, extents)
        away = scratch_bytes(kernel)
        stack = [b for b in kernel.locals if b.space is Space.STACK and b.name not in away]
        sizes = [b.most_elements({}) or 0 for b in stack]
        assert sum(sizes) * DType.F32.bytes <= MOST_STACK_BYTES
        moved += len(away)
    assert moved


@on_machines
def test_a_call_needs_no_more_than_the_header_tells(
    model: Path, machine: Machine, tmp_path: Path
) -> None:
    compile_model(model, tmp_path / "rows.so", Options(target=machine.name))
    status, caller, task, told = map(int, run_c(tmp_path, PROGRAM, library="rows.so").split())
    assert status == 0
    # What is kept is seen, and half is left for what this model has not.
    assert MOST_STACK_BYTES / 2 < caller < told / 2
    assert MOST_STACK_BYTES / 2 < task < told / 2
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    with load(tmp_path / "rows.so") as session:
        assert session.run(None, {"x": x})[0].sum() == pytest.approx(ROWS, rel=1e-3)
