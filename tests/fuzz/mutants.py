"""Compiles mutants of models: whatever they are, rutc compiles them or says what is wrong.

Each case goes to a process that may crash, hang or take too much memory, which are findings as
errors other than those for the user are. What takes longer or more than the limits is compiled once
more by the command line, with these as its limits: it must say so.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from rutc.driver.api import compile
from rutc.driver.parts.build import Builder, PlanVersion
from rutc.emit.targets import target_named
from rutc.errors import CheckFailed, UserError
from rutc.graph_opt import versions
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from tests.fuzz.child import describe
from tests.fuzz.mutate import mutant, pool_of
from tests.fuzz.own_process import PATIENCE, Lost, OwnProcess
from tests.fuzz.seeds import seeds
from tests.machines import NATIVE

CASES_PER_PROCESS = 1000
"""A process ends after so many, to give back what it loaded."""
LIMIT_S = 10.0
LIMIT_BYTES = 3 << 30
MOST_TEXT = 2000
"""Characters of a message, names and what others say left out."""
COMPLETE = 25
"""One in so many mutants is also linked, run, and compared with ONNX Runtime."""
_ODD = re.compile(r"Traceback|object at 0x|<class|NoneType|\b\w+Error\b|\bassert|\bself\b")
"""What is in no message that was written for a user."""


@dataclass(frozen=True)
class Outcome:
    """What came of a mutant.

    `kind` is "compiled", "verified", "differs", "refused" or "limited", or the kind of a finding:
    "error", "message", "crash", "hang", "memory".
    """

    kind: str
    stage: str = ""
    reason: str = ""

    @property
    def fine(self) -> bool:
        """Whether this may be."""
        return self.kind in ("compiled", "verified", "differs", "refused", "limited")

    @property
    def signature(self) -> str:
        """What outcomes of one cause share."""
        place = re.search(r"\[[\w.]+:\d+\]$", self.reason)
        text = re.sub(r"'[^']*'|\[[^\]]*\]|-?\d+(\.\d+)?", "_", self.reason)
        return f"{self.kind} in {self.stage}: {text[:70]} {place.group() if place else ''}"


class Mutants:
    """The mutants of one seed, by number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.names = list(seeds())
        self.pool = pool_of(list(seeds().values()))

    def model(self, number: int) -> bytes:
        """The mutant of a number."""
        name = self.names[number % len(self.names)]
        return mutant(seeds()[name], Random(f"{self.seed}:{number}"), self.pool)

    def is_complete(self, number: int) -> bool:
        """Whether a mutant that compiles is also linked, run and compared."""
        return Random(f"complete {self.seed}:{number}").randrange(COMPLETE) == 0


def attempt(model: bytes, folder: Path, pipe: Connection | None, *, complete: bool) -> Outcome:
    """What comes of a model; the stages are told to a pipe as they begin."""
    stage = ""

    def begin(name: str, done: int = 0, total: int = 1) -> None:
        nonlocal stage
        if name != stage and pipe is not None:
            pipe.send(name)
        stage = name

    path = folder / "model.onnx"
    path.write_bytes(model)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            if complete:
                begin("compile")
                compile(path, folder / "model.so", threads=1, jobs=1, on_progress=begin)
            else:
                _kernels(path, begin)
    except UserError as error:
        return _refused(stage, str(error))
    except CheckFailed as error:
        return Outcome("differs", stage, " ".join(str(error).split()))
    except MemoryError as error:
        return Outcome("memory", stage, describe(error))
    except Exception as error:
        return Outcome("error", stage, describe(error))
    return Outcome("verified" if complete else "compiled")


def _kernels(path: Path, begin: object) -> None:
    """Everything that compiling does but for the C compiler."""
    assert callable(begin)
    machine = target_named("native").machine
    begin("import")
    graph = import_model(path)
    begin("optimize")
    found = versions(graph, machine)
    begin("plan")
    plan = decide(found[-1].graph, NATIVE)
    earlier = tuple(PlanVersion(decide(v.graph, NATIVE), v.where) for v in found if v.where)
    begin("kernels")
    Builder(plan, machine, "model", 1, earlier=earlier).build()


def _refused(stage: str, text: str) -> Outcome:
    """A refusal, which is a finding if its message is none for a user."""
    line = " ".join(text.split())
    own = re.sub(r"\[ONNXRuntimeError\].*|'[^']*'|\"[^\"]*\"|\S{200,}", "''", line)
    place = re.search(
        r"''|model\.onnx|opset|operator|node|input|output|tensor|function|initializer", own
    )
    if len(line) < 20 or _ODD.search(own) or place is None or len(own) > MOST_TEXT:
        return Outcome("message", stage, line[:600])
    return Outcome("refused", stage, line[:600])


class Subject(OwnProcess[Outcome]):
    """A process that does mutants by their number, started anew when it is lost."""

    def __init__(self, mutants: Mutants, limit_s: float = LIMIT_S) -> None:
        super().__init__(limit_s, CASES_PER_PROCESS)
        self.mutants = mutants

    def outcome(self, number: int) -> Outcome:
        """What comes of a mutant."""
        try:
            return self.ask(number)
        except Lost as lost:
            return Outcome(lost.kind, lost.stage, lost.reason)

    def prepare(self) -> None:
        """Limits memory, and leaves out what is printed."""
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(2, 1)

    def work(self, number: int, pipe: Connection) -> Outcome:
        """What comes of the mutant of that number."""
        with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
            model = self.mutants.model(number)
            complete = self.mutants.is_complete(number)
            return attempt(model, Path(folder), pipe, complete=complete)


@dataclass
class Result:
    """What a campaign came to: how many mutants came to what, and the new findings' numbers.

    `limited` are mutants that the limits ended, which the command line says of them, too.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[int, Outcome]] = field(default_factory=dict)
    limited: list[int] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """How many mutants there were."""
        return sum(self.outcomes.values())


def campaign(
    mutants: Mutants,
    numbers: Iterable[int],
    on_outcome: Callable[[int, Outcome], None] = lambda number, outcome: None,
) -> Result:
    """Does mutants, one after the other."""
    subject = Subject(mutants)
    result = Result()
    try:
        for number in numbers:
            found = subject.outcome(number)
            if found.kind in ("hang", "memory"):
                found = by_command_line(mutants.model(number), found)
            result.outcomes[found.kind] += 1
            result.stages[f"{found.kind} in {found.stage}" if found.stage else found.kind] += 1
            if found.kind == "limited":
                result.limited.append(number)
            if not found.fine and found.signature in result.findings:
                continue
            if not found.fine:
                result.findings[found.signature] = number, found
            on_outcome(number, found)
    except KeyboardInterrupt:
        pass
    finally:
        subject.close()
    return result


def by_command_line(model: bytes, found: Outcome) -> Outcome:
    """The outcome where the command line is given the limits: it must say that they are reached."""
    with tempfile.TemporaryDirectory(prefix="rutc-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        limits = ["--limit-time", str(LIMIT_S), "--limit-memory", str(LIMIT_BYTES)]
        done = subprocess.run(
            [sys.executable, "-m", "rutc.cli", "compile", str(path), "--jobs", "1", *limits],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE * LIMIT_S,
            check=False,
        )
        left = sorted(p.name for p in Path(folder).iterdir() if p != path)
    if done.returncode == 0:
        return replace(found, kind="verified")
    if done.returncode == 1:
        return replace(found, kind="differs")
    refused = done.returncode == UserError.exit_status and "Traceback" not in done.stderr
    if not refused or left:
        return replace(found, reason=f"{found.reason}; command line: {done.stderr[-400:]} {left}")
    return replace(found, kind="limited" if "--limit-" in done.stderr else "refused")


def write_finding(mutants: Mutants, number: int, found: Outcome, folder: Path) -> Path:
    """Writes `model.onnx` and `report.txt`; returns the folder."""
    digest = sha256(found.signature.encode()).hexdigest()[:8]
    place = folder / f"mutant_{found.kind}_{digest}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.onnx").write_bytes(mutants.model(number))
    again = f"python -m tests.fuzz --seed {mutants.seed} --mutant {number}"
    text = f"{found.kind} in {found.stage}: {found.reason}\nagain: {again}\n"
    (place / "report.txt").write_text(text, encoding="utf-8")
    return place
