"""First proposals of a search, from records of kernels of other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from rutc.driver.timing.model_bench import Subject, Try, Usual
from rutc.driver.timing.trials import Outcome, Timing
from rutc.driver.tuning.schedule_search import SearchLimits, Tried, Tuning, kernel_after
from rutc.driver.tuning.tuning_records import origin_of, rows_of, seeds_in, task_of
from rutc.tuner.database.database import Database
from rutc.tuner.heuristic import spaces
from rutc.tuner.search.cost_model import CostModel
from rutc.tuner.search.search import Candidate, Search
from rutc.tuner.search.seeds import SEEDS, Seed, adapted, first_proposals, nearest, plain
from rutc.tuner.tiles.register_tile import RegisterTile
from tests.machines import V3
from tests.tuner.subjects import of_text

PRODUCT = """
graph "product"
dims i = {i}, j = {j}, k = {k}
%a : f32{{i,k}} = input "a" [i, k]
%b : f32{{k,j}} = input "b" [k, j]
%c : f32{{i,j}} = sum{{k}} %a[i, k] * %b[k, j]
output "c" [i, j] = %c
"""
SIZES = ((33, 96, 64), (48, 128, 64), (64, 64, 64), (24, 160, 32), (256, 512, 512))


def product(i: int, j: int, k: int) -> Subject:
    found = of_text(PRODUCT.format(i=i, j=j, k=k), frozenset({"b"}), Random(0))
    return Subject(found.kernel, found.free, V3)


def search_of(subject: Subject) -> Search:
    own = spaces(subject.kernel, V3, subject.constants)
    return Search(subject.kernel, own, CostModel(V3), kernel_after, Random(1))


def timing(cycles: float) -> Timing:
    return Timing(cycles, cycles, cycles, 1.0)


def put_on_record(database: Database, subject: Subject, gain: float = 0.5) -> Candidate:
    """Puts the default schedule of a kernel on record, and one that takes so much of its time."""
    search = search_of(subject)
    default = search.default
    assert default is not None
    best = next(
        c for c in iter(search.drawn, None) if c.text != default.text and c.template == "tiled"
    )
    for c, cycles in ((default, 1000.0), (best, 1000.0 * gain)):
        beside = None if c is default else {"model": 1000.0}
        outcome = Outcome("measured", model=timing(cycles))
        tried = Tried(subject, c, search.place(c), outcome, default, beside)  # type: ignore[arg-type]
        database.add(rows_of(tried, origin_of(V3)))
    return best


def test_values_become_what_json_holds() -> None:
    tile = RegisterTile("d0", 2, (("d1", 6),), 3.25)
    assert plain(tile) == {"vector": "d0", "vectors": 2, "rows": [["d1", 6]], "inside": []}
    assert plain((True, None, "x", (1, 2))) == [True, None, "x", [1, 2]]


@pytest.mark.parametrize(
    ("value", "axis", "found"),
    [
        (64, (1, 2, 4, 8, 16), 16),
        (3, (None, 4, 8), 4),
        (None, (4, None, 8), None),
        (True, (1, 0, True), True),
        ("d1", ("d0", "d1"), "d1"),
        (["d1", 6], (("d0", 6), ("d1", 2), ("d1", 5)), ("d1", 5)),
        ([1, 2], ((1,), (1, 2, 3), (1, 4)), (1, 4)),
    ],
)
def test_the_nearest_legal_value_is_taken(
    value: object, axis: tuple[object, ...], found: object
) -> None:
    point = {"here": value, "elsewhere": 1}
    assert adapted({"here": axis, "new": ("first", "second")}, point) == {  # type: ignore[arg-type]
        "here": found,
        "new": "first",
    }


def test_similar_kernels_come_first_and_other_templates_never() -> None:
    seeds = [
        Seed("far", "tiled", {}, (9.0, 1.0)),
        Seed("near", "tiled", {}, (2.0, 1.0)),
        Seed("other", "rows", {}, (2.0, 1.0)),
        Seed("of an older version", "tiled", {}, (2.0,)),
    ]
    found = nearest(seeds, (1.0, 1.0), frozenset({"tiled"}))
    assert [s.task for s in found] == ["near", "far"]
    assert nearest(seeds, (1.0, 1.0), frozenset({"scatter"})) == []


def test_what_was_fast_of_other_sizes_is_proposed(tmp_path: Path) -> None:
    *known, new = (product(*s) for s in SIZES)
    with Database.open(tmp_path / "records.sqlite") as database:
        best = [put_on_record(database, s) for s in known]
        seeds = seeds_in(database, V3)
        assert {s.task for s in seeds} == {task_of(s).key for s in known}
        # What is no faster is none.
        put_on_record(database, new, 0.99)
        assert len(seeds_in(database, V3)) == len(seeds)
    search = search_of(new)
    found = first_proposals(search, seeds)
    assert 0 < len(found) <= SEEDS
    for c in found:
        assert c.kernel == kernel_after(new.kernel, c.choice)
        search.observe(c, 1.0)
    assert first_proposals(search, seeds) == []
    # A kernel's own record is what it was.
    own = search_of(known[0])
    texts = {c.text for c in first_proposals(own, [s for s in seeds if s.point])}
    assert best[0].text in texts


class Fast:
    """A bench on which every schedule takes the same time; it notes what was tried."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.tried: list[Try] = []

    def usual(self) -> Mapping[Subject, Usual]:
        return {self.subject: Usual(timing(10_000.0), 1.0, 1.0)}

    def room(self, subject: Subject, taken: Mapping[Subject, int]) -> int:
        return 3 - sum(taken.values())

    def time(self, tries: Sequence[Try]) -> list[Outcome]:
        self.tried += tries
        return [Outcome("measured", model=timing(9_000.0)) for _ in tries]


def test_seeds_are_tried_before_all_that_is_searched_for(tmp_path: Path) -> None:
    *known, new = (product(*s) for s in SIZES)
    with Database.open(tmp_path / "records.sqlite") as database:
        for s in known:
            put_on_record(database, s)
        seeds = seeds_in(database, V3)
    expected = [c.choice for c in first_proposals(search_of(new), seeds)]
    bench = Fast(new)
    tuning = Tuning({new: "product"}, bench, lambda s: CostModel(V3), lambda t: None, seeds=seeds)
    list(tuning.run(SearchLimits(trials=len(expected))))
    assert [t.choice for t in bench.tried] == expected


def test_the_trials_of_a_round_are_kept_together() -> None:
    subject, kept = product(*SIZES[0]), list[list[bool]]()
    bench = Fast(subject)

    def keep(tried: Sequence[Tried]) -> None:
        kept.append([t.candidate is t.default for t in tried])
        # All of them were timed, and none is known to the search yet.
        assert sum(map(len, kept)) == 1 + len(bench.tried)

    tuning = Tuning({subject: "product"}, bench, lambda s: CostModel(V3), keep)
    list(tuning.run(SearchLimits(trials=6)))
    assert kept == [[True], [False] * 3, [False] * 3]
