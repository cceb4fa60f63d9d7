"""`python -m benchmarks.choices`: schedules that estimates choose of many, beside default ones.

Of each kernel of single operators and layers that took no part in the fit, points of its spaces
are drawn, some near the default one. The one of the least estimate is timed, and
the default one, once after the other. Results go to benchmarks/results/choices.json; docs/cost.md
shows them once `python -m benchmarks.fit` writes it anew.
"""

from contextlib import suppress
from dataclasses import asdict
from random import Random

from benchmarks.cost_page import CHOICES as RESULTS
from benchmarks.fit import HELD_OUT
from benchmarks.kernel_source import BUILDERS, kernels
from benchmarks.kernel_times import FEWEST_NS, digest_of
from benchmarks.machine import provenance
from benchmarks.store import Entry, save
from benchmarks.timer import ReferenceKernel, Timer
from rutc.driver.parts.compile_job import with_schedule
from rutc.emit.targets import native_target
from rutc.errors import InternalError
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces

DRAWN, NEAR = 60, 40
"""Points that are drawn from all of the spaces, and from the neighbours of their defaults."""


def candidates(
    kernel: Kernel, machine: Machine, constants: frozenset[str], seed: str
) -> list[Choice]:
    """Returns the default schedule, and others; none of a kernel without a space."""
    found = () if kernel.symbols else spaces(kernel, machine, constants)
    rng = Random(f"{seed} choices")
    drawn = []
    for space in found:
        drawn += [space.draw(rng) for _ in range(DRAWN // len(found))]
        if space.default is not None:
            point = space.default.point
            drawn += [space.near(point, rng) for _ in range(NEAR // len(found))]
    if not drawn:
        return []
    return [choose(kernel, machine, constants), *(x[1] for x in drawn if x is not None)]


def main() -> None:
    """Measures all kernels."""
    machine = native_target().machine
    timer, entries, seen = Timer(machine), list[Entry](), set[str]()
    for source in BUILDERS:
        for name, kernel, constants in kernels(source, machine):
            digest = digest_of(kernel, constants)
            if digest in seen or int(digest, 16) % HELD_OUT:
                continue
            seen.add(digest)
            scheduled: list[Kernel] = []
            for choice in candidates(kernel, machine, constants, digest):
                with suppress(InternalError):
                    scheduled.append(with_schedule(kernel, choice).kernel)
            if not scheduled:
                continue
            cycles = [estimate(summarise(k, machine), machine).cycles for k in scheduled]
            best = min(range(len(cycles)), key=lambda i: cycles[i])
            first = timer.timed(scheduled[0], None, ("near",)).near
            if first is None or first.ns < FEWEST_NS:
                continue
            usual = liked = first.cycles
            if best:
                beside = ReferenceKernel(scheduled[0], usual, usual)
                other = timer.timed(scheduled[best], beside, ("near",)).near
                assert other is not None
                liked = other.cycles
            entries.append(
                {
                    "kernel": f"{source}: {name}",
                    "default_cycles": round(usual),
                    "cycles": round(liked),
                    "estimated_gain": round(cycles[0] / cycles[best] - 1, 3),
                    "gain": round(usual / liked - 1, 3),
                    **asdict(provenance()),
                }
            )
            print(entries[-1]["kernel"], entries[-1]["estimated_gain"], entries[-1]["gain"])
    save(RESULTS, entries)


if __name__ == "__main__":
    main()
