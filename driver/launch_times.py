"""Artifacts of plans, and what the functions of each take in a run when they take turns."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from rutc.base.record import record
from rutc.driver.build import Alternative, Builder
from rutc.driver.compile_job import Chooser
from rutc.emit.library import build_library
from rutc.graph_opt.plan import Plan
from rutc.runtime import InferenceSession
from rutc.tensor_ir.machine import Machine
from rutc.verify.compare import Value
from rutc.verify.session_values import session_values

FEWEST_RUNS = 6
"""Of each artifact; the first is not counted."""


@record
class Artifact:
    """A library, and the function of each of its launches."""

    library: Path
    symbols: Mapping[str, str]

    def us_of(self, launches: Iterable[str], us: Mapping[str, float]) -> float:
        """Returns what the functions of these launches take, of what all take."""
        return sum(us.get(symbol, 0.0) for symbol in {self.symbols[name] for name in launches})


def written(
    plan: Plan,
    machine: Machine,
    path: Path,
    *,
    alternatives: tuple[Alternative, ...] = (),
    chooser: Chooser | None = None,
    keep_subnormals: bool = False,
) -> Artifact:
    """Returns the artifact of a plan, which is written to a path."""
    jobs = len(os.sched_getaffinity(0))
    builder = Builder(plan, machine, "model", jobs, keep_subnormals)
    builder.alternatives, builder.chooser = alternatives, chooser
    built = builder.build()
    build_library(built.program, built.objects, path, {})
    return Artifact(path, {f.name: f.symbol for f in built.facts})


def in_turns(
    artifacts: Sequence[Artifact], seconds: float, inputs: Mapping[str, Value] | None = None
) -> list[dict[str, float]]:
    """Returns the median microseconds of each artifact's functions, run in turns on one thread.

    Each runs for so many seconds, about. Inputs that are not given are generated.
    """
    times: list[defaultdict[str, list[float]]] = [defaultdict(list) for _ in artifacts]
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(InferenceSession(a.library, threads=1, profile=True))
            for a in artifacts
        ]
        given = session_values(sessions[0], ()) if inputs is None else inputs
        before: list[Mapping[str, float]] = [{} for _ in artifacts]
        began, runs = perf_counter(), 0
        while runs < FEWEST_RUNS or perf_counter() - began < seconds * len(artifacts):
            for number, session in enumerate(sessions):
                session.run(None, given)
                now: Counter[str] = Counter()
                for e in session.profile():
                    now[e.name] += e.total_us  # type: ignore[assignment]
                if runs:
                    for name, total in now.items():
                        times[number][name].append(total - before[number].get(name, 0.0))
                before[number] = dict(now)
            runs += 1
    return [{name: median(us) for name, us in own.items()} for own in times]
