"""Kernels of single operators, layers and models, each under several schedules, and their cycles.

A point is a kernel under a schedule. Kernels that are equal up to names are one. Each is timed in
this process on one thread, with all operands as near as they stay from one run to the next. What
is counted is the thread's own time, in cycles of the clock that is measured beside it.
"""

import ctypes
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import thread_time_ns

import numpy as np

from benchmarks.kernel_source import BUILDERS, arguments_of, first_line, kernels
from rutc.driver.compile_job import with_schedule
from rutc.emit.jit import Code, KernelCode
from rutc.errors import InternalError
from rutc.models.zoo import zoo
from rutc.tensor_ir.affine import typical
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.ranges import common_sizes
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces

POINTS, POINTS_OF_MODELS = 8, 5
"""Schedules that are drawn of the spaces of a kernel, beside the default."""
MOST_KERNELS = 45
"""Kernels of one model; of more, some are taken."""
MOST_BYTES = 1 << 28
"""Kernels with larger arguments are left out."""
SAMPLE_NS = 100_000
"""One sample of a time has as many runs as take so long, or one."""
TRIAL_NS = 5_000_000
"""Samples are taken for so long, of which the least counts; three at least."""
FEWEST_NS = 500
"""Kernels that take less are not told from the call."""
PAIRS = 10_000
"""Multiplications and exclusive-ors, each waiting for the one before: they tell the clock."""
PAIR_CYCLES = 4
CHAIN = """
define void @rutc_kernel(ptr %p, ptr %q, i64 %a, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %x = phi i64 [ %n, %entry ], [ %z, %loop ]
  %y = mul i64 %x, %a
  %z = xor i64 %y, %a
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  store i64 %z, ptr %p
  ret void
}
"""
"""What tells the clock: a chain of pairs that no compiler makes shorter."""
NOTHING = "define void @rutc_kernel(ptr %p, ptr %q, i64 %a, i64 %n) { ret void }"
"""What tells how long a call takes."""


@dataclass(frozen=True)
class Point:
    """A kernel under a schedule: the default one (number 0), or another of its space."""

    source: str
    name: str
    digest: str
    template: str
    number: int
    schedule: str
    kernel: Kernel


def sources() -> list[str]:
    """Returns the names of the models whose kernels are measured: those that can be had."""
    return [*BUILDERS, *(m.name for m in zoo())]


def points(source: str, machine: Machine, seen: set[str]) -> Iterator[Point]:
    """Yields the points of some of a model's kernels that are not in `seen`, and puts all there."""
    found: dict[str, tuple[str, Kernel, frozenset[str]]] = {}
    for name, kernel, constants in kernels(source, machine):
        digest = digest_of(kernel, constants)
        if digest not in seen and bytes_of(kernel) <= MOST_BYTES:
            found.setdefault(digest, (name, kernel, constants))
    seen |= found.keys()
    taken = Random(0).sample(sorted(found), min(len(found), MOST_KERNELS))
    for digest in sorted(taken, key=list(found).index):
        name, kernel, constants = found[digest]
        chosen = _choices(source, kernel, constants, machine, digest)
        for number, (template, choice) in enumerate(chosen):
            with suppress(InternalError):
                done = with_schedule(kernel, choice)
                said = "; ".join(map(str, done.schedule))
                yield Point(source, name, digest, template, number, said, done.kernel)


def _choices(
    source: str, kernel: Kernel, constants: frozenset[str], machine: Machine, seed: str
) -> list[tuple[str, Choice]]:
    """Returns the default schedule of a kernel, and some that are drawn, with their templates."""
    default = choose(kernel, machine, constants)
    found = spaces(kernel, machine, constants)
    own = next((s.template.name for s in found if s.preferred() == default), "none")
    chosen = [(own, default)]
    rng = Random(seed)
    for number in range(POINTS if source in BUILDERS else POINTS_OF_MODELS):
        if not found or kernel.symbols:
            break
        space = found[number % len(found)]
        drawn = space.draw(rng)
        if drawn is not None and drawn[1] not in (c for _, c in chosen):
            chosen.append((space.template.name, drawn[1]))
    return chosen


def digest_of(kernel: Kernel, constants: frozenset[str]) -> str:
    """Returns what tells a kernel from others."""
    return hashlib.sha256(f"{kernel}\n{sorted(constants)}".encode()).hexdigest()[:12]


def bytes_of(kernel: Kernel) -> int:
    """Returns the bytes of a kernel's arguments at common sizes."""
    symbols = dict(kernel.symbols)
    return sum(typical(b.layout.size, symbols) * b.dtype.bytes for b in kernel.args)


class Clock:
    """What is subtracted from and divides times: a call that does nothing, and a cycle."""

    def __init__(self, machine: Machine) -> None:
        """Compile both loops."""
        words = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._codes = [Code(text, "rutc_kernel", machine) for text in (CHAIN, NOTHING)]
        self._chain, self._nothing = (
            ctypes.CFUNCTYPE(None, *words)(code.address) for code in self._codes
        )
        self._result = np.zeros(8, np.int64)
        place = self._result.ctypes.data
        self.call_ns = least_ns(lambda: self._nothing(place, place, 0, 0))

    def cycle_ns(self) -> float:
        """Returns how long a cycle takes now."""
        place = self._result.ctypes.data
        least = min(timed(lambda: self._chain(place, place, 7, PAIRS), 1) for _ in range(5))
        return (least - self.call_ns) / (PAIRS * PAIR_CYCLES)


def timed(run: Callable[[], object], runs: int) -> float:
    """Returns the thread's time of each of so many runs."""
    start = thread_time_ns()
    for _ in range(runs):
        run()
    return (thread_time_ns() - start) / runs


def least_ns(run: Callable[[], object]) -> float:
    """Returns the least time of a run."""
    run()
    once = timed(run, 1)
    runs = max(1, int(SAMPLE_NS / max(once, 100)))
    found, spent = [once] if runs == 1 else [], 0.0
    while spent < TRIAL_NS or len(found) < 3:
        found.append(timed(run, runs))
        spent += found[-1] * runs
    return min(found)


def measured(kernel: Kernel, machine: Machine, clock: Clock) -> float | None:
    """Returns the cycles of a scheduled kernel on one thread; None of one that takes too few."""
    code = KernelCode(kernel, machine)
    symbols = common_sizes(dict(kernel.symbols))
    memory = arguments_of(kernel)
    (run,) = code.runs([first_line(m) for m in memory], symbols)
    before = clock.cycle_ns()
    found = least_ns(run) - clock.call_ns
    cycle = min(before, clock.cycle_ns())
    return None if found < FEWEST_NS else found / cycle
