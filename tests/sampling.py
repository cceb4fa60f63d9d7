"""Which cases of tests run: a share that the date chooses, or all of them.

Of the cases of a test one in `PARTS` runs each day, and at least one. The mark `sampled(parts)`
says another share, and `sampled(parts, whole=True)` one of all tests of a file. Shares rotate, so
that all cases come in turn. Tests that walk through many cases themselves take theirs from
`SAMPLE.share`; they are marked `sampled(1)` where they have cases, since shares of shares would
leave some out for ever. Random examples are fewer in the same way (`tests.examples`), and drawn
from the date. A run says its date; `--sample-date` repeats it elsewhere, and `--all` runs
everything.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from typing import TypeVar

import hypothesis.core
import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")
PARTS = 5
LEFT = "left for other days"


class Sample:
    """What runs: the share of a date, or everything."""

    def __init__(self) -> None:
        """Of today, until the command line is read."""
        self.date = datetime.datetime.now(datetime.UTC).date()
        self.everything = False

    def share(self, cases: Sequence[T], parts: int, key: str) -> list[T]:
        """The day's cases, in their order: one in `parts`, and at least one; `key` shuffles them.

        All cases come up in as many days as there are shares.
        """
        if self.everything or not cases:
            return list(cases)
        places = list(range(len(cases)))
        random.Random(key).shuffle(places)
        size = -(-len(cases) // parts)
        first = self.date.toordinal() * size
        chosen = {places[(first + i) % len(cases)] for i in range(size)}
        return [case for place, case in enumerate(cases) if place in chosen]


SAMPLE = Sample()
"""The sample of this run."""


class Sampling:
    """Leaves those cases of marked tests out of a run that are not in its sample."""

    def __init__(self, config: pytest.Config) -> None:
        """Reads the options, and puts the date among them for processes that this one starts."""
        if config.option.sample_date is None:
            config.option.sample_date = SAMPLE.date
        SAMPLE.date = config.option.sample_date
        # Golden files are written as a whole.
        SAMPLE.everything = config.option.all or config.getoption("update_golden", False)
        if config.option.hypothesis_seed is None:
            hypothesis.core.global_force_seed = SAMPLE.date.toordinal()
        # What else the machine does decides how long an example takes.
        slow = [HealthCheck.too_slow]
        settings.register_profile("rutc", deadline=None, suppress_health_check=slow)
        settings.load_profile("rutc")
        config.addinivalue_line(
            "markers",
            "sampled(parts, whole=False): one case in so many each day; see `--all`",
        )
        self._config = config
        self._left = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        families: dict[str, list[pytest.Item]] = {}
        for item in items:
            families.setdefault(_family(item), []).append(item)
        left: set[pytest.Item] = set()
        for name, cases in families.items():
            left |= set(cases) - set(SAMPLE.share(cases, _parts(cases), name))
        self._left = len(left)
        if left:
            self._config.hook.pytest_deselected(items=[i for i in items if i in left])
            items[:] = [i for i in items if i not in left]

    def pytest_sessionfinish(self) -> None:
        if (output := getattr(self._config, "workeroutput", None)) is not None:
            output[LEFT] = self._left

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        # Every worker of pytest-xdist collects the same tests.
        self._left = getattr(node, "workeroutput", {}).get(LEFT, self._left)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if SAMPLE.everything:
            said = f"all cases; random examples of {SAMPLE.date}"
        else:
            said = f"sample of {SAMPLE.date}, {self._left} cases {LEFT} (everything: --all)"
        terminalreporter.write_line(f"{said}; the same again: --sample-date {SAMPLE.date}")


def _parts(cases: list[pytest.Item]) -> int:
    """One in how many of these cases runs each day."""
    mark = cases[0].get_closest_marker("sampled")
    return PARTS if mark is None else int(mark.args[0])


def _family(item: pytest.Item) -> str:
    """The test function whose case this is, or the file that is sampled as a whole."""
    mark = item.get_closest_marker("sampled")
    whole = mark is not None and mark.kwargs.get("whole", False)
    return item.nodeid.partition("::" if whole else "[")[0]


def add_options(parser: pytest.Parser) -> None:
    """Adds the options that choose what runs."""
    parser.addoption(
        "--all", action="store_true", help="run all cases of all tests, and all random examples"
    )
    parser.addoption(
        "--sample-date",
        type=datetime.date.fromisoformat,
        metavar="YYYY-MM-DD",
        help="run the cases and random examples of that day instead of today's (UTC)",
    )
