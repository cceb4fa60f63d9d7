"""The host runtime as object files: compiled once, beside whatever else compiling a model takes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rutc.emit import cache
from rutc.emit.toolchain import Running, Toolchain
from rutc.record import record

HOST_SOURCES = Path(__file__).resolve().parent.parent / "runtime" / "host"
"""The folder of the host runtime's C sources."""

ROUTINE_SOURCES = HOST_SOURCES / "routines"
"""The folder of the routines: `topk.c` defines `rutc_routine_topk`."""

COMPILE = ("-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread")
"""Tables, steps and threads gain nothing from -O2, which takes half as long again to compile."""

UNITS = 2
"""What the runtime's sources are compiled as, at once: most of a compilation is reading headers."""

ROUTINE = ("-O2",)
"""Routines compute: the last of several levels counts."""
_INCLUDE = ("-I", str(HOST_SOURCES), "-I", str(ROUTINE_SOURCES))


@record
class Unit:
    """Sources that become one object, whose functions therefore all have names of their own."""

    name: str
    sources: tuple[Path, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is compiled."""
        routine = any(source.parent == ROUTINE_SOURCES for source in self.sources)
        return (*COMPILE, *ROUTINE) if routine else COMPILE

    @property
    def text(self) -> str:
        """The file that is compiled."""
        return "".join(["#define _GNU_SOURCE\n", *(f'#include "{s.name}"\n' for s in self.sources)])


def runtime_units() -> tuple[Unit, ...]:
    """The runtime's sources, shared out so that the units are of similar size."""
    shares: list[list[Path]] = [[] for _ in range(UNITS)]
    bytes_ = [0] * UNITS
    sized = [(source.stat().st_size, source) for source in sorted(HOST_SOURCES.glob("*.c"))]
    for size, source in sorted(sized, key=lambda item: -item[0]):
        least = bytes_.index(min(bytes_))
        shares[least].append(source)
        bytes_[least] += size
    return tuple(Unit(f"runtime{n}", tuple(sorted(share))) for n, share in enumerate(shares))


class HostRuntime:
    """The objects of the host runtime's sources, from the cache where possible.

    Entering starts a compiler for those that are missing; `objects` waits for it.

        with HostRuntime(toolchain) as host:
            ...                        # meanwhile
            host.objects(["top_k"])
    """

    def __init__(self, toolchain: Toolchain) -> None:
        """Take the compiler to use."""
        self.toolchain = toolchain
        self._units = runtime_units()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._running: dict[Unit, Running] = {}
        self._known: dict[Unit, bytes] = {}

    def __enter__(self) -> Self:
        for unit in self._units:
            found = cache.lookup(self._key(unit))
            if found is not None:
                self._known[unit] = found
        missing = [unit for unit in self._units if unit not in self._known]
        if missing:
            self._folder = tempfile.TemporaryDirectory(prefix="rutc-")
            self._running = {unit: self._begin(unit, Path(self._folder.name)) for unit in missing}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for running in self._running.values():
            running.stop()
        if self._folder is not None:
            self._folder.cleanup()

    def objects(self, routines: Sequence[str]) -> list[bytes]:
        """Returns the objects of the runtime itself, and those of some routines.

        Raises:
            InternalError: the compiler fails.
        """
        for unit, running in self._running.items():
            if unit not in self._known and self._folder is not None:
                self._known[unit] = self._finished(unit, running, Path(self._folder.name))
        own = [self._known[unit] for unit in self._units]
        return [*own, *map(self._routine, routines)]

    def _routine(self, name: str) -> bytes:
        unit = Unit(name, (ROUTINE_SOURCES / f"{name}.c",))
        found = cache.lookup(self._key(unit))
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
            running = self._begin(unit, Path(folder))
            try:
                return self._finished(unit, running, Path(folder))
            finally:
                running.stop()

    def _begin(self, unit: Unit, folder: Path) -> Running:
        """Starts to compile copies of sources in a folder: no path of this machine is kept."""
        for source in unit.sources:
            (folder / source.name).write_bytes(source.read_bytes())
        main = f"unit_{unit.name}.c"
        (folder / main).write_text(unit.text)
        command = ["-c", *unit.flags, *_INCLUDE, main, "-o", f"{unit.name}.o"]
        return self.toolchain.begin([command], folder)

    def _finished(self, unit: Unit, running: Running, folder: Path) -> bytes:
        running.wait()
        made = (folder / f"{unit.name}.o").read_bytes()
        cache.store(self._key(unit), made)
        return made

    def _key(self, unit: Unit) -> str:
        """The key of a unit's object in the cache."""
        sources = [part for s in unit.sources for part in (s.name, s.read_bytes())]
        parts = (self.toolchain.identity, *_headers(), *unit.flags, unit.text, *sources)
        return cache.key_of("host", parts)


@functools.cache
def _headers() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(HOST_SOURCES.glob("**/*.h")))
