"""Artifacts of plans, and what the functions of each take in a run when they take turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, process_time
from typing import Self

import numpy as np

from rutc.base.record import record
from rutc.driver.parts.build import Builder, PlanVersion
from rutc.driver.parts.compile_job import Chooser
from rutc.driver.parts.told_of_inputs import told_of_inputs
from rutc.emit.linking.library import build_library
from rutc.errors import InternalError
from rutc.graph_opt.plan import Plan
from rutc.runtime import ModelError
from rutc.tensor_ir.machine import Machine
from rutc.verify.bench import run_in_place
from rutc.verify.feeding.session_values import refusal, session_values
from rutc.verify.feeding.whole import WholeSession
from rutc.verify.interleaved import Run
from rutc.verify.judging.compare import Value

FEWEST_RUNS = 5
"""Of each artifact."""
LEAST_US = 1e-3
"""What is divided by: a step may take no longer than to ask for the time."""


@record
class TimedLibrary:
    """A library, and the function of each of its launches."""

    library: Path
    symbols: Mapping[str, str]
    launches: tuple[str, ...]
    """The functions of all launches, in the order in which the plans have them."""


def written(
    plan: Plan,
    machine: Machine,
    path: Path,
    *,
    earlier: tuple[PlanVersion, ...] = (),
    chooser: Chooser | None = None,
    keep_subnormals: bool = False,
) -> TimedLibrary:
    """Returns the artifact of a plan, which is written to a path.

    Inputs that are drawn for it are what the model's own artifact would be given.
    """
    jobs = len(os.sched_getaffinity(0))
    builder = Builder(plan, machine, "model", jobs, keep_subnormals)
    builder.earlier, builder.chooser = earlier, chooser
    built = builder.build()
    told = told_of_inputs(plan.graph, plan.graph)
    build_library(built.program, built.objects, path, told)
    launches = tuple(f.symbol for f in built.facts)
    return TimedLibrary(path, {f.name: f.symbol for f in built.facts}, launches)


class Profiled:
    """A session that tells what each step of a run takes, on one thread or several.

    States are inputs: each run begins with those that it is given, however many ran before.
    """

    def __init__(self, library: Path, threads: int = 1) -> None:
        """Open it on so many threads; it wants to be closed."""
        self.session = WholeSession(library, threads=threads, profile=True)
        self.threads = threads
        self._given: Mapping[str, Value] | None = None
        self._run: Run | None = None
        self._before = np.zeros((0, 2))
        self.names: tuple[str, ...] = ()
        """The functions of all steps; known after a run."""
        self.calls: np.ndarray = np.zeros(0)
        """How often each step is done in a run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.session.close()

    def run(self, given: Mapping[str, Value]) -> np.ndarray:
        """Returns the microseconds of each step {step} in one run.

        Of one thread it is the processor's time, of several that which passes.
        All that it reads and writes was there in a run before, which is not counted.
        """
        if self._run is None or given is not self._given:
            self._run, self._given = run_in_place(self.session, given), given
            self._before = self._so_far()
        self._run()
        now = self._so_far()
        self.calls = now[:, 0] - self._before[:, 0]
        us: np.ndarray = now[:, 1] - self._before[:, 1]
        self._before = now
        return us

    def _so_far(self) -> np.ndarray:
        """The calls and microseconds of each step {step, 2} since the session was opened."""
        entries = self.session.profile()
        self.names = tuple(e.name for e in entries)
        return np.array([[e.calls, e.total_us] for e in entries]).reshape(-1, 2)

    def steps_of(self, launches: Sequence[str]) -> list[int]:
        """Returns the number of the step that does each launch, in the order of the plans.

        Raises:
            InternalError: they are no launches of this library.
        """
        functions = frozenset(launches)
        steps = [number for number, name in enumerate(self.names) if name in functions]
        if [self.names[number] for number in steps] != list(launches):
            raise InternalError("the steps of a library are not the launches of its plan")
        return steps


def values_to_time(profiled: Profiled, sizes: Mapping[str, int] | None) -> Mapping[str, Value]:
    """Returns inputs of common sizes, or of these, of which a run has been done.

    Raises:
        UserError: the model refuses them.
    """
    given = session_values(profiled.session, (), dims=sizes)
    try:
        profiled.run(given)
    except ModelError as error:
        raise refusal(profiled.session, sizes or {}, error) from error
    return given


Enough = Callable[[Sequence[np.ndarray]], bool]
"""Whether runs so far, microseconds of each library's steps {run, step}, tell what is asked."""


def run_in_turns(
    profiled: Sequence[Profiled],
    given: Mapping[str, Value],
    seconds: float,
    enough: Enough = lambda us: False,
) -> list[np.ndarray]:
    """Returns the microseconds of each one's steps {run, step}, run in turns.

    Each runs for so many seconds of the processor's time, about: as often where others use it, too.
    On several threads they are seconds that pass: a thread takes time of a processor, too, while it
    waits for the others. Or until that is `enough`, which is asked each time that runs are twice as
    many; the first runs are not counted.
    """
    found: list[list[np.ndarray]] = [[] for _ in profiled]
    for p in profiled:
        p.run(given)
    clock = monotonic if any(p.threads > 1 for p in profiled) else process_time
    began, asked = clock(), FEWEST_RUNS
    while len(found[0]) < FEWEST_RUNS or clock() - began < seconds * len(profiled):
        for own, p in zip(found, profiled, strict=True):
            own.append(p.run(given))
        if len(found[0]) == asked:
            if enough([np.array(own) for own in found]):
                break
            asked *= 2
    return [np.array(own) for own in found]
