"""Sequences through the C interface, and the memory that runs keep."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

import rutc
from tests.run_time_structure.models import (
    PAIRS,
    TEXTS,
    body,
    floats,
    graph,
    in_queue,
    ints,
    node,
    rows,
    sequence,
)
from tests.runtime.conftest import run_c

C_PROGRAM = r"""
#include <stdio.h>
#include "m.h"
#include "tensors.h"

int main(void) {
  float a[] = {1, 2, 3, 4}, b[] = {5, 6, 0, 0}, x[] = {7, 8};
  int64_t a_shape[] = {2, 2}, b_shape[] = {1, 2}, count[] = {2}, x_shape[] = {1, 2};
  int64_t turned[] = {1, 2};
  DLDataType handle = {kDLOpaqueHandle, 64, 1};
  DLTensor first = floats(a, 2, a_shape), second = floats(b, 2, b_shape);
  first.strides = turned;
  const DLTensor *elements[] = {&first, &second};
  DLTensor s = tensor(elements, handle, 1, count);
  DLTensor given = floats(x, 2, x_shape);
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
  second.dtype = (DLDataType){kDLOpaqueHandle, 8, 1};
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
    assert printed(tmp_path, inner, C_PROGRAM) == [
        "2 x 2: 1 3, 1 x 2: 5 6, 1 x 2: 7 8, 36",
        "s: an element is no tensor in CPU memory",
        "all: an element is float64[1, 2], not float32[4, 2]",
        "s: an element has handles of 8 bits, which are no strings or tensors",
    ]


FED_BACK = r"""
#include <stdio.h>
#include "m.h"
#include "tensors.h"

static rutc_session *session;

static int run(const DLTensor *a, const DLTensor *b, DLTensor *c, DLTensor *d) {
  const DLTensor *inputs[] = {a, b};
  DLTensor *outputs[] = {c, d};
  int status = m_run(session, inputs, 2, outputs, 2);
  if (status != RUTC_OK) printf("%s\n", m_last_error(session));
  return status == RUTC_OK;
}

int main(void) {
  float x[2048];
  int64_t none[] = {0}, shape[] = {1, 2048};
  rutc_options options = {.struct_size = sizeof options, .threads = 1};
  session = m_open(&options);
  DLDataType handle = {kDLOpaqueHandle, 64, 1};
  DLTensor row = floats(x, 2, shape);
  DLTensor s = tensor(NULL, handle, 1, none);
  DLTensor longer = {0}, sum = {0};
  for (int i = 0; i < 60; i++) {
    for (int c = 0; c < 2048; c++) x[c] = (float)i;
    if (!run(&s, &row, &longer, &sum)) return 1;
    s = longer;
    if (i < 30) longer = sum = (DLTensor){0};
  }
  int wrong = 0;
  for (int64_t i = 0; i < longer.shape[0]; i++) {
    const DLTensor *element = ((DLTensor **)longer.data)[i];
    for (int c = 0; c < 2048; c++) wrong += ((const float *)element->data)[c] != (float)i;
  }
  printf("%d %g %d\n", (int)longer.shape[0], *(float *)sum.data, wrong);

  /* An element as a tensor; the sum, which the session provided, as an element. */
  const DLTensor *one = ((DLTensor **)longer.data)[7];
  s.shape = none;
  longer = sum = (DLTensor){0};
  if (!run(&s, one, &longer, &sum)) return 1;
  printf("%d %g\n", (int)longer.shape[0], *(float *)sum.data);
  int64_t single[] = {1};
  const DLTensor *elements[] = {&sum};
  s = tensor(elements, handle, 1, single);
  DLTensor other = {0}, rest = {0};
  run(&s, &row, &other, &rest);
  m_close(session);
  return 0;
}
"""


def test_sequences_of_one_run_are_inputs_of_the_next(tmp_path):
    wide = floats(None, 2048)
    nodes = [
        node("SequenceInsert", ["s", "x"], ["longer"]),
        node("ConcatFromSequence", ["longer"], ["all"], axis=0),
        node("ReduceSum", ["all"], ["sum"], keepdims=0),
    ]
    inputs = {"s": sequence(wide), "x": floats(1, 2048)}
    inner = graph(nodes, inputs, {"longer": sequence(wide), "sum": floats()})
    total = 2048 * sum(range(60))
    assert printed(tmp_path, inner, FED_BACK) == [
        f"60 {total:g} 0",
        f"1 {2048 * 7:g}",
        'an element of input "s" lies in memory of an output, which belongs to the session: '
        "copy it first",
    ]


ELEMENTS_AS_TENSORS = r"""
#include <stdio.h>
#include "m.h"
#include "tensors.h"

int main(void) {
  static float data[4096];
  int64_t shape[] = {4096};
  rutc_options options = {.struct_size = sizeof options, .threads = 1};
  rutc_session *session = m_open(&options);
  DLTensor given = floats(data, 1, shape);
  const DLTensor *x = &given;
  float value = 0;
  int wrong = 0;
  for (int i = 0; i < 40; i++) {
    DLTensor s = {0};
    DLTensor *outputs[] = {&s};
    if (m_run(session, &x, 1, outputs, 1) != RUTC_OK) printf("%s\n", m_last_error(session));
    for (int k = 0; k < 2; k++) {
      const float *element = ((DLTensor **)s.data)[k]->data;
      for (int c = 0; c < 4096; c++) wrong += element[c] != value + (float)(1 - k);
    }
    x = ((DLTensor **)s.data)[i % 2];
    value += (float)(1 - i % 2);
  }
  printf("%g %d\n", value, wrong);
  m_close(session);
  return 0;
}
"""


def test_elements_of_one_run_are_tensors_of_the_next(tmp_path):
    nodes = [
        node("Add", ["x", "one"], ["y"]),
        node("Shape", ["y"], ["size"]),
        node("SplitToSequence", ["y", "size"], ["first"], axis=0),
        node("SequenceInsert", ["first", "x"], ["s"]),
    ]
    constants = {"one": np.float32(1)}
    inner = graph(nodes, {"x": floats("n")}, {"s": sequence(floats(None))}, constants)
    assert printed(tmp_path, inner, ELEMENTS_AS_TENSORS) == ["20 0"]


TEXTS_FED_BACK = r"""
#include <stdio.h>
#include <string.h>
#include "m.h"
#include "tensors.h"

typedef struct { const char *data; int64_t bytes; } text;

int main(void) {
  text first[] = {{"one", 3}, {"two", 3}, {"three", 5}};
  text more[] = {{"-a", 2}, {"", 0}, {"-bc", 3}};
  int64_t shape[] = {3};
  DLDataType handle = {kDLOpaqueHandle, 128, 1};
  rutc_options options = {.struct_size = sizeof options, .threads = 1};
  rutc_session *session = m_open(&options);
  DLTensor x = tensor(first, handle, 1, shape), y = {0};
  DLTensor z = tensor(more, handle, 1, shape);
  for (int i = 0; i < 6; i++) {
    const DLTensor *inputs[] = {&x, &z};
    DLTensor *outputs[] = {&y};
    if (m_run(session, inputs, 2, outputs, 1) != RUTC_OK) printf("%s\n", m_last_error(session));
    x = y;
    if (i < 3) y = (DLTensor){0};
  }
  const text *found = y.data;
  for (int i = 0; i < 3; i++) printf("%.*s\n", (int)found[i].bytes, found[i].data);
  m_close(session);
  return 0;
}
"""


def test_strings_of_one_run_are_inputs_of_the_next(tmp_path):
    nodes = [node("StringConcat", ["z", "x"], ["y"])]
    inner = graph(nodes, {"x": TEXTS, "z": TEXTS}, {"y": TEXTS})
    found = printed(tmp_path, inner, TEXTS_FED_BACK)
    assert found == ["-a" * 6 + "one", "two", "-bc" * 6 + "three"]


def compiled(folder, inner):
    """The library of a graph."""
    path = folder / "m.onnx"
    onnx.save(
        helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    rutc.compile(path, path.with_suffix(".so"), verify=False)
    return path.with_suffix(".so")


def printed(folder, inner, source):
    """The lines that a C program prints which uses a library; freed memory is overwritten."""
    compiled(folder, inner)
    return run_c(folder, source, "-Wno-missing-field-initializers", library="m.so").splitlines()


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
    with rutc.load(compiled(tmp_path, inner), threads=1) as session:
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
