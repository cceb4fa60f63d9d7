"""What the operating system says of the processor at hand."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Returns the CPU's name as the kernel tells it."""
    for key in ("model name", "Model", "Hardware"):
        found = _cpuinfo(key)
        if found:
            return found
    return platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Returns what the kernel says that the processor has, in its own words."""
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features") or "").split())


def _cpuinfo(key: str) -> str | None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
