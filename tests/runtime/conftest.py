"""Tiny models: hand-written C kernels, compiled by the C compiler, and programs around them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rutc.emit.host_program.host_steps import Step
from rutc.emit.host_program.kernel_call import Ref
from rutc.emit.host_program.ports import Port
from rutc.emit.host_program.program import Program
from rutc.emit.linking.host_runtime import HOST_SOURCES
from rutc.emit.linking.library import build_library
from tests.launches import Launches

KERNEL = "(void *const *bufs, const int64_t *syms, int64_t begin, int64_t end)"

Compile = Callable[[str], bytes]
Telling = Callable[..., list[int]]
"""A program: what it prints, which is numbers, for those that it is given."""


def telling(source: str, folder: Path) -> Telling:
    """A program from its source in C, which may include sources of the host runtime."""
    (folder / "main.c").write_text(source)
    command = ["cc", "-D_GNU_SOURCE", "-I", HOST_SOURCES, "main.c", "-o", "program"]
    subprocess.run(command, cwd=folder, check=True)

    def told(*given: int) -> list[int]:
        arguments = [folder / "program", *map(str, given)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        return [int(x) for x in done.stdout.split()]

    return told


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps compiled host sources of the tests out of the user's cache, but shares them."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RUTC_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A function from the bodies of kernels, in C, to an object file."""
    folder = tmp_path_factory.mktemp("kernels")

    def compile_kernels(source: str) -> bytes:
        path = folder / "kernels.c"
        path.write_text("#include <stdint.h>\n#include <math.h>\n" + source)
        command = ["cc", "-O1", "-fPIC", "-fvisibility=hidden", "-c", "kernels.c", "-o", "k.o"]
        subprocess.run(command, cwd=folder, check=True)
        return (folder / "k.o").read_bytes()

    return compile_kernels


def kernel(name: str, body: str) -> str:
    """The C source of a kernel; `body` may use bufs, syms, begin and end."""
    return f"void {name}{KERNEL} {{ (void)syms; (void)begin; (void)end; {body} }}\n"


def unary(name: str, dtype: str, expression: str, ctype: str = "float") -> str:
    """A kernel that computes `expression` of x for each of its tasks."""
    return kernel(
        name,
        f"const {ctype} *in = bufs[0]; {ctype} *out = bufs[1];"
        f"for (int64_t i = begin; i < end; i++) {{ {ctype} x = in[i]; out[i] = {expression}; }}",
    )


def run_c(folder: Path, source: str, *flags: str, library: str = "model.so") -> str:
    """What a C program prints that uses a library of the folder; freed memory is overwritten.

    The program may include "tensors.h", which stands beside this file.
    """
    (folder / "program.c").write_text(source)
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    command += ["-I", str(Path(__file__).parent)]
    command += ["program.c", f"./{library}", "-o", "program", *flags]
    subprocess.run(command, cwd=folder, check=True)
    environment = {**os.environ, "MALLOC_PERTURB_": "165"}
    done = subprocess.run(
        ["./program"], cwd=folder, capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def simple(name: str, steps: tuple[Step, ...], size: int = 8, **more: Any) -> Program:
    """A program from float32 input `x` to float32 output `y`, both `[size]`."""
    x, y = (Port(port, "float32", (size,)) for port in "xy")
    facts: dict[str, Any] = {"arena_bytes": 4096, **more}
    return Program(name, (x,), (y,), steps=steps, **facts)


def elementwise(kernel_name: str) -> dict[str, Any]:
    """The steps and kernels of one launch from the input to the output, a task per element."""
    launch = Launches()
    steps = (launch(kernel_name, (Ref("input"), Ref("output")), 8, ("node_0",)),)
    return {"steps": steps, "kernels": launch.kernels}


@pytest.fixture(scope="session")
def doubling(compile_c: Compile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with y = 2 x over float32[8]."""
    path = tmp_path_factory.mktemp("doubling") / "model.so"
    objects = [compile_c(unary("twice", "float32", "2 * x"))]
    build_library(simple("doubling", **elementwise("twice")), objects, path, {"version": "1"})
    return path
