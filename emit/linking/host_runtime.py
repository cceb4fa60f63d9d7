"""The host runtime as object files: compiled once, beside whatever else compiling a model takes."""

from __future__ import annotations

import functools
import platform
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from rutc.base.files import Workplace, sweep, temporary_folder
from rutc.base.interrupts import uninterrupted
from rutc.base.record import record
from rutc.emit import cache
from rutc.emit.linking.elf import is_object
from rutc.emit.linking.toolchain import Running, Toolchain, find_toolchain
from rutc.errors import UserError

HOST_SOURCES = Path(__file__).resolve().parents[2] / "runtime" / "host"
"""The folder of the host runtime's C sources."""

ROUTINE_SOURCES = HOST_SOURCES / "routines"
"""The folder of the routines: `topk.c` defines `rutc_routine_topk`."""

COMPILE = (
    *("-std=c11", "-fPIC", "-fvisibility=hidden", "-pthread", "-fno-sanitize=undefined"),
    "-ffp-contract=off",
)
"""How all C sources are compiled, but for the level.

Some compilers add checks at low levels, or round products and sums of them once where there is an
instruction for that.
"""

TABLES = "-O0"
"""The level of data, and of what is called once for a run: higher ones take twice as long."""

LOOPS = "-O1"
"""The level of what is called for every launch: tables, steps and threads gain nothing from -O2."""

ROUTINE = "-O2"
"""The level of routines, which compute."""

VECTORS = ("avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "bmi", "bmi2", "lzcnt", "popcnt")
"""The features that routines are compiled for where the program's kernels need them anyway."""

LAUNCHING = frozenset({"execute.c", "parts.c", "pool.c", "small_run.c", "turns.c"})
"""The sources that every launch runs through."""

CALLING = frozenset({"boxes.c", "call.c", "keeper.c", "string_table.c"})
"""The sources that only programs with routines or strings need."""

CHECKING = frozenset({"sha256.c"})
"""The sources that go over all weights, where they are to be checked."""

EXCHANGING = frozenset({"python.c"})
"""The sources that only programs need whose inputs or outputs are made of Python's objects."""

TARGETS = frozenset({"targets.c"})
"""The sources that only libraries of several targets need."""

CHAINS = 2
"""Compilers that run at once, each for one unit after the other."""

_INCLUDE = ("-I", str(HOST_SOURCES), "-I", str(ROUTINE_SOURCES))


@record
class Unit:
    """Sources that become one object, whose functions therefore all have names of their own.

    `defined` are macros and what they stand for.
    """

    name: str
    sources: tuple[Path, ...]
    level: str
    features: tuple[str, ...] = ()
    defined: tuple[tuple[str, str], ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is compiled."""
        return (*COMPILE, self.level, *(f"-m{feature}" for feature in self.features))

    @property
    def text(self) -> str:
        """The file that is compiled."""
        return "".join(
            [
                "#define _GNU_SOURCE\n",
                *(f"#define {name} {text}\n" for name, text in self.defined),
                *(f'#include "{s.name}"\n' for s in self.sources),
            ]
        )


def runtime_units(*, targets: bool = False) -> tuple[Unit, ...]:
    """What every program needs: most of a compilation is reading headers, so few units.

    Libraries of several `targets` have a larger one instead of the usual one.
    """
    names = {path.name for path in HOST_SOURCES.glob("*.c")} - CALLING - EXCHANGING
    names -= LAUNCHING | CHECKING
    usual = _unit("session", names - TARGETS, TABLES)
    whole = replace(_unit("targets", names, TABLES), defined=(("RUTC_TARGETS", "1"),))
    return (
        _unit("launching", LAUNCHING, LOOPS),
        whole if targets else usual,
        _unit("checking", CHECKING, ROUTINE),
    )


def calling_units(
    routines: Iterable[str],
    features: Collection[str] = (),
    *,
    strings: bool = False,
    objects: bool = False,
    suffix: str = "",
) -> tuple[Unit, ...]:
    """What programs need besides that call these routines, have strings, or exchange objects.

    Routines are compiled for a processor with these features, under names with the `suffix`, of
    which the programs of other processors have others.
    """
    vectors = tuple(feature for feature in VECTORS if feature in features)
    found = [
        Unit(
            f"{name}{suffix}",
            (ROUTINE_SOURCES / f"{name}.c",),
            ROUTINE,
            vectors,
            renamed_routines([name], suffix),
        )
        for name in sorted(routines)
    ]
    exchanging = (_unit("exchanging", EXCHANGING, ROUTINE),) if objects else ()
    calling = (_unit("calling", CALLING, LOOPS), *found) if found or strings else ()
    return (*calling, *exchanging)


def renamed_routines(routines: Iterable[str], suffix: str) -> tuple[tuple[str, str], ...]:
    """The macros that give routines names with a suffix; none without."""
    names = [f"rutc_routine_{routine}" for routine in routines] if suffix else []
    return tuple((name, f"{name}{suffix}") for name in names)


def suffixes(programs: Iterable[Collection[str]]) -> tuple[str, ...]:
    """What the names of routines end with in each of several programs, given their features.

    Programs share the routines that are compiled in the same way.
    """
    ways = [tuple(feature in features for feature in VECTORS) for features in programs]
    return tuple(f"_{first}" if (first := ways.index(way)) else "" for way in ways)


def _unit(name: str, sources: Iterable[str], level: str) -> Unit:
    return Unit(name, tuple(HOST_SOURCES / source for source in sorted(sources)), level)


class HostRuntime:
    """The objects of the host runtime's sources, from the cache where possible.

    Entering starts compilers for what every program needs; `objects` waits for them.

        with HostRuntime(toolchain) as host:
            ...                                 # meanwhile
            host.begin(calling_units(["topk"]))
            ...
            host.objects(calling_units(["topk"]))
    """

    def __init__(self, toolchain: Toolchain, *, targets: bool = False) -> None:
        """Take the compiler to use; `targets`: for a library of several."""
        self.toolchain = toolchain
        self.targets = targets
        self._folder: Workplace | None = None
        self._running: dict[Unit, Running] = {}
        self._known: dict[Unit, bytes] = {}

    def __enter__(self) -> Self:
        try:
            sweep(temporary_folder())
            self.begin(runtime_units(targets=self.targets))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the compilers and removes what they made."""
        with uninterrupted():
            for running in self._running.values():
                running.stop()
            if self._folder is not None:
                self._folder.close()

    def begin(self, units: Iterable[Unit]) -> None:
        """Starts to compile units, but for those that are there or have begun.

        Raises:
            UserError: there is no folder where that could be done.
        """
        missing = []
        for unit in units:
            if unit in self._known or unit in self._running:
                continue
            found = cache.lookup(self._key(unit))
            if found is None or not is_object(found):
                missing.append(unit)
            else:
                self._known[unit] = found
        if not missing:
            return
        with uninterrupted():
            if self._folder is None:
                self._folder = Workplace().open()
            folder = self._folder.path
            try:
                for first in range(min(CHAINS, len(missing))):
                    chain = missing[first::CHAINS]
                    commands = [self._command(unit, folder) for unit in chain]
                    running = self.toolchain.begin(commands, folder)
                    self._running |= dict.fromkeys(chain, running)
            except OSError as error:
                raise UserError(
                    f"cannot compile in {folder.parent}: {error.strerror or error}. "
                    "Make room there, or set TMPDIR to another folder"
                ) from error

    def objects(self, calling: Iterable[Unit] = ()) -> list[bytes]:
        """Returns the objects of the runtime itself, and those that calls need.

        Raises:
            InternalError: the compiler fails.
        """
        wanted = [*runtime_units(targets=self.targets), *calling]
        self.begin(wanted)
        for unit in wanted:
            if unit not in self._known:
                self._known[unit] = self._finished(unit)
        return [self._known[unit] for unit in wanted]

    def _command(self, unit: Unit, folder: Path) -> list[str]:
        """How to compile copies of sources in a folder: no path of this machine is kept."""
        # Sources of two units may have one name.
        place = folder / unit.name
        place.mkdir(exist_ok=True)
        for source in unit.sources:
            (place / source.name).write_bytes(source.read_bytes())
        main = f"{unit.name}/unit_{unit.name}.c"
        (folder / main).write_text(unit.text)
        return ["-c", *unit.flags, *_INCLUDE, main, "-o", f"{unit.name}.o"]

    def _finished(self, unit: Unit) -> bytes:
        assert self._folder is not None
        self._running[unit].wait()
        made = (self._folder.path / f"{unit.name}.o").read_bytes()
        cache.store(self._key(unit), made)
        return made

    def _key(self, unit: Unit) -> str:
        """The key of a unit's object in the cache."""
        sources = [part for s in unit.sources for part in (s.name, s.read_bytes())]
        parts = (self.toolchain.identity, *_headers(), *unit.flags, unit.text, *sources)
        return cache.key_of("host", parts)


def host_runtime_for(target: str) -> HostRuntime:
    """Returns the host runtime for what `--target` means, one target or several.

    Raises:
        UserError: there is no such target, or no compiler for it.
    """
    if target == "native":
        return HostRuntime(find_toolchain(platform.machine()))
    # What is imported for the native target would delay the compilers, which begin first.
    from rutc.emit.targets import targets_named

    found = targets_named(target)
    return HostRuntime(find_toolchain(found[0].machine.architecture), targets=len(found) > 1)


@functools.cache
def _headers() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(HOST_SOURCES.glob("**/*.h")))
