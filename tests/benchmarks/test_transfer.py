"""Searches that know other kernels or none: what counts as a trial, and what is hidden."""

from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from statistics import median
from time import sleep

import numpy as np
import pytest

from benchmarks.held_out import families_without, points_without
from benchmarks.kernel_source import largest
from benchmarks.ratios import Ratio, Ratios
from benchmarks.train import family
from benchmarks.transfer import CASES, GOOD, WAYS, Blank, Searched, Timed, section
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.tensor_ir.kernel import Kernel
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.search import Candidate, Met, Search
from tests.machines import V3
from tests.tuner.subjects import PRODUCT, of_text


class Lengths(Ratios):
    """A bench for which a kernel takes as long as its text is; what is asked for is noted."""

    def __init__(self, default: Kernel) -> None:
        """Beside a default schedule."""
        super().__init__(default, V3)
        self.asked: list[str] = []

    def of(self, kernel: Kernel, best: float, samples: int = 0) -> Ratio:
        self.asked.append(str(kernel))
        return Ratio(len(str(kernel)) / 1000, 0.01)


@pytest.fixture(scope="module")
def kernel() -> tuple[Kernel, frozenset[str]]:
    """A product, and the constants that may be packed."""
    subject = of_text(PRODUCT, frozenset({"b"}), Random(0))
    return subject.kernel, subject.free


@pytest.fixture
def bench(kernel: tuple[Kernel, frozenset[str]]) -> Iterator[Lengths]:
    with Lengths(kernel[0]) as found:
        yield found


def searched(kernel: tuple[Kernel, frozenset[str]], way: str, timed: Timed) -> Searched:
    """A search of a way that no time limits."""
    own = spaces(kernel[0], V3, kernel[1])
    search = Search(kernel[0], own, Blank(V3), kernel_after, Random(way))
    return Searched(search, WAYS[way], timed)


def test_equal_code_is_one_trial_and_timed_once(
    kernel: tuple[Kernel, frozenset[str]], bench: Lengths
) -> None:
    timed = Timed(bench)
    first, second = (searched(kernel, way, timed) for way in ("own", "own, default first"))
    for each in (first, second):
        each.run(20, inf, lambda _: False)
        assert len(set(each.codes)) == len(each.codes) == 20
    assert len(bench.asked) == len(set(bench.asked)) == len(timed.known)
    usual = kernel_after(kernel[0], choose(kernel[0], V3, kernel[1]))
    assert second.codes[0] == str(usual)
    assert second.best is not None
    assert timed.order(second.best_code) == min(map(timed.order, second.codes))


def test_trials_are_chosen_one_by_one_as_a_search_of_a_model_does(
    kernel: tuple[Kernel, frozenset[str]], bench: Lengths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is next is chosen by all that was measured by then."""
    found = searched(kernel, "own, default first", Timed(bench))
    asked: list[tuple[int, int]] = []
    propose = found.search.propose

    def noting(count: int, met: Sequence[Met] | None = None) -> list[Candidate]:
        asked.append((len(found.search.measured), count))
        return propose(count, met)

    monkeypatch.setattr(found.search, "propose", noting)
    found.run(18, inf, lambda _: False)
    assert asked == [(n, 1) for n in range(1, 18)]


def test_the_time_of_a_search_is_the_processors(
    kernel: tuple[Kernel, frozenset[str]], bench: Lengths
) -> None:
    """What the bench took counts, though it is another process; waiting does not."""
    found = searched(kernel, "own, default first", Timed(bench))
    before = found.spent
    sleep(0.2)
    assert found.spent - before < 0.2
    found.timed.seconds += 100
    assert found.spent - before > 100
    found.run(20, 0.0, lambda _: False)
    assert len(found.codes) == 1


def test_a_search_ends_where_a_schedule_is_good_enough(
    kernel: tuple[Kernel, frozenset[str]], bench: Lengths
) -> None:
    found = searched(kernel, "random", Timed(bench))
    found.run(5, inf, lambda _: False)
    least = min(map(found.timed.order, found.codes))
    found = searched(kernel, "random", Timed(bench))
    found.run(5, inf, lambda code: found.timed.order(code) == least)
    assert found.best is not None
    assert found.timed.order(found.codes[-1]) == found.timed.order(found.best_code) == least
    assert all(found.timed.order(code) > least for code in found.codes[:-1])


def test_trials_until_a_goal_are_told_by_what_is_timed_again(bench: Lengths) -> None:
    timed = Timed(bench, {"lucky": 0.5, "good": 0.5, "failed": None}, {})
    again = {"lucky": 0.9, "good": 0.52}
    timed.sure |= set(again)
    assert timed.until(["failed", "lucky", "good"], 0.55) == 2
    timed.known |= again
    assert timed.until(["failed", "lucky", "good"], 0.55) == 3
    assert timed.until(["failed", "lucky"], 0.55) is None


def test_a_kernel_takes_as_long_as_itself(kernel: tuple[Kernel, frozenset[str]]) -> None:
    usual = kernel_after(kernel[0], choose(kernel[0], V3, kernel[1]))
    with Ratios(usual, V3) as bench:
        same = [bench.of(usual, 1.0) for _ in range(5)]
        plain = [bench.of(kernel[0], 1.0) for _ in range(5)]
    # One of them may be disturbed by what else the machine does.
    assert 0.5 < median(r.ratio or 0.0 for r in same) < 2 < median(r.ratio or 0.0 for r in plain)
    assert all(r.seconds > 0 for r in same)


def test_what_does_not_run_has_no_ratio(
    kernel: tuple[Kernel, frozenset[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = kernel_after(kernel[0], choose(kernel[0], V3, kernel[1]))
    monkeypatch.setattr("benchmarks.ratios.PreparedKernel", None)
    with Ratios(usual, V3) as bench:
        assert bench.of(usual, 1.0) == Ratio(None, 0.0)


def test_a_model_has_not_seen_the_kernel_nor_its_family() -> None:
    case = "operator Attention"
    kernel, constants = largest(case, V3)
    hidden = families_without(case, kernel, constants)
    assert family(case) in hidden
    assert 0 < points_without(hidden) < points_without(frozenset())
    assert "attention" in hidden, "a case of that family has the same kernel"


def test_cases_are_of_families_of_their_own() -> None:
    assert len({family(case) for case in CASES}) == len(CASES) >= 20


def entry(case: str, own: int, transfer: int | None, **more: object) -> dict[str, object]:
    until = dict.fromkeys(WAYS, transfer) | {"own": own}
    tried = dict.fromkeys(WAYS, 40) | {"own": 300}
    said = {"gain": 1.2, "more": 1.0, "trial_s": 0.1, "size": 1e6, "hidden": [], "points": 9}
    said |= {"cpu": "a CPU", "processor": "znver4", "cpus": 2, "date": "2026-11-27"}
    said |= {"commit": "1234abcd", "versions": {}, "features": ["avx2", "avx512f"]}
    return {"case": case, "until": until, "tried": tried, **said, **more}


def test_the_page_says_how_many_times_fewer_and_whether_that_is_reached() -> None:
    few = "\n".join(section([entry(CASES[0], 30, 2), entry(CASES[1], 30, 2)]))
    assert "They are 15.0 times fewer" in few
    assert "that is reached." in few
    assert "so good for 0 kernels" in few
    many = "\n".join(section([entry(CASES[0], 30, 10, gain=1 / GOOD), entry(CASES[1], 30, None)]))
    assert "They are 0.0 times fewer" in many
    assert "that is not reached." in many
    assert "more than 40" in many
    assert "so good for 1 kernels" in many
    assert section([{"case": CASES[0], "error": "none"}]) == []


def test_the_page_says_what_was_measured_of_each_commit() -> None:
    entries = [entry(CASES[0], 30, 2), entry(CASES[1], 30, 2), entry(CASES[2], 30, 2, commit="5")]
    lines = section(entries)
    assert "Measured on a CPU (znver4), AVX-512:" in lines
    assert sum("at commit 1234abcd; 2 CPUs" in line for line in lines) == 1
    assert sum("at commit 5; 2 CPUs" in line for line in lines) == 1


def test_the_blank_judge_knows_no_order(kernel: tuple[Kernel, frozenset[str]]) -> None:
    usual = kernel_after(kernel[0], choose(kernel[0], V3, kernel[1]))
    one, other = Blank(V3).judge([usual, kernel[0]])
    assert one.log_cycles == other.log_cycles
    assert not np.allclose(one.features, other.features)
