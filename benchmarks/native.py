"""Calls of a compiled model from C, many at a time: Python's part of a call is no kernel's."""

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rutc.emit.linking.toolchain import find_toolchain
from rutc.runtime.binding import Addresses
from rutc.runtime.c_interface import Options
from rutc.runtime.loader import open_library
from rutc.runtime.plain import PlainTensors
from rutc.runtime.ports import Ports
from rutc.verify.bench import Inputs, Room, aligned, allocated
from rutc.verify.interleaved import Run

Arrays = Mapping[str, np.ndarray]

SOURCE = """
typedef int run(void *session, void **inputs, int n, void **outputs, int m);

/* Calls number k, k + 1, .. of `sets` in turn; each has its own inputs and outputs. */
int calls(run *model, void *session, void **inputs, int n, void **outputs, int m, long sets,
          long first, long count) {
  int status = 0;
  for (long k = first; k < first + count; k++)
    status |= model(session, inputs + k % sets * n, n, outputs + k % sets * m, m);
  return status;
}
"""


def run_calls(library: Path, inputs: Inputs, room: Room, sets: int, count: int) -> Run:
    """Returns a run of `count` calls over so many sets of arrays that hold the same inputs."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    return native_calls(
        library,
        [({n: aligned(a) for n, a in arrays.items()}, allocated(room)) for _ in range(sets)],
        count,
    )


def native_calls(library: Path, sets: Sequence[tuple[Arrays, Arrays]], count: int) -> Run:
    """Returns a run of `count` calls on one core, each with the next set of inputs and outputs.

    Arrays have the dtypes and shapes of the model's tensors, by name.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "calls.c").write_text(SOURCE)
        flags = ["-O2", "-shared", "-fPIC", "calls.c", "-o", "calls.so"]
        find_toolchain().run(flags, Path(folder))
        calls = ctypes.CDLL(str(Path(folder) / "calls.so")).calls
    opened = open_library(library)
    options = Options(struct_size=ctypes.sizeof(Options), threads=1)
    session = opened.entries.open(ctypes.byref(options))
    described = Ports.of(opened.path, opened.manifest)
    ports = [described.inputs, described.outputs]
    tensors = [PlainTensors(ports[0], ports[1]) for _ in sets]
    for descriptors, arrays in zip(tensors, sets, strict=True):
        if not descriptors.describe_into(*arrays):
            raise ValueError(f"the arrays are not those of {library}")
    inputs = _joined([t.input_addresses for t in tensors])
    outputs = _joined([t.output_addresses for t in tensors])
    counts = [len(side) for side in ports]
    run = ctypes.cast(opened.entries.run, ctypes.c_void_p)
    calls.argtypes = (
        *(ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_void_p, ctypes.c_int) * 2,
        *(ctypes.c_long,) * 3,
    )
    done = 0

    def following() -> object:
        nonlocal done
        # The arrays, their descriptors and the library live as long as this function.
        alive = sets, tensors, opened
        first, done = done, (done + count) % len(sets)
        status = calls(run, session, inputs, counts[0], outputs, counts[1], len(sets), first, count)
        if status != 0:
            raise RuntimeError(f"a call of {library} failed with status {status}")
        return alive

    return following


def _joined(sets: Sequence[Addresses]) -> Addresses:
    """The addresses of all sets, one set after the other."""
    places = [place for addresses in sets for place in addresses]
    return (ctypes.c_void_p * len(places))(*places)
