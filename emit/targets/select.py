"""Which target a name means, and which one this machine is."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm

from rutc.base.record import record
from rutc.emit.targets import aarch64, x86
from rutc.emit.targets.measured import with_measured_rates
from rutc.emit.targets.saved import load_machine, save_machine
from rutc.errors import UserError
from rutc.tensor_ir.machine import Machine


@record
class Target:
    """A named target and what it takes; of several, `asked` is what the list has for it."""

    name: str
    machine: Machine
    describe: str
    asked: str = ""


_MAKERS: Mapping[str, tuple[Callable[..., Machine], str]] = {
    "x86-64-v4": (x86.avx512, "x86-64 with AVX-512 (F, BW, CD, DQ, VL)"),
    "x86-64-v3": (x86.avx2, "x86-64 with AVX2 and FMA"),
    "aarch64": (aarch64.neon, "64-bit Arm with NEON"),
}
TARGETS = ("native", *_MAKERS)
"""The names that `--target` takes."""
SEPARATOR = ","
"""Between targets of which a library is to have code for each."""


def target_named(name: str) -> Target:
    """The target of that name, or the one that a file describes: `FOLDER/FILE` or `FILE.json`.

    A named target is the same everywhere; the native one has the caches and rates of this machine.

    Raises:
        UserError: there is none, or the file describes none.
    """
    if SEPARATOR in name:
        listed = ", ".join(name.split(SEPARATOR))
        raise UserError(f"{name} are several targets, and here one is needed: name one of {listed}")
    if name == "native":
        return native_target()
    if name.endswith(".json") or "/" in name:
        bases = {base: make() for base, (make, _) in _MAKERS.items()}
        return Target(name, load_machine(Path(name), bases, x86.OPTIONAL_FEATURES), name)
    if name not in _MAKERS:
        known = ", ".join(TARGETS)
        raise UserError(
            f"unknown target {name!r}: rutc compiles for {known}, or for what a file describes "
            "that `rutc doctor --save-target FILE.json` has written"
        )
    make, describe = _MAKERS[name]
    return Target(name, make(), describe)


def targets_named(names: str) -> tuple[Target, ...]:
    """The targets of a list, `x86-64-v3,x86-64-v4`, in the order in which a CPU is asked for them.

    The features that each needs decide it: wider vectors come first, then more features. So what
    needs all that another one does stands before it. Each is named as in the list, a file by its
    name without folder and extension. A single target is as `target_named` gives it.

    Raises:
        UserError: there is no such target, two have one name or need the same features, or they are
            of different families of processors.
    """
    listed = names.split(SEPARATOR)
    if len(listed) == 1:
        return (target_named(names),)
    found = [
        replace(target_named(x), name=x if x in TARGETS else Path(x).stem, asked=x) for x in listed
    ]
    families = sorted({t.machine.architecture for t in found})
    if len(families) > 1:
        raise UserError(
            f"--target {names}: a library has code for processors of one family, and these are "
            f"{' and '.join(families)}; compile once for each"
        )
    for number, target in enumerate(found):
        for other in found[:number]:
            if target.name == other.name:
                raise UserError(f"--target {names}: {target.name} is named twice")
            if target.machine.features == other.machine.features:
                raise UserError(
                    f"--target {names}: {other.name} and {target.name} need the same CPU features, "
                    "so that only one of them would ever run; name one"
                )
    return tuple(sorted(found, key=_demands, reverse=True))


def _demands(target: Target) -> tuple[int, int, tuple[str, ...]]:
    """How much a target asks of a processor, different for all that need different features."""
    machine = target.machine
    return machine.vector_bits, len(machine.features), tuple(sorted(machine.features))


@functools.cache
def native_target() -> Target:
    """The best target that this machine's CPU features allow, at the rates of this machine.

    Raises:
        UserError: no target fits it.
    """
    return _native(again=False)


def remeasured() -> Target:
    """The native target, whose rates are measured anew.

    Raises:
        UserError: no target fits this machine.
    """
    native_target.cache_clear()
    return _native(again=True)


def save_native(path: Path) -> None:
    """Writes the description of this machine, which `target_named` reads.

    Raises:
        UserError: no target fits this machine, or the file cannot be written.
    """
    target = native_target()
    save_machine(target.machine, _MAKERS[target.name][0](), path)


def _native(*, again: bool) -> Target:
    present = host_features()
    missing: set[str] = set()
    for name, (make, describe) in _MAKERS.items():
        machine = make(*_caches())
        if not _is_native(machine):
            continue
        missing = set(machine.features - present)
        if not missing:
            machine = with_measured_rates(machine, again=again)
            machine = x86.with_costs(machine, host_processor())
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
