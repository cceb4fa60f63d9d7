"""`python -m tests.masked COMMAND...`: see the package."""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rutc.emit.linking.toolchain import cache_directory, find_toolchain

HERE = Path(__file__).resolve().parent
PACKAGES = ("numpy", "onnxruntime", "llvmlite", "openvino")
"""The packages whose libraries ask for the processor's features, where they are installed."""
CPUID, UD2 = b"\x0f\xa2", b"\x0f\x0b"
TUNABLES = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ"
START = """\
import ctypes
import faulthandler
import pathlib

ctypes.CDLL(str(pathlib.Path(__file__).parent.parent / "masked.so"))
faulthandler.enable = lambda *arguments, **options: None  # it would take the signal
"""


def main(command: list[str]) -> int:
    """Runs the command; returns its exit status, or 2 where it cannot be run so."""
    if not command or platform.machine() != "x86_64":
        print("usage, on x86: python -m tests.masked COMMAND...", file=sys.stderr)
        return 2
    folder = cache_directory() / f"masked-{_digest()}"
    if not folder.is_dir():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        _make(made)
        made.rename(folder)
    return subprocess.run(command, env=_environment(folder), check=False).returncode


def _digest() -> str:
    """What the masked libraries depend on: the packages and this folder."""
    digest = hashlib.sha256()
    for name in PACKAGES:
        if importlib.util.find_spec(name) is not None:
            digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    for path in sorted(HERE.rglob("*.*")):
        if path.suffix in {".c", ".h", ".py"}:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _environment(folder: Path) -> dict[str, str]:
    """The command's variables; what it compiles is kept apart from what others compile."""
    found = dict(os.environ)
    before = found.get("PYTHONPATH")
    found["PYTHONPATH"] = f"{folder / 'site'}{os.pathsep + before if before else ''}"
    found["GLIBC_TUNABLES"] = TUNABLES
    found["CPATH"] = str(HERE / "include")
    found["RUTC_CACHE"] = str(folder / "cache")
    return found


def _make(folder: Path) -> None:
    """Fills a folder with masked copies, the handler, and a cache of its own (but for models)."""
    site = folder / "site"
    site.mkdir(parents=True)
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin).parent
        shutil.copytree(origin, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        beside = origin.with_name(f"{name}.libs")
        if beside.is_dir():
            shutil.copytree(beside, site / beside.name)
    for path in sorted(site.rglob("*.so*")):
        if path.is_file() and not path.is_symlink():
            mask(path)
    options = (f"-I{HERE / 'include'}", "-shared", "-fPIC", "-O1", str(HERE / "masked.c"))
    find_toolchain().run((*options, "-o", "masked.so"), folder)
    (site / "sitecustomize.py").write_text(START)
    (folder / "cache").mkdir()
    models = cache_directory() / "models"
    models.mkdir(exist_ok=True)
    (folder / "cache" / "models").symlink_to(models)


def mask(library: Path) -> None:
    """Puts UD2 where a library's code has CPUID."""
    raw = library.read_bytes()
    if CPUID not in raw:
        return
    loaded = _loaded(library)
    code = bytearray(raw)
    listing = subprocess.Popen(
        ["objdump", "-d", "--no-show-raw-insn", str(library)], stdout=subprocess.PIPE, text=True
    )
    assert listing.stdout is not None
    for line in listing.stdout:
        if "\tcpuid" in line:
            address = int(line.partition(":")[0], 16)
            place = next(o + address - at for at, o, size in loaded if at <= address < at + size)
            assert code[place : place + len(CPUID)] == CPUID, (library, line)
            code[place : place + len(CPUID)] = UD2
    if listing.wait() != 0:
        raise RuntimeError(f"objdump cannot read {library}")
    library.write_bytes(code)


def _loaded(library: Path) -> list[tuple[int, int, int]]:
    """The parts of a library that are loaded: address, place in the file, size in bytes."""
    heads = subprocess.run(
        ["readelf", "-lW", str(library)], capture_output=True, text=True, check=True
    ).stdout
    rows = re.findall(r"^ +LOAD +(\S+) (\S+) \S+ (\S+)", heads, re.MULTILINE)
    return [(int(at, 16), int(offset, 16), int(size, 16)) for offset, at, size in rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
