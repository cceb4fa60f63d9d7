"""What `rutc doctor` tells: the machine, the tools and the versions that rutc would use here."""

import importlib.metadata
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path

import rutc
from rutc.base.location import located
from rutc.base.processor import cpu_name
from rutc.base.record import record
from rutc.emit import cache
from rutc.emit.linking.toolchain import cache_directory, find_toolchain
from rutc.emit.targets.select import (
    Target,
    host_features,
    native_target,
    remeasured,
    save_native,
    target_named,
)
from rutc.errors import UserError
from rutc.report.printable import counted
from rutc.tensor_ir.dtype import DType

PACKAGES = (
    *("numpy", "onnx", "onnxruntime", "llvmlite", "scipy", "ml_dtypes", "sqlalchemy", "typer"),
    "rich",
)
OPTIONAL_PACKAGES = ("ziglang", "catboost", "psycopg", "pycuda", "torch", "pillow")
SHOWN_FEATURES = re.compile(r"avx|fma|amx|vnni|f16c|sse4\.2|bf16|fp16|neon|sve|i8mm|dotprod")
"""Those for vectors and matrices."""


@record
class Finding:
    """One line of the report; `problem` says what to do where something needed is missing."""

    name: str
    value: str
    problem: str = ""


def examine(*, remeasure: bool = False, save_target: Path | None = None) -> tuple[Finding, ...]:
    """Returns what rutc finds on this machine.

    `remeasure` measures the processor's rates anew, `save_target` is a file to describe it in.

    Raises:
        UserError: the file cannot be written.
    """
    if remeasure:
        remeasured()
    if save_target is not None:
        save_native(save_target)
    return (
        Finding("rutc", rutc.__version__),
        Finding("Python", f"{platform.python_version()} on {platform.platform()}"),
        Finding("CPU", cpu_name()),
        Finding("CPUs of this process", str(len(os.sched_getaffinity(0)))),
        Finding("CPU features", " ".join(cpu_features())),
        *_target(),
        _compiler(),
        Finding("GPU", _gpu()),
        _cache(),
        _tuning_records(),
        *(_package(name, needed=True) for name in PACKAGES),
        *(_package(name, needed=False) for name in OPTIONAL_PACKAGES),
    )


def cpu_features() -> tuple[str, ...]:
    """Returns the processor's vector and matrix features as code generation sees them."""
    return tuple(sorted(name for name in host_features() if SHOWN_FEATURES.search(name)))


def _besides(target: Target) -> str:
    """Returns " and avx512vnni": what code for this machine uses that the target does not name."""
    more = sorted(target.machine.features - target_named(target.name).machine.features)
    return f" and {', '.join(more)}" if more else ""


def _target() -> tuple[Finding, ...]:
    """What decisions know about this machine's processor."""
    try:
        target = native_target()
    except UserError as error:
        return (Finding("target", "none", str(error)),)
    m = target.machine
    pairs = m.products(DType.BF16, DType.BF16) > 1
    bf16 = (
        f"{_counted(m.bf16_pairs_per_cycle, 'sum')} of pairs of products of bf16, " if pairs else ""
    )
    hints = f", {m.hint_gain:g} times as much from memory that is asked for" if m.hints_help else ""
    caches = f"{m.l1 >> 10} and {m.l2 >> 10} KiB a core, lines of {m.line_bytes} bytes"
    return (
        Finding("target", f"{target.name}: {target.describe}{_besides(target)}"),
        Finding("caches", caches),
        Finding(
            "in a cycle",
            f"{_counted(m.fma_per_cycle, 'multiply-add')} and "
            f"{_counted(m.loads_per_cycle, 'load')} of {m.vector_bits} bits, "
            f"{bf16}{m.l2_bytes_per_cycle:g} bytes from the second cache, "
            f"{m.l3_bytes_per_cycle:g} from the last one{hints}",
        ),
        Finding(
            "cycles",
            f"{m.fma_latency} until a multiply-add has its result, {m.divide_cycles:g} from one "
            f"division and {m.gather_cycles:g} from one gather to the next",
        ),
    )


def _counted(number: float, what: str) -> str:
    """So many of something: `1 load`, `2 loads`, `0.5 loads`."""
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _compiler() -> Finding:
    try:
        found = find_toolchain()
    except UserError as error:
        return Finding("C compiler", "none", str(error))
    version = found.identity.splitlines()[1:2]
    return Finding("C compiler", ": ".join([" ".join(found.command), *version]))


def _gpu() -> str:
    question = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(question, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return "; ".join(done.stdout.split("\n")).strip("; ") or "none"


def _cache() -> Finding:
    """Where compiled parts are kept. Whether files can be made there, making one tells alone."""
    folder = cache_directory()
    distrust = cache.distrust(folder)
    if distrust is not None:
        return Finding("cache", f"{folder} (not used)", distrust)
    try:
        cache.made(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            "cache",
            f"{folder} (not writable: {error.strerror})",
            "compiled parts are built again every time; set RUTC_CACHE to a folder you can write",
        )
    return Finding("cache", str(folder))


def _tuning_records() -> Finding:
    """Where the database of tuning records is, and how many trials it has."""
    location = located()
    name = "tuning records"
    if location.path is not None and not os.path.lexists(location.path):
        return Finding(name, f"{location} (not there yet)")
    # What only this needs is imported where there is something to count.
    from rutc.tuner.database.database import Database

    try:
        with Database.open(create=False) as database:
            return Finding(name, f"{location}: {counted(database.count(), 'trial')}")
    except UserError as error:
        return Finding(name, f"{location} (cannot be used)", str(error))


def _package(name: str, *, needed: bool) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        problem = f"run `pip install {name}`" if needed else ""
        return Finding(name, "not installed", problem)
