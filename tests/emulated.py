"""Libraries for other processors, run in an emulator."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from rutc.emit.linking.toolchain import find_toolchain

EMULATOR = "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
MISSING = (
    f"{EMULATOR} or a cross compiler is not installed (Debian: qemu-user, gcc-aarch64-linux-gnu)"
    if shutil.which(EMULATOR) is None or shutil.which("aarch64-linux-gnu-gcc") is None
    else ""
)
"""Why nothing can be run here; empty where it can."""

_CODES = {"b": (6, 8), "i": (0, None), "u": (1, None), "f": (2, None)}

_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

static void *content(const char *name, long bytes) {
  void *data = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
  FILE *file = fopen(name, "rb");
  if (file == NULL || (long)fread(data, 1, (size_t)bytes, file) != bytes) exit(3);
  fclose(file);
  return data;
}

int main(void) {
  rutc_options options = {.struct_size = sizeof options, .threads = THREADS};
  rutc_session *session = model_open(&options);
  if (session == NULL) return fprintf(stderr, "%s\n", model_last_error(NULL)), 1;
  DLTensor x[model_INPUTS] = {INPUTS};
  DLTensor y[model_OUTPUTS] = {{0}};
  const DLTensor *inputs[model_INPUTS];
  DLTensor *outputs[model_OUTPUTS];
  for (int i = 0; i < model_INPUTS; i++) inputs[i] = &x[i];
  for (int i = 0; i < model_OUTPUTS; i++) outputs[i] = &y[i];
  if (model_run(session, inputs, model_INPUTS, outputs, model_OUTPUTS) != RUTC_OK)
    return fprintf(stderr, "%s\n", model_last_error(session)), 1;
  for (int i = 0; i < model_OUTPUTS; i++) {
    char name[32];
    snprintf(name, sizeof name, "output%d", i);
    FILE *file = fopen(name, "wb");
    int64_t ndim = y[i].ndim, elements = 1;
    fwrite(&ndim, sizeof ndim, 1, file);
    fwrite(y[i].shape, sizeof *y[i].shape, (size_t)ndim, file);
    for (int64_t d = 0; d < ndim; d++) elements *= y[i].shape[d];
    fwrite(y[i].data, (size_t)(y[i].dtype.bits / 8), (size_t)elements, file);
    fclose(file);
  }
  model_close(session);
  return 0;
}
"""


def run_emulated(
    library: Path,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.dtype],
    threads: int,
) -> dict[str, np.ndarray]:
    """The outputs of `model.so`, whose inputs and outputs are those, in that order."""
    folder = library.parent
    tensors = []
    for number, array in enumerate(inputs.values()):
        (folder / f"input{number}").write_bytes(array.tobytes())
        code, bits = (4, 16) if array.dtype == ml_dtypes.bfloat16 else _CODES[array.dtype.kind]
        shape = ", ".join(map(str, array.shape)) or "0"
        tensors.append(
            f'{{.data = content("input{number}", {array.nbytes}), .device = {{kDLCPU, 0}}, '
            f".ndim = {array.ndim}, .dtype = {{{code}, {bits or 8 * array.itemsize}, 1}}, "
            f".shape = (int64_t[]){{{shape}}}}}"
        )
    text = _PROGRAM.replace("INPUTS}", ", ".join(tensors) + "}", 1)
    (folder / "program.c").write_text(text.replace("THREADS", str(threads)))
    arguments = ["-std=c11", "program.c", "./model.so", "-lm", "-o", "program"]
    find_toolchain("aarch64").run(arguments, folder)
    command = [EMULATOR, "-L", str(LIBRARIES), "./program"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = {}
    for number, (name, dtype) in enumerate(outputs.items()):
        data = (folder / f"output{number}").read_bytes()
        (ndim,) = np.frombuffer(data, "i8", 1)
        extents = np.frombuffer(data, "i8", int(ndim), 8)
        results[name] = np.frombuffer(data, dtype, offset=8 + 8 * int(ndim)).reshape(extents)
    return results
