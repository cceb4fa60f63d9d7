"""The host runtime as object files: compiled once, beside whatever else compiling a model takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rutc.emit import cache
from rutc.emit.header import HOST_SOURCES, ROUTINE_SOURCES
from rutc.emit.toolchain import Running, Toolchain

COMPILE = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
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
        self._running: Running | None = None
        self._known: dict[Path, bytes] = {}

    def __enter__(self) -> Self:
        keys = self._keys(self._sources)
        found = {source: cache.lookup(key) for source, key in keys.items()}
        self._known = {source: data for source, data in found.items() if data is not None}
        missing = [source for source in self._sources if source not in self._known]
        if missing:
            self._folder = tempfile.TemporaryDirectory(prefix="rutc-")
            self._running = self._begin(missing, Path(self._folder.name))
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
        """Returns the objects of the runtime itself, and of some routines.

        Raises:
            InternalError: the compiler fails.
        """
        if self._running is not None and self._folder is not None:
            self._running.wait()
            self._collect(Path(self._folder.name))
            self._running = None
        needed = [ROUTINE_SOURCES / f"{name}.c" for name in routines]
        return [*(self._known[source] for source in self._sources), *map(self._routine, needed)]

    def _routine(self, source: Path) -> bytes:
        key = self._keys([source])[source]
        found = cache.lookup(key)
        if found is None:
            with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
                running = self._begin([source], Path(folder))
                try:
                    running.wait()
                finally:
                    running.stop()
                found = (Path(folder) / f"{source.stem}.o").read_bytes()
            cache.store(key, found)
        return found

    def _begin(self, sources: Iterable[Path], folder: Path) -> Running:
        """Starts the compiler in a folder with copies, so that no path of this machine is kept."""
        commands = []
        for source in sources:
            (folder / source.name).write_bytes(source.read_bytes())
            commands.append(["-c", *COMPILE, *_INCLUDE, source.name, "-o", f"{source.stem}.o"])
        return self.toolchain.begin(commands, folder)

    def _collect(self, folder: Path) -> None:
        keys = self._keys(self._sources)
        for source in self._sources:
            if source not in self._known:
                self._known[source] = (folder / f"{source.stem}.o").read_bytes()
                cache.store(keys[source], self._known[source])

    def _keys(self, sources: Iterable[Path]) -> Mapping[Path, str]:
        headers = [path.read_bytes() for path in sorted(HOST_SOURCES.glob("**/*.h"))]
        return {
            source: cache.key_of(
                "host",
                (self.toolchain.identity, *COMPILE, source.name, source.read_bytes(), *headers),
            )
            for source in sources
        }
