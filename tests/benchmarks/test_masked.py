"""What `tests.masked` makes of a library that asks the processor."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rutc.emit.linking.toolchain import find_toolchain
from tests.masked.__main__ import HERE, main, mask

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the processor has no CPUID"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils are not installed"),
]

ASKING = r"""
unsigned asked(unsigned leaf, unsigned part) {
  unsigned a, b, c, d;
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "0"(leaf), "2"(part));
  return leaf == 7 ? b : a;
}
"""
PROGRAM = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
asked = ctypes.CDLL(sys.argv[2]).asked
asked.restype = ctypes.c_uint
unmapped = (ctypes.c_void_p * 3)(1 << 12, 0, 1 << 16)
assert ctypes.CDLL(None).sigaltstack(unmapped, None) == 0
print(asked(7, 0) >> 16 & 1, asked(7, 0) >> 5 & 1, asked(0xD, 0) >> 5)
"""
"""What a library answers, where the stack for signals is gone."""
AVX512, STATES = "0", "0"


def test_masked_libraries_are_told_of_no_avx512(tmp_path: Path) -> None:
    (tmp_path / "asking.c").write_text(ASKING)
    compiler = find_toolchain()
    compiler.run(("-shared", "-fPIC", "-o", "asking.so", "asking.c"), tmp_path)
    handler = (f"-I{HERE / 'include'}", str(HERE / "masked.c"))
    compiler.run(("-shared", "-fPIC", *handler, "-o", "masked.so"), tmp_path)
    before = _told(tmp_path)
    mask(tmp_path / "asking.so")
    assert _told(tmp_path) == [AVX512, before[1], STATES]


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python -m tests.masked COMMAND" in capsys.readouterr().err


def _told(folder: Path) -> list[str]:
    libraries = [str(folder / name) for name in ("masked.so", "asking.so")]
    command = [sys.executable, "-c", PROGRAM, *libraries]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
