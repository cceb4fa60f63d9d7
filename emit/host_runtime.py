"""The host runtime as object files: compiled once, beside whatever else compiling a model takes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rutc.emit import cache
from rutc.emit.toolchain import Running, Toolchain

HOST_SOURCES = Path(__file__).resolve().parent.parent / "runtime" / "host"
"""The folder of the host runtime's C sources."""

ROUTINE_SOURCES = HOST_SOURCES / "routines"
"""The folder of the routines: `topk.c` defines `rutc_routine_topk`."""

COMPILE = ("-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread")
"""Tables, steps and threads gain nothing from -O2, which takes half as long again to compile."""

COMPILERS = 2
"""C compilers that run at once."""

ROUTINE = ("-O2",)
"""Routines compute: the last of several levels counts."""
_INCLUDE = ("-I", str(HOST_SOURCES), "-I", str(ROUTINE_SOURCES))


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
        self._sources = sorted(HOST_SOURCES.glob("*.c"))
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._running: list[Running] = []
        self._known: dict[Path, bytes] = {}

    def __enter__(self) -> Self:
        for source, key in self._keys(self._sources).items():
            found = cache.lookup(key)
            if found is not None:
                self._known[source] = found
        missing = [source for source in self._sources if source not in self._known]
        if missing:
            self._folder = tempfile.TemporaryDirectory(prefix="rutc-")
            folder = Path(self._folder.name)
            parts = [part for n in range(COMPILERS) if (part := missing[n::COMPILERS])]
            self._running = [self._begin(part, folder) for part in parts]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for running in self._running:
            running.stop()
        if self._folder is not None:
            self._folder.cleanup()

    def objects(self, routines: Sequence[str]) -> list[bytes]:
        """Returns the objects of the runtime itself, and those of some routines.

        Raises:
            InternalError: the compiler fails.
        """
        missing = [source for source in self._sources if source not in self._known]
        if missing and self._folder is not None:
            self._known |= self._finished(self._running, missing, Path(self._folder.name))
        own = [self._known[source] for source in self._sources]
        return [*own, *(self._routine(ROUTINE_SOURCES / f"{name}.c") for name in routines)]

    def _routine(self, source: Path) -> bytes:
        found = cache.lookup(self._keys([source])[source])
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
            running = self._begin([source], Path(folder))
            try:
                return self._finished([running], [source], Path(folder))[source]
            finally:
                running.stop()

    def _begin(self, sources: Sequence[Path], folder: Path) -> Running:
        """Starts to compile copies of sources in a folder: no path of this machine is kept."""
        commands = []
        for source in sources:
            (folder / source.name).write_bytes(source.read_bytes())
            flags = _flags(source)
            commands.append(["-c", *flags, *_INCLUDE, source.name, "-o", f"{source.stem}.o"])
        return self.toolchain.begin(commands, folder)

    def _finished(
        self, started: Sequence[Running], sources: Sequence[Path], folder: Path
    ) -> dict[Path, bytes]:
        for running in started:
            running.wait()
        made = {source: (folder / f"{source.stem}.o").read_bytes() for source in sources}
        for source, key in self._keys(sources).items():
            cache.store(key, made[source])
        return made

    def _keys(self, sources: Sequence[Path]) -> Mapping[Path, str]:
        """The keys of the sources' objects in the cache."""
        headers = [path.read_bytes() for path in sorted(HOST_SOURCES.glob("**/*.h"))]
        common: tuple[str | bytes, ...] = (self.toolchain.identity, *headers)
        return {
            s: cache.key_of("host", (*common, *_flags(s), s.name, s.read_bytes())) for s in sources
        }


def _flags(source: Path) -> tuple[str, ...]:
    return (*COMPILE, *ROUTINE) if source.parent == ROUTINE_SOURCES else COMPILE
