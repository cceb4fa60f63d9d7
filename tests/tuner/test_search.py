"""The search: what it tries, what it learns from what was measured, and how it goes on later."""

import pickle
from collections.abc import Sequence
from math import exp, log
from random import Random
from statistics import median

import pytest

from rutc.driver.tuning.schedule_search import kernel_after
from rutc.tensor_ir.cost import estimate, summarise
from rutc.tensor_ir.kernel import Kernel, Kind
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Mark
from rutc.tuner import choose
from rutc.tuner.analysis import analyse
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.cost_model import CostModel
from rutc.tuner.search.search import (
    CHAINS,
    FIRST,
    Candidate,
    Corrected,
    Judged,
    Place,
    Search,
    text_of,
)
from tests.machines import V3
from tests.tuner.subjects import PRODUCT, of_text


@pytest.fixture(scope="module")
def kernel() -> tuple[Kernel, frozenset[str]]:
    """A product, and the constants that may be packed."""
    subject = of_text(PRODUCT, frozenset({"b"}), Random(0))
    return subject.kernel, subject.free


def search_of(kernel: tuple[Kernel, frozenset[str]], seed: int = 0) -> Search:
    """A search of all spaces, judged by estimates."""
    own = spaces(kernel[0], V3, kernel[1])
    return Search(kernel[0], own, CostModel(V3), kernel_after, Random(seed))


def truth(c: Candidate) -> float:
    """Cycles that are not what the model says: every step of a schedule costs something."""
    return exp(c.judged.log_cycles) * (1 + 0.03 * len(c.choice.schedule))


def tried(search: Search, batches: int) -> list[Candidate]:
    """All that is tried in so many batches."""
    found: list[Candidate] = []
    for _ in range(batches):
        for c in search.propose(6):
            search.observe(c, truth(c))
            found.append(c)
    return found


def test_nothing_is_tried_twice_and_all_of_it_fits(kernel: tuple[Kernel, frozenset[str]]) -> None:
    search = search_of(kernel)
    found = tried(search, 4)
    texts = [c.text for c in found]
    assert len(found) > 15
    assert len(set(texts)) == len(texts)
    assert all(c.kernel == kernel_after(kernel[0], c.choice) for c in found)


def test_equal_seeds_try_the_same(kernel: tuple[Kernel, frozenset[str]]) -> None:
    first, second, other = (search_of(kernel, seed) for seed in (3, 3, 4))
    a, b, c = ([x.text for x in tried(s, 2)] for s in (first, second, other))
    assert a == b != c


def test_a_search_finds_more_than_chance(kernel: tuple[Kernel, frozenset[str]]) -> None:
    search = search_of(kernel)
    tried(search, 6)
    assert search.best is not None
    rng, own = Random(1), spaces(kernel[0], V3, kernel[1])
    drawn = [s.draw(rng) for s in own for _ in range(36 // len(own))]
    judge = CostModel(V3)
    by_chance = [
        exp(judge.judge([kernel_after(kernel[0], d[1])])[0].log_cycles)
        * (1 + 0.03 * len(d[1].schedule))
        for d in drawn
        if d is not None
    ]
    assert exp(search.best[1]) <= min(by_chance)


def test_what_fails_is_never_the_best(kernel: tuple[Kernel, frozenset[str]]) -> None:
    search = search_of(kernel)
    first, *others = search.propose(4)
    search.observe(first, None)
    for c in others:
        search.observe(c, truth(c))
    assert search.best is not None
    assert search.best[0] is not first
    assert first.text not in {c.text for c in search.propose(6)}


def test_a_later_search_goes_on_where_the_first_ended(
    kernel: tuple[Kernel, frozenset[str]],
) -> None:
    first, second = search_of(kernel), search_of(kernel, 9)
    for c in tried(first, 2):
        assert second.recall(first.place(c), c.text, truth(c))
    assert second.best is not None
    assert first.best is not None
    assert second.best[0].text == first.best[0].text
    known = {c.text for c, _ in first.measured}
    assert known.isdisjoint(c.text for c in second.propose(6))


def test_what_is_on_record_of_other_spaces_is_left_alone(
    kernel: tuple[Kernel, frozenset[str]],
) -> None:
    search = search_of(kernel)
    (c,) = search.propose(1)
    place = search.place(c)
    assert not search.recall(Place(99, place.numbers), c.text, 1.0)
    assert not search.recall(Place(place.space, place.numbers[1:]), c.text, 1.0)
    assert not search.recall(Place(place.space, (10**6, *place.numbers[1:])), c.text, 1.0)
    assert not search.recall(place, "another schedule", 1.0)
    assert search.best is None


def test_many_are_judged_for_each_that_is_tried(kernel: tuple[Kernel, frozenset[str]]) -> None:
    """The first proposal is one of the best of them, though only the default was measured."""
    judged: list[Judged] = []

    class Noting(CostModel):
        def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
            found = super().judge(kernels)
            judged.extend(found)
            return found

    own = spaces(kernel[0], V3, kernel[1])
    search = Search(kernel[0], own, Noting(V3), kernel_after, Random(0))
    assert search.default is not None
    search.observe(search.default, truth(search.default))
    first = search.propose(1)
    assert len(judged) > FIRST // 2 + CHAINS
    better = sum(j.log_cycles < first[0].judged.log_cycles for j in judged)
    assert better <= len(judged) // 20


def test_chains_begin_at_what_the_model_likes_of_all_that_is_drawn(
    kernel: tuple[Kernel, frozenset[str]],
) -> None:
    search = search_of(kernel)
    assert search.default is not None
    search.observe(search.default, truth(search.default))
    met = [m.judged.log_cycles for m in search.met(search.chance())]
    # What chains come by is last: changes of those that are better than most that are drawn.
    assert median(met[-CHAINS:]) < median(met[: FIRST // 2])


def test_later_proposals_are_of_what_was_met_before_as_well(
    kernel: tuple[Kernel, frozenset[str]],
) -> None:
    """A point that the model likes is tried in the end, whenever it was drawn."""
    search = search_of(kernel)
    assert search.default is not None
    search.observe(search.default, truth(search.default))
    first = {m.text for m in search.met(Random(1))}
    later = []
    search.propose(1, search.met(Random(1)))
    for _ in range(12):
        (c,) = search.propose(1, ())
        search.observe(c, truth(c))
        later.append(c.text)
    assert set(later) <= first
    assert len(set(later)) == 12


def test_no_schedule_is_judged_twice_and_all_as_if_alone(
    kernel: tuple[Kernel, frozenset[str]],
) -> None:
    """What was met before is neither made nor judged again, and no number depends on that."""
    judged: list[Kernel] = []
    made: list[str] = []

    class Noting(CostModel):
        def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
            judged.extend(kernels)
            return super().judge(kernels)

    def noting(kernel: Kernel, choice: Choice) -> Kernel:
        found = kernel_after(kernel, choice)
        made.append(text_of(choice))
        return found

    own = spaces(kernel[0], V3, kernel[1])
    search = Search(kernel[0], own, Noting(V3), noting, Random(0))
    for _ in range(3):
        found = search.met(Random(1))
        search.propose(0, found)
    assert len(set(made)) == len(made) == len(judged) > FIRST // 2
    for m in found:
        space = search.spaces[m.space]
        (alone,) = CostModel(V3).judge([kernel_after(kernel[0], space.choice(m.point))])
        assert (m.judged.log_cycles, m.judged.features) == (alone.log_cycles, alone.features)


def test_schedules_that_make_the_same_are_one_trial(kernel: tuple[Kernel, frozenset[str]]) -> None:
    """Of those whose kernels are equal one is tried: here all are, and the default one was."""
    usual = kernel_after(kernel[0], choose(kernel[0], V3, kernel[1]))
    own = spaces(kernel[0], V3, kernel[1])
    search = Search(kernel[0], own, CostModel(V3), lambda kernel, choice: usual, Random(0))
    assert len(search.propose(6)) == 1
    assert search.default is not None
    search.observe(search.default, truth(search.default))
    assert search.propose(6) == []


def test_measurements_correct_the_model(kernel: tuple[Kernel, frozenset[str]]) -> None:
    """All is as slow again as the model says: what was not measured is corrected, too."""
    search = search_of(kernel)
    found = search.propose(12)
    known = [(c, c.judged.log_cycles + log(2)) for c in found[:8]]
    before, after = Corrected([]), Corrected(known)
    for c in found[8:]:
        ((mean, _),) = after.of([c.judged])
        assert abs(mean - c.judged.log_cycles - log(2)) < 0.05
        assert before.of([c.judged])[0][0] == c.judged.log_cycles
    ((_, spread),) = after.of([found[0].judged])
    (far,) = after.of([Judged(0.0, tuple(x + 100 for x in found[0].judged.features))])
    assert spread < 0.1 < far[1]
    assert after.of([]) == []


def test_the_model_corrects_the_estimate(kernel: tuple[Kernel, frozenset[str]]) -> None:
    for c in search_of(kernel).propose(4):
        said = estimate(summarise(c.kernel, V3), V3)
        assert c.judged.log_cycles != log(said.cycles)
        assert abs(c.judged.log_cycles - log(said.cycles)) < log(4)
    assert CostModel(V3).judge([]) == []


class Blind:
    """A model that knows nothing."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def judge(self, kernels: Sequence[Kernel]) -> list[Judged]:
        """All alike."""
        return [Judged(0.0, (1.0, 2.0)) for _ in kernels]


def test_fixed_parameters_stay(kernel: tuple[Kernel, frozenset[str]]) -> None:
    own = spaces(kernel[0], V3, kernel[1], fixed=("unroll", "prefetch"))
    search = Search(kernel[0], own, Blind(V3), kernel_after, Random(0))
    for c in tried(search, 3):
        if c.space.template.name == "tiled":
            assert c.point.unroll == c.space.default.point.unroll  # type: ignore[union-attr]
            assert c.point.prefetch == c.space.default.point.prefetch  # type: ignore[union-attr]


def test_places_tell_points(kernel: tuple[Kernel, frozenset[str]]) -> None:
    rng = Random(5)
    for space in spaces(kernel[0], V3, kernel[1]):
        for _ in range(20):
            drawn = space.draw(rng)
            assert drawn is not None
            point, choice = drawn
            again = space.numbered(space.numbers(point))
            assert again is not None
            assert space.choice(again) == choice
    assert analyse(*kernel).shared


def test_a_schedule_made_by_hand_is_a_candidate(kernel: tuple[Kernel, frozenset[str]]) -> None:
    search = search_of(kernel)
    own = Choice(())
    found = search.given(own)
    assert found is not None
    assert (found.template, found.space, search.place(found)) == ("given", None, None)
    search.observe(found, 1.0)
    assert search.best is not None
    assert search.best[0] is found
    # Chains begin at points only.
    assert all(c.space is not None for c in search.propose(6))
    broken = Choice((Mark("nothing", Kind.PARALLEL),))
    assert search.given(broken) is None


def test_points_may_be_judged_in_another_process(kernel: tuple[Kernel, frozenset[str]]) -> None:
    """What they met is sent; nothing changes in the search that it is of."""
    here, there = search_of(kernel), search_of(kernel)
    for _ in range(3):
        sent = pickle.dumps(there.met(there.chance()))
        found, alike = here.propose(6), there.propose(6, pickle.loads(sent))
        assert [c.text for c in found] == [c.text for c in alike]
        assert [c.judged for c in found] == [c.judged for c in alike]
        for search, candidates in ((here, found), (there, alike)):
            for c in candidates:
                search.observe(c, truth(c))
