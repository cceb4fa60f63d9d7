"""Kernels of single operators, layers and models, each under several schedules, and their cycles.

A point is a kernel under a schedule. Kernels that are equal up to names are one. Each is timed in
this process on one thread, operands as near as they stay from one run to the next, in turns with
the default schedule of its kernel. What counts is the time of the thread, in cycles of the clock
that is measured beside the default one.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import thread_time_ns

from benchmarks.kernel_source import BUILDERS, NARROW, in_parts, kernels
from benchmarks.strided import STRIDED
from benchmarks.timer import ReferenceKernel, Timer
from rutc.driver.parts.compile_job import with_schedule
from rutc.errors import InternalError
from rutc.tensor_ir.indices.affine import typical
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces, usual

POINTS, POINTS_OF_MODELS = 8, 5
"""Schedules that are drawn of the spaces of a kernel, beside what decisions weigh."""
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
    before: Kernel
    """The kernel before its schedule."""
    constants: frozenset[str]


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
                facts = source, name, digest, template, number, said
                yield Point(*facts, done.kernel, kernel, constants)


def _choices(
    source: str, kernel: Kernel, constants: frozenset[str], machine: Machine, seed: str
) -> list[tuple[str, Choice]]:
    """Returns a kernel's default schedule, what is weighed against it, and some that are drawn.

    Each with its template.
    """
    default = choose(kernel, machine, constants)
    found = spaces(kernel, machine, constants)
    liked = usual(found)
    own = "none" if liked is None else liked[0].template.name
    chosen = [(own, default)]
    for space in found:
        weighed = () if space.default is None else (space.default.point, *space.default.rivals)
        for point in weighed:
            with suppress(NotApplicable):
                choice = space.choice(point)
                if choice not in (c for _, c in chosen):
                    chosen.append((space.template.name, choice))
    rng = Random(seed)
    single = in_parts(source)[0] in {*BUILDERS, *NARROW, *STRIDED}
    for number in range(POINTS if single else POINTS_OF_MODELS):
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


class Cycles:
    """Times points one after the other: those of a kernel take turns with its first one."""

    def __init__(self, machine: Machine) -> None:
        """For code of a machine, on one thread of this process."""
        self._timer = Timer(machine)
        self._reference: ReferenceKernel | None = None
        self._digest = ""

    def of(self, point: Point) -> float | None:
        """Returns the cycles of a point with near operands; None of one that takes too few.

        Raises:
            RutcError: it does not compile.
        """
        if point.digest != self._digest:
            self._digest, self._reference = point.digest, None
        found = self._timer.timed(point.kernel, self._reference, ("near",)).near
        assert found is not None
        if self._reference is None:
            self._reference = ReferenceKernel(point.kernel, found.cycles, found.cycles)
        return None if found.ns < FEWEST_NS else found.cycles
