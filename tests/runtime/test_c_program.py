"""The C interface as a C program sees it: the example of the docs, and every way to misuse it."""

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.host_program.host_steps import Bind, Copy, Reserve
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.library import build_library
from rutc.runtime import load
from rutc.tensor_ir.indices.affine import Index
from tests.launches import Launches
from tests.runtime.conftest import Compile, elementwise, kernel, run_c, simple, unary

DOCS = Path(__file__).resolve().parents[2] / "docs" / "c_api.md"


@pytest.fixture(scope="module")
def folder(compile_c: Compile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    objects = [compile_c(unary("root", "float32", "sqrtf(x) + 1"))]
    build_library(simple("model", **elementwise("root")), objects, folder / "model.so", {})
    return folder


def _examples() -> list[str]:
    return re.findall(r"```c\n(.*?)```", DOCS.read_text(), re.S)


def test_the_example_of_the_docs_prints_what_python_computes(folder: Path) -> None:
    printed = run_c(folder, _examples()[0])
    with load(folder / "model.so") as session:
        (y,) = session.run(None, {"x": np.arange(8, dtype=np.float32)})
    assert printed.split() == [f"{value:g}" for value in y]


def test_the_example_runs_on_its_own_thread_pool(folder: Path) -> None:
    program, *_, pool = _examples()
    with_pool = program.replace("int main", pool + "\nint main").replace(
        ".threads = 2", ".threads = 2, .parallel_for = serial"
    )
    assert run_c(folder, with_pool) == run_c(folder, program)


def test_the_header_is_cpp_and_works_with_dlpacks_own(folder: Path) -> None:
    include = folder / "include" / "dlpack"
    include.mkdir(parents=True)
    declarations = (folder / "model.h").read_text()
    types = re.search(r"#define RUTC_DLPACK_H\n(.*?)\n#endif", declarations, re.S)
    assert types is not None
    own = f"#ifndef DLPACK_DLPACK_H_\n#define DLPACK_DLPACK_H_\n{types[1]}\n#endif\n"
    (include / "dlpack.h").write_text(own)
    for compiler, language in (("cc", "c"), ("c++", "c++")):
        for text in (
            '#include "model.h"\n#include "model.h"',
            '#include <dlpack/dlpack.h>\n#include "model.h"',
        ):
            (folder / "include.c").write_text(text + "\nDLTensor tensor;\n")
            command = [compiler, "-x", language, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
            for flags in ([], ["-I", "include"]):
                if not flags and "<" in text:
                    continue
                subprocess.run([*command, *flags, "include.c"], cwd=folder, check=True)


MISUSE = """
#include <stdio.h>
#include <string.h>
#include "model.h"
#include "tensors.h"

static rutc_session *session;
static float data[32], result[32];
static int64_t shape[2] = {8, 1}, strides[1] = {1};
static DLTensor x, y;

static void reset(void) {
  shape[0] = 8;
  x = floats(data, 1, shape);
  y = floats(result, 1, shape);
}

static void run(const char *what) {
  const DLTensor *inputs[] = {&x};
  DLTensor *outputs[] = {&y};
  int status = model_run(session, inputs, 1, outputs, 1);
  printf("%s: %d %s\\n", what, status, status ? model_last_error(session) : "");
  reset();
}

static void open_with(const char *what, uint32_t size, int32_t threads) {
  struct { rutc_options options; int64_t more; } o;
  memset(&o, 0, sizeof o);
  o.options.struct_size = size;
  o.options.threads = threads;
  o.more = 1;
  rutc_session *opened = model_open(&o.options);
  printf("%s: %s\\n", what, opened ? "opened" : model_last_error(NULL));
  model_close(opened);
}

int main(void) {
  open_with("no size", 0, 1);
  open_with("threads", sizeof(rutc_options), -1);
  open_with("newer", sizeof(rutc_options) + 8, 1);
  open_with("older", 8, 1);
  open_with("exact", sizeof(rutc_options), 2);
  session = model_open(NULL);
  reset();
  run("fine");
  x.data = NULL; run("no data");
  y.data = NULL; run("session's memory");
  y.data = NULL; y.shape = NULL; y.ndim = 7; run("all from the session");
  x.shape = NULL; run("no shape");
  x.ndim = 2; run("ndim");
  x.ndim = -1; run("negative ndim");
  x.ndim = 1000; run("large ndim");
  shape[0] = 9; run("shape");
  x.dtype.bits = 64; run("dtype");
  y.dtype.code = kDLInt; run("output dtype");
  x.dtype.lanes = 4; run("lanes");
  x.device.device_type = kDLCUDA; run("device");
  x.byte_offset = 2; run("alignment");
  y.byte_offset = 1; run("output alignment");
  x.byte_offset = 4; run("offset");
  x.strides = strides; run("strides");
  DLTensor *outputs[] = {&y};
  const DLTensor *inputs[] = {&x};
  const DLTensor *nothing[] = {NULL};
  printf("%d %s\\n", model_run(session, nothing, 1, outputs, 1), model_last_error(session));
  printf("%d %s\\n", model_run(session, inputs, 2, outputs, 1), model_last_error(session));
  printf("%d %s\\n", model_run(session, NULL, 1, outputs, 1), model_last_error(session));
  printf("%d %s\\n", model_run(session, inputs, 1, NULL, 1), model_last_error(session));
  printf("%d %s\\n", model_run(NULL, inputs, 1, outputs, 1), model_last_error(NULL));
  printf("version %d profile %d\\n", model_abi_version() - RUTC_ABI_VERSION,
         model_profile(session, NULL, 0) + model_profile(NULL, NULL, 0));
  model_close(session);
  model_close(NULL);
  return 0;
}
"""

ANSWERS = """\
no size: options.struct_size must be set to sizeof(rutc_options)
threads: options.threads must lie in [0, 4096], not -1
newer: options set a field that this model's library is too old to know
older: opened
exact: opened
fine: 0
no data: 2 input "x" has no data (NULL)
session's memory: 0
all from the session: 0
no shape: 2 input "x" has 1 dimension but no shape
ndim: 2 input "x" must have shape [8], not [8, 1]
negative ndim: 2 input "x" must have 1 dimension, not -1
large ndim: 2 input "x" must have 1 dimension, not 1000
shape: 2 input "x" must have shape [8], not [9]
dtype: 2 input "x" must have dtype float32, not float64
output dtype: 2 output "y" must have dtype float32, not int32
lanes: 2 input "x" must have dtype float32, not float32x4
device: 2 input "x" is on DLPack device type 2; this model takes CPU memory (1)
alignment: 2 the data of input "x" must be aligned to 4 bytes, the size of its elements
output alignment: 2 the data of output "y" must be aligned to 4 bytes, the size of its elements
offset: 0
strides: 0
1 input "x" is NULL
1 the model takes 1 input and 1 output, not 2 and 1
1 the array of inputs is NULL
1 the array of outputs is NULL
1 the session is NULL
version 0 profile 0
"""


def test_every_misuse_is_answered(folder: Path) -> None:
    printed = run_c(folder, MISUSE)
    assert [line.rstrip() for line in printed.splitlines()] == ANSWERS.splitlines()


def test_overlapping_outputs_are_refused(tmp_path: Path) -> None:
    """Also strided ones, which may lie between each other."""
    x = (Port("x", "float32", (4,)),)
    outputs = (Port("a", "float32", (4,)), Port("b", "float32", (4,)))
    steps = (Copy(Ref("output", 0), Ref("input"), 16), Copy(Ref("output", 1), Ref("input"), 16))
    build_library(Program("two", x, outputs, 0, steps), [], tmp_path / "m.so", {})
    memory = np.zeros(8, np.float32)
    feed = {"x": np.arange(4, dtype=np.float32)}
    with load(tmp_path / "m.so") as session:
        with pytest.raises(ValueError, match='outputs "a" and "b" overlap in memory'):
            session.run_into(feed, {"a": memory[:4], "b": memory[2:6]})
        for a, b in ((memory[:7:2], memory[2:6]), (memory[6::-2], memory[:4])):
            with pytest.raises(ValueError, match='outputs "a" and "b" overlap in memory'):
                session.run_into(feed, {"a": a, "b": b})
        assert not memory.any()
        session.run_into(feed, {"a": memory[::2], "b": memory[1::2]})
    np.testing.assert_array_equal(memory, [0, 0, 1, 1, 2, 2, 3, 3])


def test_overlapping_outputs_of_computed_shapes_are_refused(
    compile_c: Compile, tmp_path: Path
) -> None:
    m, launch = Index.of("m"), Launches()
    steps = (
        Bind("m", Ref("input")),
        *(Reserve(block, m * 4) for block in range(2)),
        *(launch("count", (Ref("block", block),), m) for block in range(2)),
    )
    outputs = tuple(Port(name, "int32", (m,), block=i) for i, name in enumerate("ab"))
    inputs = (Port("m", "int64", ()),)
    program = Program(
        "two", inputs, outputs, 0, steps, bound=(("m", (0, 9)),), kernels=launch.kernels
    )
    count = kernel("count", "for (int32_t i = begin; i < end; i++) ((int32_t *)bufs[0])[i] = i;")
    build_library(program, [compile_c(count)], tmp_path / "m.so", {})
    memory = np.zeros(8, np.int32)
    feed = {"m": np.array(4)}
    with load(tmp_path / "m.so") as session:
        for b in (memory[2:6], memory[6::-2]):
            with pytest.raises(ValueError, match='outputs "a" and "b" overlap in memory'):
                session.run_into(feed, {"a": memory[:4], "b": b})
        assert not memory.any()
        session.run_into(feed, {"a": memory[::2], "b": memory[1::2]})
    np.testing.assert_array_equal(memory, [0, 0, 1, 1, 2, 2, 3, 3])


def test_a_session_of_another_model_is_named(folder: Path, tmp_path: Path) -> None:
    build_library(simple("other", ()), [], tmp_path / "other.so", {})
    model, other = ctypes.CDLL(str(folder / "model.so")), ctypes.CDLL(str(tmp_path / "other.so"))
    for entry in (model.model_open, other.other_open):
        entry.restype = ctypes.c_void_p
    for entry in (model.model_last_error, other.other_last_error):
        entry.restype = ctypes.c_char_p
    session = ctypes.c_void_p(other.other_open(None))
    assert model.model_run(session, None, 1, None, 1) == 1
    assert model.model_last_error(session) == b"the session is one of another model"
    assert other.other_last_error(session) == b""
    assert other.other_run(session, None, 1, None, 1) == 1
    assert other.other_last_error(session) == b"the array of inputs is NULL"
    other.other_close(session)
