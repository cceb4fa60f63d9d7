"""The host runtime as object files: compiled once, beside whatever else compiling a model takes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rutc.emit import cache
from rutc.emit.header import HOST_SOURCES, ROUTINE_SOURCES
from rutc.emit.toolchain import Running, Toolchain

COMPILE = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
UNIT = "unit"
OBJECT = "unit.o"
_INCLUDE = ("-I", str(HOST_SOURCES), "-I", str(ROUTINE_SOURCES))


class HostRuntime:
    """The objects of the host runtime: one of itself, and one of each routine that is needed.

    Entering starts a compiler for the first unless the cache has it; `objects` waits for it.

        with HostRuntime(toolchain) as host:
            ...                        # meanwhile
            host.objects(["top_k"])
    """

    def __init__(self, toolchain: Toolchain) -> None:
        """Take the compiler to use."""
        self.toolchain = toolchain
        self._sources = sorted(HOST_SOURCES.glob("*.c"))
        self._object: bytes | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._running: Running | None = None

    def __enter__(self) -> Self:
        self._object = cache.lookup(self._key(self._sources))
        if self._object is None:
            self._folder = tempfile.TemporaryDirectory(prefix="rutc-")
            self._running = self._begin(self._sources, Path(self._folder.name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._running is not None:
            self._running.stop()
        if self._folder is not None:
            self._folder.cleanup()

    def objects(self, routines: Sequence[str]) -> list[bytes]:
        """Returns the object of the runtime itself, and those of some routines.

        Raises:
            InternalError: the compiler fails.
        """
        if self._object is None:
            assert self._running is not None
            assert self._folder is not None
            self._object = self._finished(self._running, self._sources, Path(self._folder.name))
        return [self._object, *(self._routine(ROUTINE_SOURCES / f"{name}.c") for name in routines)]

    def _routine(self, source: Path) -> bytes:
        found = cache.lookup(self._key([source]))
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
            running = self._begin([source], Path(folder))
            try:
                return self._finished(running, [source], Path(folder))
            finally:
                running.stop()

    def _begin(self, sources: Sequence[Path], folder: Path) -> Running:
        """Starts to compile sources as one unit, which takes half the time of one after the other.

        They are copied into the folder, so that no path of this machine is kept.
        """
        for source in sources:
            (folder / source.name).write_bytes(source.read_bytes())
        lines = ["#define _GNU_SOURCE", *(f'#include "{source.name}"' for source in sources)]
        (folder / UNIT).with_suffix(".c").write_text("\n".join([*lines, ""]))
        return self.toolchain.begin(["-c", *COMPILE, *_INCLUDE, f"{UNIT}.c", "-o", OBJECT], folder)

    def _finished(self, running: Running, sources: Sequence[Path], folder: Path) -> bytes:
        running.wait()
        made = (folder / OBJECT).read_bytes()
        cache.store(self._key(sources), made)
        return made

    def _key(self, sources: Sequence[Path]) -> str:
        headers = [path.read_bytes() for path in sorted(HOST_SOURCES.glob("**/*.h"))]
        texts = [part for s in sources for part in (s.name, s.read_bytes())]
        return cache.key_of("host", (self.toolchain.identity, *COMPILE, *texts, *headers))
