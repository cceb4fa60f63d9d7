"""The processor time of each test and of a whole run, their child processes included."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Generator, Mapping

import pytest

from benchmarks.layout import vectors
from benchmarks.machine import Provenance, provenance

PROPERTY = "processor_s"


def processor_s() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Times:
    """Measures each test where it runs and sums up what came in where the report is written."""

    def __init__(self, shown: int) -> None:
        """`shown` tests and files are named in the summary."""
        self.shown = shown
        self.tests: Counter[str] = Counter()
        self._start = 0.0
        self._begin = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._start = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((PROPERTY, processor_s() - self._start))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "teardown":
                assert isinstance(value, float)
                self.tests[report.nodeid] += value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        # The workers of pytest-xdist have ended, so that they count as children.
        total, tests = processor_s(), self.tests.total()
        terminalreporter.write_line(
            f"processor time: {total:.0f} s in all, {tests:.0f} s of it in tests"
        )
        files: Counter[str] = Counter()
        for test, seconds in self.tests.items():
            files[test.partition("::")[0]] += seconds
        for counted in (files, self.tests):
            for name, seconds in counted.most_common(self.shown):
                terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
        if self.shown:
            command = " ".join(terminalreporter.config.invocation_params.args)
            wall_s = time.monotonic() - self._begin
            found = terminalreporter.stats
            terminalreporter.write_line("a row for docs/tested.md:")
            terminalreporter.write_line(row(provenance(), command, found, total, wall_s))


def row(
    here: Provenance,
    command: str,
    found: Mapping[str, Collection[object]],
    total_s: float,
    wall_s: float,
) -> str:
    """Returns what ran, where, how it ended and how long it took, as docs/tested.md has it."""
    failed = len(found.get("failed", ())) + len(found.get("error", ()))
    cells = (
        f"{here.cpu} ({here.processor}), {here.cpus} CPUs",
        vectors({"features": here.features}),
        here.commit,
        f"`pytest {command}`",
        *(str(len(found.get(kind, ()))) for kind in ("passed", "skipped")),
        str(failed),
        f"{total_s / 60:.1f} min",
        f"{wall_s / 60:.1f} min",
    )
    return f"| {' | '.join(cells)} |"
