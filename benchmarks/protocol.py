"""How every page measures.

Each peer has a process of its own, stopped but for its turns (`rutc.verify.interleaved`). Inputs
and outputs are bound before the first run for all peers, or for none where an output cannot be.
Every peer runs for so many seconds or more; an entry holds how often it ran, on what machine, at
which commit. A loop of multiply-adds and passes over memory take turns as peers do.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import onnx

from benchmarks import store
from benchmarks.line_times import between
from benchmarks.machine import ROOT, provenance
from benchmarks.peers import Inputs, peer_jobs
from benchmarks.store import Entry
from rutc.driver.compiler import Options, compile_model
from rutc.errors import RutcError, UserError
from rutc.runtime import ModelError, load
from rutc.verify.bench import EXACT, Room, exact_job, room_for, rutc_job
from rutc.verify.interleaved import Job, Measured, take_turns
from rutc.verify.verify import verify_model

SECONDS = 5.0
OPERATOR_S = 1.0
PARTS = "amx-bf16"
"""The feature of code that multiplies bf16, or parts of float32, in registers for matrices."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled model: what is told of it, and what its outputs are bound to."""

    library: Path
    facts: Entry
    flops: int
    room: Room | None


def compiled(path: Path, inputs: Inputs, options: Options, threads: int = 1) -> Compiled:
    """Returns a model compiled and compared with ONNX Runtime."""
    report = compile_model(path, path.with_suffix(".so"), options, None)
    agrees = verify_model(path, report.library, inputs, threads=threads).passed
    with load(report.library, threads=1) as session:
        features = session.manifest["features"]
        assert isinstance(features, list)
    room = room_for(report.library, inputs)
    facts: Entry = {
        "agrees": agrees,
        "bound": room is not None,
        "parts": PARTS in features,
        "compile_s": round(sum(report.seconds.values()), 2),
    }
    return Compiled(report.library, facts, report.flops, room)


def timed(jobs: Mapping[str, Job], seconds: float) -> dict[str, Measured]:
    """Returns what was measured of rutc and its peers, in turns.

    Raises:
        UserError: rutc itself failed.
    """
    found = take_turns(jobs, seconds)
    if found["rutc"].failed:
        raise UserError(f"rutc's artifact does not run: {found['rutc'].failed}")
    return found


def medians(found: Mapping[str, Measured]) -> dict[str, float]:
    """Returns the median microseconds of all that ran."""
    return {name: m.latency.median_us for name, m in found.items() if m.latency is not None}


def told(found: Mapping[str, Measured]) -> Entry:
    """Returns what entries hold of every measurement: runs, failures, machine and commit."""
    return {
        "runs": {name: m.latency.runs for name, m in found.items() if m.latency is not None},
        "failed": {name: m.failed for name, m in found.items() if m.failed},
        **asdict(provenance()),
    }


def beside(
    model: onnx.ModelProto,
    inputs: Inputs,
    threads: int,
    seconds: float,
    peers: Sequence[str],
    more: Callable[[Compiled], Mapping[str, Job]] = lambda made: {},
) -> Entry:
    """Returns the medians of a model in turns with its peers, and rutc's over ONNX Runtime's.

    `more` takes turns with them.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        made = compiled(path, inputs, Options(), threads)
        jobs = {
            "rutc": rutc_job(made.library, threads, inputs, made.room),
            **peer_jobs(peers, path, threads, inputs, made.room),
            **(exact_job(path, threads, inputs, made.room) if "onnxruntime" in peers else {}),
            **more(made),
        }
        with between(threads) as lines:
            found = timed(jobs, seconds)
    us = medians(found)
    entry = {**made.facts, **{f"{name}_us": round(median, 1) for name, median in us.items()}}
    if "onnxruntime" in us:
        entry["ratio"] = round(us["rutc"] / us["onnxruntime"], 2)
    if EXACT in us:
        entry["exact_ratio"] = round(us["rutc"] / us[EXACT], 2)
    return entry | lines | told(found)


@dataclass(frozen=True, slots=True)
class Halves:
    """A measurement in two halves, of which the second alone needs the machine for itself.

    `prepare` leaves in a folder what the turns of a case need, unless it is there; `take` takes
    them, for so many seconds and with these peers.
    """

    prepare: Callable[[str, Path], None]
    take: Callable[[str, Path, float, Sequence[str]], Entry]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of measurements: its cases by name, its file of results, and how it is written.

    `measure` takes a case's name, the seconds for each peer, and the peers; `key` names the case
    that an entry is of.
    """

    name: str
    description: str | None
    cases: Sequence[str]
    measure: Callable[[str, float, Sequence[str]], Entry]
    key: Callable[[Entry], str]
    write: Callable[[Sequence[Entry]], None]
    peers: tuple[str, ...] = ("onnxruntime",)
    loops: int = 0
    """Loops and passes that take turns as peers do."""
    prepare_s: float = 3.0
    """Roughly, what a case takes beside its turns."""
    seconds: float | None = SECONDS
    """For each peer of a case, unless asked otherwise; None: there are no turns."""
    halves: Halves | None = None
    """What `measure` does, where it can be asked for one after the other."""

    @property
    def results(self) -> Path:
        """The file of all entries."""
        return ROOT / "benchmarks" / "results" / f"{self.name}.json"

    def minutes(self, seconds: float | None, cases: int) -> float:
        """Returns about how long it takes to measure so many cases."""
        turns_s = 0.0
        if self.seconds is not None:
            each_s = self.seconds if seconds is None else seconds
            turns_s = (1 + len(self.peers) + self.loops) * each_s * 1.2
        return cases * (turns_s + self.prepare_s) / 60

    def chosen(self, only: Sequence[str], *, resume: bool) -> list[str]:
        """Returns the cases whose names have one of these parts, all without any.

        To resume is to leave out what is measured already on this machine at this commit.
        """
        done: set[str] = set()
        if resume:
            entries = store.load(self.results)
            done = store.measured_already(entries, asdict(provenance()), self.key)
        wanted = [c for c in self.cases if not only or any(part in c for part in only)]
        return [case for case in wanted if case not in done]

    def run(
        self,
        chosen: Sequence[str],
        seconds: float | None,
        peers: Sequence[str] | None,
        prepared: Path | None = None,
    ) -> None:
        """Measures cases, stores each as soon as it is measured, and writes the page.

        Those of a page of two halves may be prepared in a folder already.
        """
        measure = self.measure
        if prepared is not None:
            assert self.halves is not None
            measure = partial(_taken, self.halves, prepared)
        each_s = seconds if seconds is not None else self.seconds or 0.0
        order = {case: number for number, case in enumerate(self.cases)}
        entries = [e for e in store.load(self.results) if self.key(e) in order]
        for case in chosen:
            try:
                entry = measure(case, each_s, self.peers if peers is None else peers)
            except (RutcError, ModelError) as error:
                entry = {"error": str(error).splitlines()[0], **asdict(provenance())}
            entry |= {"case": case}
            print(self.name, case, _shown(entry), file=sys.stderr, flush=True)
            entries = store.merged(entries, [entry], self.key)
            entries.sort(key=lambda e: order[self.key(e)])
            store.save(self.results, entries)
        self.write(entries)

    def main(self) -> None:
        """Does what the command line asks for."""
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{self.name}", description=self.description
        )
        parser.add_argument("only", nargs="*", help="parts of names of cases; default: all")
        add_arguments(parser)
        parser.add_argument("--peers", nargs="*", help=f"default: {' '.join(self.peers)}")
        if self.halves is not None:
            folders = parser.add_mutually_exclusive_group()
            folders.add_argument("--prepare", type=Path, help="a folder: only compile, into it")
            folders.add_argument("--prepared", type=Path, help="that folder: only take turns")
        parser.set_defaults(prepare=None, prepared=None)
        options = parser.parse_args()
        chosen = self.chosen(options.only, resume=options.resume)
        if self.halves is not None and options.prepare is not None:
            for case in chosen:
                self.halves.prepare(case, options.prepare)
        else:
            cases = [] if options.page else chosen
            self.run(cases, options.seconds, options.peers, options.prepared)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of one page and of all."""
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"for each peer of a case; default: {SECONDS:g}, of a single operator {OPERATOR_S:g}",
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out what this commit has here already"
    )
    parser.add_argument("--page", action="store_true", help="only write the pages again")


def write(name: str, text: str) -> None:
    """Writes a page of the documents."""
    (ROOT / "docs" / f"{name}.md").write_text(text, encoding="utf-8")


def _taken(halves: Halves, folder: Path, case: str, seconds: float, peers: Sequence[str]) -> Entry:
    return halves.take(case, folder, seconds, peers)


def _shown(entry: Entry) -> Entry:
    said = ("us", "ratio", "error", "agrees", "failed")
    return {key: entry[key] for key in entry if key in said}
