"""The processor time of each test, its child processes included."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest

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
        total = self.tests.total()
        terminalreporter.write_line(f"processor time of the tests: {total:.0f} s")
        files: Counter[str] = Counter()
        for test, seconds in self.tests.items():
            files[test.partition("::")[0]] += seconds
        for counted in (files, self.tests):
            for name, seconds in counted.most_common(self.shown):
                terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
