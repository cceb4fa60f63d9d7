"""A model, and schedules of its kernels that are put on record without measuring them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rutc.driver.plans.planning import planned
from rutc.driver.timing.model_bench import Planned, Subject
from rutc.driver.tuning.tuning_records import BELIEVED, origin_of, task_of
from rutc.emit.targets import native_target
from rutc.graph_opt import versions
from rutc.importer import import_model
from rutc.tensor_ir.steps import print_schedule
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from rutc.tuner.database.database import Database
from rutc.tuner.database.trial import Trial, digest
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.search import text_of

MACHINE = native_target().machine


def subject_of(model: Path, node: str) -> Subject:
    """The kernel that computes a node."""
    plan, others = planned(versions(import_model(model), MACHINE), MACHINE)
    launches = Planned(plan, others, MACHINE).launches()
    return next(s for s, own in launches.items() if any(node in p.origin for p in own))


def put_on_record(
    path: Path,
    subject: Subject,
    ns: Sequence[tuple[Choice, float]],
    note: str = "",
    *,
    believed: bool = True,
) -> None:
    """Puts schedules on record, with the times that they take; the first is the default one.

    Whole runs have confirmed the others, if they are `believed`.
    """
    usual = digest(text_of(choose(subject.kernel, subject.machine, subject.constants)))
    rows = []
    for number, (choice, each) in enumerate(ns):
        beside = {"near": 200.0, "far": 200.0} if number else None
        said = {"place": [0], "default": usual, "beside": beside, BELIEVED: believed and number > 0}
        row = Trial(
            task_of(subject),
            origin_of(MACHINE),
            print_schedule(choice.schedule),
            "tiled",
            median_ns=each,
            low_ns=each,
            high_ns=each,
            reference_ns=0.5,
            error=note if number else "",
            summary=json.dumps(said),
        )
        rows += [row, replace(row, state="far")]
    with Database.open(path) as db:
        db.add(rows, replace=True)


def usual_of(t: Trial) -> str:
    return str(json.loads(t.summary)["default"])


def another(subject: Subject) -> Choice:
    """A schedule that is not the default one."""
    return others(subject, 1)[0]


def others(subject: Subject, count: int) -> list[Choice]:
    """So many schedules that are not the default one."""
    usual = choose(subject.kernel, subject.machine, subject.constants)
    found = [usual]
    rng = Random(0)
    for space in spaces(subject.kernel, subject.machine, subject.constants, fixed=("parallel",)):
        for _ in range(20):
            drawn = space.draw(rng)
            if drawn is not None and drawn[1] not in found:
                found.append(drawn[1])
            if len(found) > count:
                return found[1:]
    raise AssertionError("there are no others")
