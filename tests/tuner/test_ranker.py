"""What was learned of schedules: as its data say, the same as CatBoost's, and compiled by rutc."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rutc
from benchmarks import train
from benchmarks.learned_page import judged
from rutc.errors import InternalError
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.cost.estimate import fitted
from rutc.tuner.search.nest_features import NAMES, features
from rutc.tuner.search.ranker import LEARNED, Ranker, Trees
from tests.close import assert_close
from tests.machines import V4
from tests.tuner.test_nest_features import candidates

MOST_BYTES = 1 << 19


def steps(*leaves: float) -> Trees:
    """A tree that asks whether the first features are above 0, 1, .."""
    depth = len(leaves).bit_length() - 1
    places = np.arange(depth, dtype=np.uint8)[None]
    borders = np.arange(depth, dtype=np.float32)[None]
    return Trees(places, borders, np.array([leaves], np.float32), 0.0)


def ranker(*members: Trees, **provenance: object) -> Ranker:
    return Ranker(members, {"features": list(NAMES), "caution": 2.0, **provenance})


def rows(*first: float) -> np.ndarray:
    """Features of schedules that differ in the second one, for one estimate."""
    found = np.zeros((len(first), len(NAMES)))
    found[:, 1] = first
    return found


def test_bits_of_answers_tell_the_leaf() -> None:
    tree = steps(0, 1, 2, 3)
    found = tree(np.array([[0.0, 0.0], [0.5, 1.0], [0.0, 1.5], [1.0, 2.0]]))
    assert found.tolist() == [0, 1, 2, 3]


def test_without_trees_it_is_the_estimate() -> None:
    nothing = Trees(np.zeros((0, 0), np.uint8), np.zeros((0, 0)), np.zeros((0, 1)), 0.0)
    given = rows(1, 2, 3)
    given[:, 0] = 10, 11, 9
    cycles, spread = ranker(nothing).scores(given)
    assert cycles == pytest.approx(given[:, 0] * np.log(2))
    assert not spread.any()


def test_what_members_have_in_common_is_no_spread() -> None:
    one, other = steps(0.0, 0.0, -1.0, -1.0), steps(5.0, 5.0, 3.0, 3.0)
    cycles, spread = ranker(one, other).scores(rows(0, 2))
    assert cycles == pytest.approx([2.5, 1.0])
    assert spread == pytest.approx([0.0, 0.5])


def test_the_spread_is_of_noise_and_of_disagreement() -> None:
    one, other = steps(0.0, 0.0, -1.0, -1.0), steps(5.0, 5.0, 3.0, 3.0)
    found = Ranker((one, other), {}, noise=0.3, scale=0.8)
    assert found.scores(rows(0, 0, 2))[1] == pytest.approx([0.0, 0.3, 0.5])


def test_the_default_stays_where_members_disagree() -> None:
    one, other = steps(0.0, 0.0, -1.0, -1.0), steps(0.0, 0.0, 0.5, 0.5)
    found = ranker(one, other)
    assert found.choice(rows(0, 2)) == 0
    assert found.choice(rows(0, 2), caution=0.0) == 1
    assert ranker(one, one).choice(rows(0, 2)) == 1


def test_a_file_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    found = ranker(steps(0, 1, 2, 3), steps(3, 2, 1, 0))
    for name in ("one.npz", "other.npz"):
        found.save(tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()
    again = Ranker.load(tmp_path / "one.npz")
    given = rows(0, 2, 1)
    assert np.array_equal(again.scores(given), found.scores(given))
    assert again.provenance == found.provenance


def test_other_features_are_refused(tmp_path: Path) -> None:
    ranker(steps(0, 1), features=["loops"]).save(tmp_path / "old.npz")
    with pytest.raises(InternalError, match=r"benchmarks\.train"):
        Ranker.load(tmp_path / "old.npz")


def test_what_rutc_comes_with_is_small_and_of_these_estimates() -> None:
    found = Ranker.load()
    assert LEARNED.stat().st_size < MOST_BYTES
    told = found.provenance
    assert told["machines"]
    assert told["costs"] == asdict(fitted().costs), "python -m benchmarks.train"
    assert told["held_out"]["sources"]["order"] > 0.9
    assert told["held_out"]["processors"]["order"] > 0.85


def test_schedules_are_ordered() -> None:
    kernels = candidates(V4, 12)
    given = np.array([features(summarise(k, V4).regions, V4) for k in kernels])
    found = Ranker.load()
    cycles, spread = found.scores(given)
    assert np.abs(cycles - given[:, 0] * np.log(2)).max() < 1
    assert spread[0] == 0
    assert np.array_equal(found.scores(given[:3])[0], cycles[:3])
    assert 0 <= found.choice(given) < len(kernels)


def test_families_of_sources() -> None:
    assert train.family("light_resnet50") == train.family("resnet50") == "resnet"
    assert train.family("conv 3x3 56x56 64->64") == train.family("conv 1x1 7x7 2048->512") == "conv"
    assert train.family("QDQ conv 1x1 7x7 2048->512") == "QDQ conv"
    assert train.family("silero_vad_16k_sequence") == train.family("silero_vad") == "silero"


def test_parts_keep_families_together() -> None:
    names = np.array(list("aaaabbbccd"))
    assert train.parts(names, 2).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 0]


# -- with CatBoost ------------------------------------------------------------------------------
POINTS, FEATURES = 400, 7


def lessons() -> train.Lessons:
    """Kernels of five schedules, whose estimate lacks what the second feature says."""
    rng = np.random.default_rng(0)
    given = rng.normal(size=(POINTS, FEATURES))
    kernels = np.arange(POINTS) // 5
    names = np.array([f"family{k % 8}" for k in kernels])
    cycles = given[:, 0] * np.log(2) + np.where(given[:, 1] > 0, 0.4, 0.0) + 0.1 * (kernels % 3)
    same = np.array(["same"] * POINTS)
    defaults = np.arange(POINTS) % 5 == 0
    return train.Lessons(given, cycles, kernels, defaults, names, same, same, same, defaults)


@pytest.fixture(scope="module")
def model() -> Any:
    pytest.importorskip("catboost", reason="CatBoost is not installed")
    data = lessons()
    return train.model_of(data.features, data.cycles - data.estimates, data.weights, iterations=50)


def test_trees_say_what_catboost_does(model: Any) -> None:
    given = np.random.default_rng(1).normal(size=(100, FEATURES))
    assert np.abs(train.trees(model)(given) - model.predict(given)).max() < 1e-6


def test_the_same_lessons_teach_the_same(tmp_path: Path) -> None:
    pytest.importorskip("catboost", reason="CatBoost is not installed")
    data = lessons()
    for name in ("one.npz", "other.npz"):
        train.ranker_of(data, [], {}).save(tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()


def test_the_spread_is_how_far_off_predictions_are() -> None:
    data, rng = lessons(), np.random.default_rng(0)
    apart = np.where(data.defaults, 0.0, rng.uniform(0, 0.1, POINTS))
    off = np.where(data.defaults, 0.0, rng.normal(size=POINTS) * np.hypot(0.05, 3 * apart))
    noise, scale = train.spread_of(data, train.Said(data.cycles + off, apart))
    assert noise == pytest.approx(0.05, rel=0.4)
    assert scale == pytest.approx(3, rel=0.25)


def test_what_the_estimate_lacks_is_learned_for_other_families() -> None:
    pytest.importorskip("catboost", reason="CatBoost is not installed")
    data = lessons()
    said = train.held_out(data, train.parts(data.families, 2))
    every = np.arange(POINTS)
    usual = train.Said(data.estimates, np.zeros(POINTS))
    assert judged(data, said, every).order > judged(data, usual, every).order + 0.02
    assert judged(data, said, every).gain > 0


def test_regret_is_what_a_choice_loses_against_the_best() -> None:
    data, every, nothing = lessons(), np.arange(POINTS), np.zeros(POINTS)
    assert judged(data, train.Said(data.cycles, nothing), every).regret == 0
    default = train.Said(-data.defaults.astype(float), nothing)
    groups = list(data.groups(every))
    lost = [data.cycles[g][data.defaults[g]][0] - data.cycles[g].min() for g in groups]
    assert judged(data, default, every).regret == pytest.approx(np.expm1(np.mean(lost)))
    assert judged(data, default, every).regret > 0


def test_rutc_compiles_catboost_s_own_export(model: Any, tmp_path: Path) -> None:
    path, given = tmp_path / "model.onnx", np.random.default_rng(2).normal(size=(33, FEATURES))
    model.save_model(str(path), format="onnx")
    rutc.compile(path, tmp_path / "model.so")
    with rutc.load(tmp_path / "model.so") as session:
        found = session.run(None, {"features": given.astype(np.float32)})[0]
    assert_close(found.reshape(-1), train.trees(model)(given), reduction=64, dtype=np.float32)
