"""Batches of generated cases: each has a number, and a seed that gives the same cases again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz import oracles
from tests.fuzz.cases import PRECISIONS, Case, cases
from tests.fuzz.check import Verdict, judge
from tests.fuzz.child import Child
from tests.fuzz.findings import Finding
from tests.fuzz.rules import operator_name
from tests.fuzz.shrink import cut, signature

BATCH = 10
"""Cases of a batch. Longer runs of one seed make Hypothesis repeat parts of earlier cases."""

SHRINK_SECONDS = 40.0


OnCase = Callable[[], None]


class Differs(AssertionError):
    """A case fails."""


class _OutOfTime(BaseException):
    """No more cases are wanted; Hypothesis, which takes errors for failing cases, lets it pass."""


@dataclass
class Tally:
    """What a batch came to: verdicts, refusals' messages, nodes by operator, findings."""

    batch: int
    verdicts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    disputes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def count(self, case: Case, verdict: Verdict) -> None:
        """Enters a new case."""
        self.verdicts[verdict.kind] += 1
        self.operators.update(operator_name(n) for n in case.proto().graph.node)
        if verdict.kind == "refused":
            self.refusals[_pattern(verdict.reason)] += 1


class Campaign:
    """Runs batches of one seed; a failure whose signature is known is counted and left."""

    def __init__(
        self,
        seed: int,
        names: Sequence[str] = (),
        *,
        timeout_s: float = 60.0,
        shrink_seconds: float = SHRINK_SECONDS,
        build: bool = True,
        precisions: Sequence[str] = PRECISIONS,
    ) -> None:
        self.seed = seed
        self.names = names
        self.precisions = precisions
        self.child = Child(timeout_s, build=build)
        self.shrink_seconds = shrink_seconds
        self.known: set[str] = set()

    def run(self, batch: int, count: int = BATCH, on_case: OnCase | None = None) -> Tally:
        """Makes the cases of a batch and judges them; a new failure is made small."""
        tally = Tally(batch)
        oracles.disputes.clear()
        hunt = Hunt(self.child)

        def judged(case: Case) -> None:
            verdict = hunt.check(case)
            tally.count(case, verdict)
            if not verdict.fine:
                small, reason = cut(case, verdict, hunt.check)
                mark = signature(small, reason)
                if mark in self.known:
                    tally.verdicts["known"] += 1
                else:
                    self.known.add(mark)
                    tally.findings.append(Finding(small, reason, mark, self.seed, batch))
            if on_case is not None:
                on_case()

        self.generate(batch, count, judged, [Phase.generate])
        tally.disputes += oracles.disputes
        if self.shrink_seconds > 0:
            tally.findings = [self.smaller(f, count, hunt) for f in tally.findings]
        return tally

    def smaller(self, finding: Finding, count: int, hunt: Hunt) -> Finding:
        """The finding, made smaller by Hypothesis as long as time lasts."""
        deadline = monotonic() + self.shrink_seconds
        failing: set[bytes] = set()
        best = finding

        def look(case: Case) -> None:
            nonlocal best
            key = _key(case)
            if key not in failing:
                if key not in hunt.verdicts and monotonic() > deadline:
                    raise _OutOfTime
                verdict = hunt.check(case)
                if verdict.fine:
                    return
                small, reason = cut(case, verdict, hunt.check)
                if signature(small, reason) != finding.signature:
                    return
                failing.add(key)
                if len(small.model) <= len(best.case.model):
                    best = replace(finding, case=small, verdict=reason)
            raise Differs

        with suppress(Differs, hypothesis.errors.Flaky, _OutOfTime):
            self.generate(finding.batch, count, look, [Phase.generate, Phase.shrink])
        return best

    def generate(
        self, batch: int, count: int, look: Callable[[Case], None], phases: Sequence[Phase]
    ) -> None:
        """Gives the cases of a batch to a function, the same ones every time."""

        @hypothesis.seed(self.seed * 1_000_003 + batch)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(cases(self.names, self.precisions))
        def search(case: Case) -> None:
            look(case)

        search()

    def close(self) -> None:
        """Ends the process that runs cases."""
        self.child.close()


class Hunt:
    """Verdicts on cases, each of which is run once."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.verdicts: dict[bytes, Verdict] = {}

    def check(self, case: Case) -> Verdict:
        """The verdict on a case."""
        key = _key(case)
        if key not in self.verdicts:
            self.verdicts[key] = judge(case, self.child.answer(case))
        return self.verdicts[key]


def _pattern(reason: str) -> str:
    """A message without names, sizes and operands."""
    text = re.sub(r"\[[^\[\]]*[:%][^\[\]]*\]|; fixing the symbolic.*", "", reason)
    return re.sub(r"\b[a-z]{0,2}\d[\d.]*\b|\bn\b", "_", text)[:150]


def _key(case: Case) -> bytes:
    way = (case.target, case.exact, case.precision, case.eager)
    parts = [case.model, repr(way).encode()]
    for data in case.sets:
        parts += [repr((a.shape, a.tobytes())).encode() for a in data.feeds.values()]
    return b"\0".join(parts)
