"""What a user of the Python runtime is told when something is wrong."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rutc.emit.linking.host_runtime import HOST_SOURCES
from rutc.emit.linking.library import build_library
from rutc.emit.targets.select import host_features
from rutc.runtime import ModelError, load
from tests.runtime.conftest import simple

X = np.arange(8, dtype=np.float32)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "missing input 'x': the model needs input 'x'"),
        ({"X": X}, r"no input 'X' \(did you mean 'x'\?\); it has input 'x'|no input 'X'; it has"),
        ({"x": X, "other": X}, "the model has no input 'other'; it has input 'x'"),
        ({"x": X[:3]}, r"input 'x' must have shape \[8\], not \[3\]"),
        ({"x": X.reshape(2, 4)}, r"input 'x' must have shape \[8\], not \[2, 4\]"),
        ({"x": X.astype(np.float64)}, "input 'x' must have dtype float32, not float64"),
        ({"x": X.astype(">f4")}, "input 'x' must have dtype float32, not >f4"),
        ({"x": [1.0] * 8}, "input 'x' must be a numpy array or a DLPack tensor, not list"),
    ],
)
def test_wrong_inputs(doubling: Path, feed: dict[str, object], message: str) -> None:
    with load(doubling) as session:
        with pytest.raises(ModelError, match=message):
            session.run(None, feed)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)


def test_wrong_outputs(doubling: Path) -> None:
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    with load(doubling) as session:
        with pytest.raises(ModelError, match="the model has no output 'z'; it has output 'y'"):
            session.run(["z"], {"x": X})
        with pytest.raises(ModelError, match="output 'y' must be writeable"):
            session.run_into({"x": X}, {"y": read_only})
        with pytest.raises(ModelError, match=r"output 'y' must have shape \[8\], not \[7\]"):
            session.run_into({"x": X}, {"y": np.zeros(7, np.float32)})


def test_a_number_is_no_place_for_an_output(doubling: Path) -> None:
    with load(doubling) as session:
        with pytest.raises(ModelError, match="output 'y' must be an array, not a number"):
            session.run_into({"x": X}, {"y": np.float32(0)})
        with pytest.raises(ModelError, match="output 'y' must be an array, not a number"):
            session.bind({"x": X}, {"y": np.float32(0)})


def test_tensors_on_other_devices(doubling: Path) -> None:
    class OnGpu:
        def __dlpack__(self) -> object:
            raise AssertionError

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with load(doubling) as session, pytest.raises(ModelError, match="device type 2, not in CPU"):
        session.run(None, {"x": OnGpu()})


def test_tensors_that_cannot_be_exported(doubling: Path) -> None:
    """As one of PyTorch without memory of its own, and one that another library has taken over."""

    class Nowhere:
        def __dlpack__(self) -> object:
            raise AssertionError

        def __dlpack_device__(self) -> tuple[int, int]:
            raise ValueError("Unknown device type meta for Dlpack")

    class NoCapsule(Nowhere):
        def __dlpack__(self) -> object:
            return 5

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    with load(doubling) as session:
        for value, reason in ((Nowhere(), "Unknown device"), (NoCapsule(), "PyCapsule")):
            with pytest.raises(ModelError, match=f"'x' cannot be exported as DLPack: .*{reason}"):
                session.run(None, {"x": value})


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot load .*none.so: No such file"):
        load(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(ModelError, match=r"cannot load .*text.so: .*(too short|ELF)"):
        load(tmp_path / "text.so")
    subprocess.run(
        ["cc", "-shared", "-x", "c", "/dev/null", "-o", "other.so"], cwd=tmp_path, check=True
    )
    with pytest.raises(ModelError, match="no model compiled by this version of rutc"):
        load(tmp_path / "other.so")


def test_wrong_thread_count(doubling: Path) -> None:
    with pytest.raises(ModelError, match="threads must be a whole number from 1 to 4096, not 0"):
        load(doubling, threads=0)
    with pytest.raises(ModelError, match="threads must be a whole number from 1 to 4096, not 5000"):
        load(doubling, threads=5000)


def test_features_of_another_architecture(tmp_path: Path) -> None:
    feature = "sve2" if platform.machine() == "x86_64" else "avx2"
    build_library(simple("m", (), features=(feature,)), [], tmp_path / "m.so", {})
    with pytest.raises(ModelError, match=f"needs the CPU feature {feature}, which this build"):
        load(tmp_path / "m.so")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the features are those of x86-64")
@pytest.mark.parametrize("feature", ["ssse3", "fma", "avx2", "avx512f", "amx-tile", "amx-complex"])
def test_features_are_checked_when_a_session_opens(tmp_path: Path, feature: str) -> None:
    build_library(simple("m", (), features=(feature,)), [], tmp_path / "m.so", {})
    if feature in host_features():
        load(tmp_path / "m.so").close()
    else:
        with pytest.raises(ModelError, match=f"for CPUs with {feature}, which this CPU lacks"):
            load(tmp_path / "m.so")


COUNTED = """
#define _GNU_SOURCE
#include <cpuid.h>
static int asked;
#define __get_cpuid_max(...) (asked++, __get_cpuid_max(__VA_ARGS__))
#define __get_cpuid_count(...) (asked++, __get_cpuid_count(__VA_ARGS__))
#undef __cpuid_count
#define __cpuid_count(leaf, part, a, b, c, d)                                     \\
  do {                                                                           \\
    asked++;                                                                     \\
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "0"(leaf), "2"(part)); \\
  } while (0)
#include "features.c"
#include "error.c"
int main(void) {
  const char *needed[] = {"ssse3", "sse4.1", "avx", "f16c", "avx2", "fma", "lzcnt", 0};
  rutc_error error;
  for (int i = 0; i < 2; i++) {
    if (rutc_cpu_require(needed, &error) != RUTC_OK) puts(error.text);
    printf("%d\\n", asked);
  }
}
"""
"""Prints how often CPUID was asked up to each of two checks of features."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86-64")
def test_a_process_asks_the_cpu_once(tmp_path: Path) -> None:
    (tmp_path / "counted.c").write_text(COUNTED)
    command = ["cc", "-pthread", "-I", HOST_SOURCES, "counted.c", "-o", "counted"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "counted"], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert 0 < first == second


def test_the_runtime_imports_numpy_only(doubling: Path) -> None:
    script = (
        "import sys, rutc.runtime; from rutc import load; load(sys.argv[1]).close();"
        "print([m for m in ('ml_dtypes', 'onnx', 'llvmlite', 'torch', 'rutc.emit', 'rutc.errors')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(doubling)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_tensors_without_names(doubling: Path) -> None:
    """As a list, or where the arguments were taken for another order."""
    said = "inputs must be a dict of tensors by the inputs' names, not"
    with load(doubling) as session:
        for inputs in ([X], X, None):
            with pytest.raises(ModelError, match=f"{said} {type(inputs).__name__}"):
                session.run(None, inputs)  # type: ignore[arg-type]
            with pytest.raises(ModelError, match=said):
                session.bind(inputs, {"y": X.copy()})  # type: ignore[arg-type]
        with pytest.raises(ModelError, match="outputs must be a dict of tensors"):
            session.run_into({"x": X}, [X.copy()])  # type: ignore[arg-type]
