"""Compiles random models and compares what they compute with ONNX Runtime and the onnx package.

python -m tests.fuzz --minutes 30                 models of all operators, on every core
python -m tests.fuzz --minutes 5 --operators Pool of the operators whose name has a match
python -m tests.fuzz --minutes 5 --precision bf16 all compiled in a precision, not in one of many
python -m tests.fuzz --seed 7 --batch 12          the cases of one batch again
python -m tests.fuzz --replay FOLDER              a finding again
python -m tests.fuzz --mutations 100000 --seed 1  damaged models: none may break the compiler
python -m tests.fuzz --seed 1 --mutant 4711       one of them again
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import warnings
from collections import Counter
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from zlib import crc32

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rutc.emit.linking.toolchain import cache_directory
from tests.conformance.results import sources_digest
from tests.fuzz.campaign import BATCH, Campaign, Tally
from tests.fuzz.cases import PRECISIONS, missing, operators
from tests.fuzz.check import judge
from tests.fuzz.child import Child
from tests.fuzz.findings import Finding, read_case
from tests.fuzz.mutants import Mutants, Outcome, campaign, write_finding
from tests.fuzz.own_process import PATIENCE, Allowance

MOST_MEMORY = 8 << 30
"""An oracle that takes more of it fails, and not the machine."""
STALLED_S = 900.0
"""A worker that takes so much processor time for a batch is lost."""


CASE = f"of processor time per case, {PATIENCE} times as many in all"


def main() -> int:
    """Runs what the command line says; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--operators", default="", metavar="REGEX")
    precisions = tuple(dict.fromkeys(PRECISIONS))
    parser.add_argument("--precision", choices=precisions, help="of all cases")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help=CASE)
    parser.add_argument("--shrink", type=float, default=30.0, metavar="SECONDS", help="per finding")
    parser.add_argument("--interpret", action="store_true", help="do not compile")
    parser.add_argument("--batch", type=int, help="run the cases of this batch only")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="run a finding again")
    parser.add_argument("--fresh", action="store_true", help="begin with batch 0")
    parser.add_argument("--findings", type=Path, default=cache_directory() / "fuzz" / "findings")
    parser.add_argument("--json", type=Path, help="write what was found there")
    parser.add_argument("--mutations", type=int, metavar="N", help="compile N damaged models")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first one's number")
    parser.add_argument("--mutant", type=int, metavar="N", help="compile the damaged model N only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.replay is not None:
        return _replay(arguments.replay, arguments.timeout)
    if arguments.mutations is not None or arguments.mutant is not None:
        return _mutate(arguments)
    names = [n for n in operators(()) if re.search(arguments.operators, n)]
    if not names:
        parser.error(f"no operator has a match of {arguments.operators!r}")
    total, seconds = _run(arguments, names)
    _summary(total, seconds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_facts(total, seconds, arguments.seed), indent=1))
    return 1 if total.findings else 0


def _mutate(arguments: argparse.Namespace) -> int:
    mutants = Mutants(arguments.seed)
    if arguments.mutant is not None:
        numbers = range(arguments.mutant, arguments.mutant + 1)
    else:
        numbers = range(arguments.first, arguments.first + arguments.mutations)
    start = monotonic()
    console = Console(stderr=True)

    def told(number: int, found: Outcome) -> None:
        text = f"mutant {number}: {found.kind} in {found.stage or 'the end'}: {found.reason}"
        if not found.fine:
            place = write_finding(mutants, number, found, arguments.findings)
            console.print(f"{text}\n    {place}", markup=False, soft_wrap=True)
        elif arguments.mutant is not None or found.kind == "limited":
            console.print(text, markup=False, soft_wrap=True)
        if number % 1000 == 999:
            console.print(f"{number + 1 - numbers[0]} mutants in {monotonic() - start:.0f} s")

    result = campaign(mutants, numbers, told)
    counts = ", ".join(f"{n} {kind}" for kind, n in result.stages.most_common())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{result.cases} mutants of {len(mutants.names)} models in "
        f"{(monotonic() - start) / 60:.1f} minutes ({(used.ru_utime + used.ru_stime) / 60:.1f} of "
        f"processor time): {counts}; {len(result.findings)} findings"
    )
    return 1 if result.findings else 0


def _replay(folder: Path, timeout_s: float) -> int:
    child = Child(timeout_s)
    case = read_case(folder)
    verdict = judge(case, child.answer(case))
    child.close()
    print(f"{verdict.kind}: {verdict.reason}")
    return 0 if verdict.fine else 1


class _Done:
    """Which batches of a seed were run with these sources, kept on disk as they come."""

    def __init__(self, seed: int, pattern: str, precision: str, *, interpret: bool) -> None:
        folder = cache_directory() / "fuzz" / "done"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{crc32(pattern.encode()):08x}" if pattern else "all"
        way = "interpreted." if interpret else f"{precision}." if precision else ""
        self.path = folder / f"{sources_digest()}.{seed}.{name}.{way}txt"

    def read(self) -> set[int]:
        if not self.path.exists():
            return set()
        return {int(line) for line in self.path.read_text().split()}

    def add(self, batch: int) -> None:
        with self.path.open("a") as stream:
            stream.write(f"{batch}\n")


def _run(arguments: argparse.Namespace, names: list[str]) -> tuple[Tally, float]:
    """What all batches came to, and the seconds that they took."""
    how = (arguments.operators, arguments.precision or "")
    record = _Done(arguments.seed, *how, interpret=arguments.interpret)
    if arguments.fresh:
        record.path.unlink(missing_ok=True)
    done = record.read() if arguments.batch is None else set()
    total = Tally(-1)
    numbers = iter([arguments.batch]) if arguments.batch is not None else iter(range(1 << 30))
    waiting = (n for n in numbers if n not in done)
    start = monotonic()
    deadline = start + 60 * arguments.minutes
    workers: dict[Connection, tuple[BaseProcess, int, Allowance]] = {}
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[counts]}"),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )

    def give(pipe: Connection, process: BaseProcess) -> None:
        batch = next(waiting, None) if monotonic() < deadline else None
        if batch is None:
            workers.pop(pipe, None)
            process.kill()
            process.join()
        else:
            pipe.send((batch, sorted(f.signature for f in total.findings)))
            assert process.pid is not None
            workers[pipe] = (process, batch, Allowance(process.pid, STALLED_S))

    with progress:
        bar = progress.add_task("fuzzing", total=60 * arguments.minutes, counts="")
        for _ in range(1 if arguments.batch is not None else arguments.workers):
            give(*_start(arguments, names))
        try:
            while workers:
                for pipe in wait(list(workers), 1.0):
                    assert isinstance(pipe, Connection)
                    process, batch, _ = workers[pipe]
                    try:
                        tally = pipe.recv()
                    except (EOFError, ConnectionResetError):
                        process.join()
                        del workers[pipe]
                        total.verdicts["lost"] += 1
                        progress.console.print(f"batch {batch}: an oracle ended the process")
                        give(*_start(arguments, names))
                        continue
                    _add(total, tally, arguments.findings, progress.console)
                    record.add(batch)
                    give(pipe, process)
                for pipe, (process, batch, allowance) in list(workers.items()):
                    if most := allowance.exceeded():
                        progress.console.print(f"batch {batch}: nothing for {most}")
                        total.verdicts["lost"] += 1
                        process.kill()
                        del workers[pipe]
                        give(*_start(arguments, names))
                counts = ", ".join(f"{n} {k}" for k, n in total.verdicts.most_common())
                progress.update(bar, completed=monotonic() - start, counts=counts)
        except KeyboardInterrupt:
            for process, _, _ in workers.values():
                process.kill()
    return total, monotonic() - start


def _add(total: Tally, tally: Tally, folder: Path, console: Console) -> None:
    total.verdicts += tally.verdicts
    total.refusals += tally.refusals
    total.operators += tally.operators
    total.disputes += tally.disputes
    for finding in tally.findings:
        if all(f.signature != finding.signature for f in total.findings):
            total.findings.append(finding)
            place = finding.write(folder)
            text = f"batch {tally.batch}: {finding.signature}\n    {place}"
            console.print(text, markup=False, soft_wrap=True)


def _start(arguments: argparse.Namespace, names: list[str]) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, ours, arguments, names))
    process.start()
    theirs.close()
    return ours, process


def _serve(
    pipe: Connection, other: Connection, arguments: argparse.Namespace, names: list[str]
) -> None:
    other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    campaign = Campaign(
        arguments.seed,
        names,
        timeout_s=arguments.timeout,
        shrink_seconds=arguments.shrink,
        build=not arguments.interpret,
        precisions=PRECISIONS if arguments.precision is None else (arguments.precision,),
    )
    while True:
        try:
            batch, known = pipe.recv()
        except EOFError:
            campaign.close()
            return
        campaign.known |= set(known)
        pipe.send(campaign.run(batch, BATCH))


def _summary(total: Tally, seconds: float) -> None:
    counts = ", ".join(f"{n} {k}" for k, n in total.verdicts.most_common()) or "nothing"
    cases = sum(n for k, n in total.verdicts.items() if k not in ("known", "lost"))
    nodes = sum(total.operators.values())
    print(
        f"{cases} cases in {seconds / 60:.1f} minutes: {counts}; "
        f"{nodes} nodes of {len(total.operators)} operators"
    )
    never, known = missing()
    print(f"made are {known - len(never)} of {known} operators, but never {', '.join(never)}")
    for title, found in (("refused", total.refusals), ("oracles differ", total.disputes)):
        if found:
            print(f"{title}:")
            for what, count in found.most_common(25):
                print(f"  {count:5} {what}")


def _facts(total: Tally, seconds: float, seed: int) -> dict[str, object]:
    findings: list[Finding] = total.findings
    names: list[tuple[str, Counter[str]]] = [
        ("verdicts", total.verdicts),
        ("refusals", total.refusals),
        ("operators", total.operators),
        ("disputes", total.disputes),
    ]
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "never_made": missing()[0],
        **{name: dict(counter.most_common()) for name, counter in names},
        "findings": [{"signature": f.signature, "batch": f.batch} for f in findings],
    }


if __name__ == "__main__":
    sys.exit(main())
