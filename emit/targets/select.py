"""Which target a name means, and which one this machine is."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm

from rutc.base.record import record
from rutc.emit.targets import aarch64, x86
from rutc.errors import UserError
from rutc.tensor_ir.machine import Machine


@record
class Target:
    """A named target and what it takes."""

    name: str
    machine: Machine
    describe: str


_MAKERS: Mapping[str, tuple[Callable[..., Machine], str]] = {
    "x86-64-v4": (x86.avx512, "x86-64 with AVX-512 (F, BW, CD, DQ, VL)"),
    "x86-64-v3": (x86.avx2, "x86-64 with AVX2 and FMA"),
    "aarch64": (aarch64.neon, "64-bit Arm with NEON"),
}
TARGETS = ("native", *_MAKERS)
"""The names that `--target` takes."""


def target_named(name: str) -> Target:
    """The target of that name. Raises UserError for an unknown one."""
    if name == "native":
        return native_target()
    if name not in _MAKERS:
        known = ", ".join(TARGETS)
        raise UserError(f"unknown target {name!r}: rutc compiles for {known}")
    make, describe = _MAKERS[name]
    machine = make()
    return Target(name, _here(make) if _is_native(machine) else machine, describe)


def native_target() -> Target:
    """The best target that this machine's CPU features allow, by feature flags alone."""
    present = host_features()
    missing: set[str] = set()
    for name, (make, describe) in _MAKERS.items():
        machine = _here(make)
        if not _is_native(machine):
            continue
        missing = set(machine.features - present)
        if not missing:
            more = x86.OPTIONAL_FEATURES & present
            return Target(name, replace(machine, features=machine.features | more), describe)
    lacks = (
        f"this machine's processor lacks {', '.join(sorted(missing))}, which every target needs"
        if missing
        else f"rutc has no target for {platform.machine()} processors"
    )
    raise UserError(
        f"{lacks}; compile on another machine or name a --target among {', '.join(_MAKERS)}"
    )


def host_features() -> frozenset[str]:
    """The features that this machine's processor has, by LLVM's names."""
    return frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)


def host_processor() -> str:
    """The name of this machine's processor to LLVM, such as `znver4`."""
    name: str = llvm.get_host_cpu_name()
    return name


def _is_native(machine: Machine) -> bool:
    """Whether this machine's processor is of that family."""
    return machine.architecture == platform.machine()


def _here(make: Callable[..., Machine]) -> Machine:
    """A machine with the caches and rates of this one."""
    return x86.with_rates(make(*_caches()), host_processor())


def _caches() -> tuple[int, int]:
    """Bytes of the first two data cache levels of a core of this machine."""
    sizes = {1: 32 << 10, 2: 512 << 10}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified") and level in sizes and text.endswith("K"):
            sizes[level] = int(text[:-1]) << 10
    return sizes[1], sizes[2]
