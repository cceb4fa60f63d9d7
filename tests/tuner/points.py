"""`python -m tests.tuner.points`: draws schedules of random kernels, and checks what they compute.

    python -m tests.tuner.points            10,000 points of 200 kernels for three targets
    python -m tests.tuner.points --count 1000 --seed 7 --template matrix --target amx

The kernels are random groups, and kinds that those seldom are (`tests.tuner.subjects`). Points of
all spaces of a kernel come in turn: a random one, then one near it. Where this processor can, every
second one runs as machine code, its tasks in up to three parts; the others of small kernels are
interpreted, and of larger ones run as well. What computes something else, or breaks, is shown.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import track

from rutc.tensor_ir.machine import Machine
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import TEMPLATES, spaces
from rutc.tuner.space import Space
from tests.machines import runnable
from tests.tuner.subjects import MACHINES, SMALL, TEXTS, Subject, grouped, written

GROUPED = 0.4
"""The share of random groups among the kernels."""
TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64")


def main() -> int:
    """Does what the command line says; 1 where a point computes something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.tuner.points", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=10_000, help="points")
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=MACHINES, action="append")
    parser.add_argument("--template", choices=[t.name for t in TEMPLATES])
    chosen = parser.parse_args()
    console = Console(stderr=True)
    targets = chosen.target or list(TARGETS)
    made: Counter[str] = Counter()
    failed = 0
    subjects = list(_subjects(chosen.kernels, chosen.seed))
    pairs = list(_pairs(subjects, [MACHINES[t] for t in targets], chosen.template))
    for number, (subject, machine, own) in enumerate(track(pairs, console=console, transient=True)):
        rng = Random(f"{chosen.seed} {number}")
        wanted = chosen.count * (number + 1) // len(pairs) - chosen.count * number // len(pairs)
        for space, (point, choice) in _points(own, wanted, rng):
            parts = _way(subject, machine, rng)
            name = f"{space.template.name} on {machine.name}"
            made[f"{name}, {'as code' if parts else 'interpreted'}"] += 1
            try:
                subject.run(choice, machine, parts)
            except Exception as error:
                failed += 1
                console.print(f"{name}: {point}: {type(error).__name__}: {error}", markup=False)
                console.print(
                    f"{subject.kernel}", *map(str, choice.schedule), sep="\n", markup=False
                )
    for name, times in sorted(made.items()):
        print(f"{times:6} {name}")
    total = sum(made.values())
    print(f"{total} points of {len(subjects)} kernels, {failed} wrong, seed {chosen.seed}")
    return 1 if failed else 0


def _subjects(count: int, seed: int) -> Iterator[Subject]:
    """So many kernels of all kinds."""
    groups = round(count * GROUPED)
    yield from grouped(groups, seed)
    rng = Random(seed)
    for number in range(count - groups):
        yield written(list(TEXTS)[number % len(TEXTS)], rng)


def _pairs(
    subjects: Sequence[Subject], machines: Sequence[Machine], template: str | None
) -> Iterator[tuple[Subject, Machine, tuple[Space[Any], ...]]]:
    """The kernels for each machine that have spaces, of a template or of any."""
    for subject in subjects:
        for machine in machines:
            own = spaces(subject.kernel, machine, subject.free)
            own = tuple(s for s in own if template in (None, s.template.name))
            if own:
                yield subject, machine, own


def _points(
    own: tuple[Space[Any], ...], wanted: int, rng: Random
) -> Iterator[tuple[Space[Any], tuple[object, Choice]]]:
    """So many points of the spaces in turn: one that is drawn, then one near it."""
    last: dict[int, object] = {}
    for number in range(wanted):
        place = number % len(own)
        space = own[place]
        near = last.pop(place, None)
        found = None if near is None else space.near(near, rng)
        if found is None:
            found = space.draw(rng)
            last |= {} if found is None else {place: found[0]}
        if found is not None:
            yield space, found


def _way(subject: Subject, machine: Machine, rng: Random) -> int | None:
    """In how many parts to run a kernel's code; None to interpret it."""
    if not runnable(machine):
        return None
    if subject.iterations <= SMALL and rng.random() < 0.5:
        return None
    return rng.randint(1, 3)


if __name__ == "__main__":
    sys.exit(main())
