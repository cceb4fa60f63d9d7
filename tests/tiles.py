"""Instructions on tiles (AMX) by functions in C, where the processor has none.

Code for such a machine is the same but for its calls of LLVM's intrinsics, which become calls of
`tiles.c`. What these functions may not do the instructions may not do either: they end the process.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from rutc.tensor_ir.machine import Machine

SOURCE = Path(__file__).with_name("tiles.c")
FEATURES = frozenset({"amx-tile", "amx-bf16", "amx-int8"})
_INTRINSICS = re.compile(r"@llvm\.x86\.(ldtilecfg|tile\w+|tdp\w+)\b")


def calling_functions(text: str) -> str:
    """A module of LLVM's code that calls `tiles.c` where it has instructions on tiles."""
    return _INTRINSICS.sub(r"@tiles_\1", text)


def without_tiles(machine: Machine) -> frozenset[str]:
    """The features that a machine has besides."""
    return machine.features - FEATURES


@cache
def compiled() -> bytes:
    """The functions as an object file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiles.o"
        _compile("-c", path)
        return path.read_bytes()


@cache
def load() -> ctypes.CDLL:
    """Makes the functions known to code of this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "libtiles.so"
        _compile("-shared", path)
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _compile(kind: str, path: Path) -> None:
    options = ["-std=gnu11", "-O2", "-mfma", "-fPIC", "-ffp-contract=off", "-Wall", "-Werror"]
    subprocess.run(["cc", *options, kind, str(SOURCE), "-o", str(path)], check=True)
