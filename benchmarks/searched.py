"""`python -m benchmarks.searched NAME=DATABASE...`: makes what searches measured lessons.

    python -m benchmarks.searched resnet50=resnet50.sqlite bert=bert.sqlite

Each database is one that `rutc tune` has filled with trials of one model, whose name tells its
family. Trials have all that is to be learned from: what each schedule does (its regions), and what
it took in the model, where operands lie as a run leaves them. So nothing is compiled or timed. What
comes of it lies beside the times of kernels that ran by themselves (`benchmarks.fit`), in a file
for each processor; constants are not fitted to it, for nothing tells where its operands were.
"""

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.fit import IN_MODELS, RESULTS, Timed, save
from benchmarks.machine import FEATURES
from rutc.tensor_ir.cost import Region
from rutc.tensor_ir.machine import Machine
from rutc.tuner.database.database import Database
from rutc.tuner.database.trial import Origin, Trial


def machine_of(origin: Origin) -> Machine:
    """Returns the machine that trials were made for."""
    known = {f.name for f in fields(Machine)} - {"coefficients"}
    facts: dict[str, Any] = {n: v for n, v in origin.machine.items() if n in known}
    return Machine(**{**facts, "features": frozenset(origin.features)})


def rows_of(name: str, trials: list[Trial]) -> Iterator[Timed]:
    """Yields the schedules of one kernel in a model of this name, the default one first.

    There is nothing to compare where the default schedule is not on record.
    """
    said = [(t, own) for t in trials if t.reference_ns and (own := _said(t))]
    usual = next((t for t, own in said if own.get("beside", 0) is None), None)
    if usual is None or usual.median_ns is None or usual.reference_ns is None:
        return
    task, cycles = usual.task, usual.median_ns / usual.reference_ns
    digest = hashlib.sha256(f"{task.kernel}\n{sorted(task.constants)}".encode()).hexdigest()[:12]
    # Those of plans are no schedules, and have no regions.
    ordered = sorted(said, key=lambda x: (x[0] is not usual, x[0].schedule))
    for number, (t, own) in enumerate(ordered):
        assert t.median_ns is not None
        assert t.reference_ns is not None
        # What counts is the ratio: the default schedule took turns with each.
        beside = own["beside"] or {"model": cycles}
        taken = cycles * t.median_ns / (t.reference_ns * beside["model"])
        regions = tuple(map(_region, own["regions"]))
        yield Timed(name, "", digest, task.target, t.template, number, t.schedule, taken, regions)


def _said(t: Trial) -> Mapping[str, Any]:
    found = json.loads(t.summary)
    return found if "regions" in found and "beside" in found else {}


def _region(counts: list[Any]) -> Region:
    times, entries, work, functions, chain, moved, evicted = counts
    pairs = tuple((float(a), float(b)) for a, b in moved)
    return Region("", times, entries, work, functions, chain, 0, pairs, evicted)


@dataclass
class Searched:
    """What searches have measured on one processor, and the machines that code was for."""

    origin: Origin
    machines: dict[str, Machine] = field(default_factory=dict)
    rows: list[Timed] = field(default_factory=list)


def searched_in(databases: Mapping[str, Path]) -> dict[str, Searched]:
    """Returns what there is in databases by the names of models, by processors."""
    found: dict[str, Searched] = {}
    for name, path in databases.items():
        of_task: defaultdict[tuple[str, str], list[Trial]] = defaultdict(list)
        with Database.open(str(path), create=False) as database:
            for t in database.trials(status="measured"):
                if t.state == "model" and t.summary:
                    of_task[t.task.key, t.origin.processor].append(t)
        for (_, processor), trials in sorted(of_task.items()):
            own = found.setdefault(processor, Searched(trials[0].origin))
            for row in rows_of(name, trials):
                own.rows.append(row)
                own.machines.setdefault(row.target, machine_of(trials[0].origin))
    return found


def write(databases: Mapping[str, Path], folder: Path = RESULTS) -> None:
    """Writes the lessons of some databases, a file for each processor."""
    for processor, own in searched_in(databases).items():
        whence = {
            "cpu": own.origin.cpu,
            "processor": processor,
            "features": [f for f in FEATURES if f in own.origin.features],
            "date": own.origin.date,
            "commit": f"version {own.origin.version}",
            "schedules": "searched",
            "operands": IN_MODELS,
        }
        place = folder / f"{processor}_{IN_MODELS.replace(' ', '_')}.json.gz"
        save(place, own.rows, own.machines, {n: {} for n in own.machines}, whence)
        print(
            f"{place.name}: {len(own.rows)} points of {len({r.digest for r in own.rows})} kernels"
        )


def main() -> None:
    """Reads the databases that are named, and writes what they teach."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("databases", nargs="+", metavar="NAME=DATABASE")
    pairs = (each.partition("=") for each in parser.parse_args().databases)
    write({name: Path(path) for name, _, path in pairs})


if __name__ == "__main__":
    main()
