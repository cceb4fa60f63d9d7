"""What this machine's processor does in a cycle: measured once, and kept in the user's cache.

Rates are rounded to 1 or 1.5 times a power of two: two measurements then agree, and so does the
code that is chosen by them. What decides between two of these lies beside whole numbers of cycles
(`coarse`), as processors mostly have them. What disturbs a measurement only slows it down, so the
fastest of several short runs counts. What a core shares with others depends on what they do: of
the last cache only the nearest octave is told (of the kernels that were timed, it brings 24 bytes a
cycle to those of Zen 4 and 12 to those of Emerald Rapids), of memory whether it brings more to a
core that asks ahead, and the time until another thread runs is not measured.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import log2
from pathlib import Path
from time import perf_counter_ns

from rutc.base.files import write_atomically
from rutc.emit.cache import FILE_MODE, made
from rutc.emit.linking.toolchain import cache_directory, find_toolchain
from rutc.errors import InternalError, UserError
from rutc.tensor_ir.machine import Machine

SOURCE = Path(__file__).with_name("rates.c")
RUNS, WINDOWS = 5, 9
"""The fastest of so many runs counts, and the median of so many such: the clock may change."""
ROUNDS = range(12, 40)
"""All is measured in rounds, as whoever shares the core may be busy for a while: the fastest round
counts, once another one is about as fast and there were enough."""
CLOSE = 1.08
"""Rounds this far apart are about as fast."""
COUNT = 48 * 1000
"""Operations of a run: a multiple of what each loop does in one iteration."""
UPWARD = 0.96
"""By what the middle between two rounded rates, as their ratios go, is moved: it would be at 4.9,
6.9, 9.8, 13.9 and 19.6 cycles, so that operations that take 5, 7, 10, 14 or 20 were rounded by
chance. Here no whole number up to 12 is nearer than 4 % to it."""
BEYOND = 4
"""Times the second cache: so much is read in order that hardly any of it is still there."""
FAR_BYTES = 2 << 20
"""Read from memory with hints and without."""
RATES = (
    "fma_per_cycle",
    "half_fma_per_cycle",
    "bf16_pairs_per_cycle",
    "loads_per_cycle",
    "divide_cycles",
    "gather_cycles",
    "fma_latency",
    "l2_bytes_per_cycle",
    "l3_bytes_per_cycle",
    "hint_gain",
)
"""The fields of a machine that are measured."""


def with_measured_rates(machine: Machine, *, again: bool = False) -> Machine:
    """Returns the machine, which is the one at hand, at its measured rates.

    They are read from the user's cache, and measured (a second, three where others use the core)
    where they are not there or `again` is set. Where nothing can be measured, as without a C
    compiler, the machine stays as it is.
    """
    place = cache_directory() / "machines" / f"{_key(machine)}.json"
    found = None if again else _known(place)
    if found is None:
        with _alone(place.parent):
            # Another process may have measured meanwhile.
            found = None if again else _known(place)
            if found is None:
                try:
                    found = measure(machine)
                except (OSError, UserError, InternalError):
                    return machine
                with suppress(OSError, UserError):
                    if made(place.parent):
                        write_atomically(place, json.dumps(found, indent=2).encode(), FILE_MODE)
    return replace(machine, **found)  # type: ignore[arg-type]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lets no other process measure meanwhile, where a folder can be locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            made(folder)
            lock = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _key(machine: Machine) -> str:
    """What tells measurements apart: the processor, the threads it may have, and the loops."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line for line in lines if line.startswith(("model", "CPU part", "cpu family"))]
        parts = [str(machine), *sorted(set(names)), str(len(os.sched_getaffinity(0)))]
        return hashlib.sha256("\n".join([*parts, SOURCE.read_text()]).encode()).hexdigest()[:24]
    return platform.machine()


def _known(place: Path) -> dict[str, float] | None:
    """What was measured before; None where that is not there, or no such thing."""
    try:
        found = json.loads(place.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or set(found) != set(RATES):
        return None
    fine = all(isinstance(x, int | float) and 0 < x < 1e9 for x in found.values())
    return found if fine else None


def measure(machine: Machine) -> dict[str, float]:
    """Measures this machine's rates, with registers of the machine's width.

    Returns:
        Field of `Machine` -> value, each of `RATES`.

    Raises:
        UserError: there is no C compiler.
        InternalError: it fails.
        OSError: the loops cannot be written or loaded.
    """
    bytes_ = machine.vector_bits // 8
    with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
        flags = ["-O2", "-march=native", "-ffp-contract=fast", f"-DBYTES={bytes_}"]
        flags += ["-shared", "-fPIC", str(SOURCE), "-o", "rates.so"]
        find_toolchain().run(flags, Path(folder))
        loops = ctypes.CDLL(str(Path(folder) / "rates.so"))

    def least(loop: Callable[..., object], *arguments: object) -> float:
        found = []
        for _ in range(RUNS):
            start = perf_counter_ns()
            loop(*arguments)
            found.append(perf_counter_ns() - start)
        return float(min(found))

    def count(n: int) -> ctypes.c_long:
        return ctypes.c_long(n)

    # A quarter of the second cache: pages that lie anywhere in it do not push each other out.
    near = machine.l2 // 4 // (8 * bytes_) * 8 * bytes_
    # Pages of a map begin where vectors may.
    with mmap.mmap(-1, near) as memory:
        memory[:] = bytes(near)
        view = (ctypes.c_char * near).from_buffer(memory)
        array = ctypes.c_void_p(ctypes.addressof(view))

        def all_cycles(name: str, *arguments: object) -> float:
            """Those of a run of a loop."""
            run = partial(getattr(loops, name), *arguments)
            return in_cycles(
                lambda: least(loops.additions, count(COUNT)) / COUNT, partial(least, run)
            )

        def cycles(name: str, *arguments: object) -> float:
            """Those of one operation of a loop."""
            return all_cycles(name, *arguments, count(COUNT)) / COUNT

        passes = 8
        rounds: defaultdict[str, list[float]] = defaultdict(list)
        for number in ROUNDS:
            for _ in range(number if number == ROUNDS.start else 1):
                rounds["fma_per_cycle"].append(cycles("fmas"))
                rounds["half_fma_per_cycle"].append(cycles("half_fmas"))
                rounds["bf16_pairs_per_cycle"].append(cycles("bf16_pairs"))
                rounds["loads_per_cycle"].append(cycles("loads", array))
                rounds["divide_cycles"].append(cycles("divisions"))
                rounds["gather_cycles"].append(cycles("gathers", array))
                rounds["fma_latency"].append(cycles("chained_fmas"))
                read = all_cycles("reads", array, count(near // bytes_), count(passes))
                rounds["l2_bytes_per_cycle"].append(read / (near * passes))
            if all(_agree(own) for own in rounds.values()):
                break
        del view
    fastest = {name: min(own) for name, own in rounds.items()}
    found = {n: 1 / x if n.endswith("per_cycle") else x for n, x in fastest.items()}
    rounded = {name: coarse(rate) for name, rate in found.items()}
    gain = max(coarse(_hint_gain(loops, machine)), 1.0)
    last = octave(_last_cache_rate(loops, machine), Machine.l3_bytes_per_cycle)
    latency = round(rounded["fma_latency"])
    return {**rounded, "fma_latency": latency, "l3_bytes_per_cycle": last, "hint_gain": gain}


def _last_cache_rate(loops: ctypes.CDLL, machine: Machine) -> float:
    """The bytes a cycle that come from behind the second cache, in order."""
    bytes_, vector = BEYOND * machine.l2, machine.vector_bits // 8
    with _memory(bytes_) as array:
        vectors, cycle, read = ctypes.c_long(bytes_ // vector // 8 * 8), float("inf"), float("inf")
        for _ in range(ROUNDS.start):
            start = perf_counter_ns()
            loops.additions(ctypes.c_long(COUNT))
            between = perf_counter_ns()
            loops.reads(array, vectors, ctypes.c_long(1))
            cycle = min(cycle, (between - start) / COUNT)
            read = min(read, perf_counter_ns() - between)
    return bytes_ / (read / cycle)


@contextmanager
def _memory(bytes_: int) -> Iterator[ctypes.c_void_p]:
    """Where so many bytes are, in huge pages if the system has them, as values and weights have.

    The search for pages would take longer than to read them.
    """
    with mmap.mmap(-1, bytes_) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:] = bytes(len(memory))
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        try:
            yield ctypes.c_void_p(ctypes.addressof(view))
        finally:
            del view


def _hint_gain(loops: ctypes.CDLL, machine: Machine) -> float:
    """How many times as much memory brings to a loop that asks for lines a page ahead.

    1 where the loop's instructions are missing.
    """
    if not loops.converts():
        return 1.0
    with _memory(FAR_BYTES + machine.page_bytes) as array:
        bytes_ = ctypes.c_long(FAR_BYTES)
        least = dict.fromkeys((0, machine.page_bytes), float("inf"))
        for _ in range(ROUNDS.start):
            for ahead, before in least.items():
                loops.forget(array, bytes_)
                start = perf_counter_ns()
                loops.halves(array, bytes_, ctypes.c_long(ahead))
                least[ahead] = min(before, perf_counter_ns() - start)
    return least[0] / least[machine.page_bytes]


def in_cycles(cycle_ns: Callable[[], float], loop_ns: Callable[[], float]) -> float:
    """The cycles of a loop: the median of `WINDOWS` times of it.

    A cycle is measured before each and behind it, and the shorter one counts: what disturbs only
    one of them must not make the loop seem faster than it is.
    """
    found, before = [], cycle_ns()
    for _ in range(WINDOWS):
        took, behind = loop_ns(), cycle_ns()
        found.append(took / min(before, behind))
        before = behind
    return sorted(found)[len(found) // 2]


def _agree(rounds: list[float]) -> bool:
    """Whether the two least are about the same."""
    least, next_, *_ = sorted(rounds)
    return next_ <= CLOSE * least


def coarse(rate: float) -> float:
    """The nearest of 1, 1.5, 2, 3, 4, 6, 8 and so on, and of such parts of one, but for `UPWARD`.

    `coarse(1.97)` -> 2.0, `coarse(0.71)` -> 0.75
    """
    power = 2.0 ** int(log2(rate) // 1)
    return min((power, 1.5 * power, 2 * power), key=lambda x: abs(log2(rate / UPWARD / x)))


def octave(rate: float, usual: float) -> float:
    """The nearest of the usual rate, its double, its half and so on.

    `octave(9.5, 24)` -> 12.0
    """
    return float(usual * 2.0 ** round(log2(rate / UPWARD / usual)))
