"""The daily samples: all cases come in turn, every family is there every day, `--all` is all."""

import datetime
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.machine import Provenance
from tests import examples
from tests.sampling import SAMPLE, Sample
from tests.times import row

CONFTEST = """
from tests import sampling

pytest_addoption = sampling.add_options

def pytest_configure(config):
    config.pluginmanager.register(sampling.Sampling(config))
"""
PLUGINS = ("-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider")
TESTS = """
import pytest

@pytest.mark.sampled(4)
@pytest.mark.parametrize("a", "xy")
@pytest.mark.parametrize("b", range(8))
def test_pairs(a, b): pass

@pytest.mark.parametrize("a", range(9))
def test_many(a): pass

def test_single(): pass
"""


def sample_of(day: int) -> Sample:
    sample = Sample()
    sample.date = datetime.date(2026, 11, 1) + datetime.timedelta(day)
    return sample


@pytest.mark.parametrize("count", [1, 2, 5, 12, 13, 100])
@pytest.mark.parametrize("parts", [1, 3, 7])
def test_all_cases_come_in_as_many_days_as_there_are_shares(count: int, parts: int) -> None:
    cases = list(range(count))
    days = [sample_of(day).share(cases, parts, "key") for day in range(parts)]
    assert sorted({case for share in days for case in share}) == cases
    assert {len(share) for share in days} == {-(-count // parts)}
    assert all(share == sorted(share) for share in days)


def test_of_no_cases_none_are_chosen() -> None:
    assert sample_of(0).share([], 3, "key") == []


def test_random_examples_are_a_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SAMPLE, "everything", False)
    monkeypatch.delenv("RUTC_EXAMPLES", raising=False)
    assert [examples.examples(n).max_examples for n in (3, 20, 100)] == [3, 5, 20]
    monkeypatch.setattr(SAMPLE, "everything", True)
    assert examples.examples(100).max_examples == 100
    monkeypatch.setenv("RUTC_EXAMPLES", "50")
    assert examples.examples(100).max_examples == 5000


@given(st.just(0.3))
@settings(max_examples=1)
def test_a_slow_example_is_no_failure(seconds: float) -> None:
    """As there are where other work runs beside the tests: hypothesis by itself allows 0.2 s."""
    time.sleep(seconds)


def test_a_run_is_a_row_of_the_table_of_processors() -> None:
    here = Provenance("a processor", "znver9", ["avx2", "avx512f"], 2, "2026-01-02", "abc", {})
    found = {"passed": [0] * 12, "failed": [0], "error": [0, 0], "warnings": [0]}
    text = row(here, "-q -n 2", found, 90.0, 60.0)
    cells = "abc | `pytest -q -n 2` | 12 | 0 | 3 | 1.5 min | 1.0 min"
    assert text == f"| a processor (znver9), 2 CPUs | AVX-512 | {cells} |"
    table = (Path(__file__).parents[2] / "docs" / "tested.md").read_text().splitlines()
    widths = {line.count("|") for line in table if line.startswith("|")}
    assert widths == {text.count("|")}


def test_a_run_names_its_sample_and_everything_runs_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_made.py").write_text(TESTS)

    def said(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-v", *PLUGINS, "--rootdir", tmp_path]
        done = subprocess.run(
            [*map(str, command), "-c", "/dev/null", "-W", "ignore", *options, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        return done.stdout.splitlines()

    def ran(lines: list[str]) -> list[str]:
        return [line.split("::")[1].split()[0] for line in lines if "PASSED" in line]

    lines = said("--sample-date", "2026-11-23")
    first = ran(lines)
    counts = Counter(name.partition("[")[0] for name in first)
    assert counts == {"test_pairs": 4, "test_many": 2, "test_single": 1}
    (line,) = (line for line in lines if "sample of" in line)
    assert "2026-11-23, 19 cases left for other days" in line
    assert ran(said("--sample-date", "2026-11-23")) == first
    assert ran(said("--sample-date", "2026-11-24")) != first
    assert len(ran(said("--all"))) == 26
