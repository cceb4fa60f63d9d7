"""Sequences through the C interface, and the memory that runs keep."""

from __future__ import annotations

import mmap
import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import rutc
from tests.run_time_structure.models import (
    PAIRS,
    body,
    floats,
    graph,
    in_queue,
    ints,
    node,
    rows,
    sequence,
)

C_PROGRAM = r"""
#include <stdio.h>
#include "m.h"

int main(void) {
  float a[] = {1, 2, 3, 4}, b[] = {5, 6}, x[] = {7, 8};
  int64_t a_shape[] = {2, 2}, b_shape[] = {1, 2}, count[] = {2}, x_shape[] = {1, 2};
  int64_t turned[] = {1, 2};
  DLDataType f32 = {kDLFloat, 32, 1}, handle = {kDLOpaqueHandle, 64, 1};
  DLTensor first = {a, {kDLCPU, 0}, 2, f32, a_shape, turned, 0};
  DLTensor second = {b, {kDLCPU, 0}, 2, f32, b_shape, NULL, 0};
  const DLTensor *elements[] = {&first, &second};
  DLTensor s = {elements, {kDLCPU, 0}, 1, handle, count, NULL, 0};
  DLTensor given = {x, {kDLCPU, 0}, 2, f32, x_shape, NULL, 0};
  DLTensor longer = {0}, sum = {0};
  const DLTensor *inputs[] = {&s, &given};
  DLTensor *outputs[] = {&longer, &sum};
  rutc_options options = {.struct_size = sizeof options, .threads = 1};
  rutc_session *session = m_open(&options);
  if (m_run(session, inputs, 2, outputs, 2) != RUTC_OK) printf("%s\n", m_last_error(session));
  for (int64_t i = 0; i < longer.shape[0]; i++) {
    const DLTensor *element = ((DLTensor **)longer.data)[i];
    const float *data = element->data;
    printf("%d x %d: %g %g, ", (int)element->shape[0], (int)element->shape[1], data[0], data[1]);
  }
  printf("%g\n", *(float *)sum.data);
  elements[1] = NULL;
  longer = sum = (DLTensor){0};
  if (m_run(session, inputs, 2, outputs, 2) != RUTC_OK) printf("%s\n", m_last_error(session));
  elements[1] = &second;
  second.dtype.bits = 64;
  if (m_run(session, inputs, 2, outputs, 2) != RUTC_OK) printf("%s\n", m_last_error(session));
  m_close(session);
}
"""


def test_a_sequence_in_c(tmp_path):
    nodes = [
        node("SequenceInsert", ["s", "x"], ["longer"]),
        node("ConcatFromSequence", ["longer"], ["all"], axis=0),
        node("ReduceSum", ["all"], ["sum"], keepdims=0),
    ]
    inner = graph(nodes, {"s": PAIRS, "x": floats(1, 2)}, {"longer": PAIRS, "sum": floats()})
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)]), path)
    rutc.compile(path, path.with_suffix(".so"), verify=False)
    (tmp_path / "program.c").write_text(C_PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    build = ["cc", *flags, "program.c", "./m.so", "-o", "program"]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run(["./program"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "2 x 2: 1 3, 1 x 2: 5 6, 1 x 2: 7 8, 36",
        "s: an element is no tensor in CPU memory",
        "all: an element is float64[1, 2], not float32[4, 2]",
    ]


def resident():
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_memory_of_boxes_is_used_again(tmp_path):
    """A queue of 1 MiB elements in 400 trips, and 10,000 runs."""
    state = sequence(floats("k"))
    nodes = in_queue(state)
    constants = {"three": np.array(3), "zero": np.array(0)}
    inside = body(nodes, {"s": state}, {"t": state}, constants)
    outer = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["m", "", "none"], ["queue"], body=inside),
    ]
    inner = graph(outer, {"m": ints(), "x": floats("k")}, {"queue": state})
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)]), path)
    rutc.compile(path, path.with_suffix(".so"), verify=False)
    with rutc.load(path.with_suffix(".so"), threads=1) as session:
        x = rows(1 << 18)
        before = resident()
        (queue,) = session.run(None, {"m": np.array(400), "x": x})
        assert len(queue) == 3
        assert resident() - before < 32 << 20
        feeds = [{"m": np.array(m), "x": rows(1 + m)} for m in range(20)]
        for turn in range(10_000):
            if turn == 100:
                before = resident()
            session.run(None, feeds[turn % 20])
        assert resident() - before < 2 << 20
