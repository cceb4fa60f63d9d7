"""A short run of damaged models, another one every day, and what it is made of.

The long run is `python -m tests.fuzz --mutations 100000` (docs/fuzzing.md).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep

import numpy as np
import onnx
import pytest

import tests.fuzz.mutants as module
from rutc.errors import UserError
from rutc.importer import import_model
from tests.fuzz.mutants import Mutants, Outcome, Subject, attempt, by_command_line, campaign
from tests.fuzz.mutate import CHANGES, WIRE, mutant, pool_of
from tests.fuzz.seeds import seeds
from tests.sampling import SAMPLE
from tests.signals import crash

CASES = 300
"""Damaged models of a date; one in so many of `PARTS` is tried where not everything runs."""
PARTS = 3
HELD = 4 << 30


@pytest.fixture(scope="module")
def mutants() -> Mutants:
    return Mutants(SAMPLE.date.toordinal())


def test_there_are_30_models() -> None:
    assert len(seeds()) == 30


@pytest.mark.parametrize("name", seeds())
def test_the_models_themselves_are_imported(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(seeds()[name])
    import_model(tmp_path / "model.onnx")


def test_a_day_of_mutants(mutants: Mutants) -> None:
    print(f"again: python -m tests.fuzz --mutations {CASES} --seed {mutants.seed}")
    cases = SAMPLE.share(range(CASES), PARTS, "mutants")
    result = campaign(mutants, cases)
    assert not result.findings, "\n".join(f"{n}: {o}" for n, o in result.findings.values())
    assert result.cases == len(cases)
    assert result.outcomes["compiled"] > len(cases) / 10
    assert result.outcomes["refused"] > len(cases) / 10


def test_a_number_is_the_same_mutant_every_time(mutants: Mutants) -> None:
    again = Mutants(mutants.seed)
    assert [mutants.model(n) for n in range(60)] == [again.model(n) for n in range(60)]
    assert len({mutants.model(n) for n in range(60)}) > 50


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_change_changes_models(change: Callable[..., None]) -> None:
    pool = pool_of(list(seeds().values()))
    different = 0
    for name, data in seeds().items():
        model = onnx.ModelProto.FromString(data)
        change(model, Random(name), pool)
        different += model.SerializeToString() != data
    assert different > 1


@pytest.mark.parametrize("change", WIRE, ids=lambda change: change.__name__)
def test_each_change_changes_bytes(change: Callable[..., bytes]) -> None:
    different = sum(change(data, Random(name)) != data for name, data in seeds().items())
    assert different > 20


def test_names_that_are_no_text_are_made() -> None:
    pool = pool_of(list(seeds().values()))
    made = [mutant(seeds()["block"], Random(str(n)), pool) for n in range(400)]
    assert any(b"\xff\xc3\x28\xfe" in m for m in made)


def _killed(path: Path) -> None:
    crash()


def _endless(path: Path) -> None:
    while True:
        pass


def _large(path: Path) -> None:
    np.ones(HELD, np.uint8)


def _wrong(path: Path) -> None:
    raise KeyError("x")


def _unclear(path: Path) -> None:
    raise UserError("'NoneType' object is not iterable: KeyError('x')")


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (_killed, "crash"),
        (_endless, "hang"),
        (_large, "memory"),
        (_wrong, "error"),
        (_unclear, "message"),
    ],
)
def test_what_breaks_is_found(
    monkeypatch: pytest.MonkeyPatch, mutants: Mutants, broken: object, kind: str
) -> None:
    monkeypatch.setattr(module, "import_model", broken)
    monkeypatch.setattr(mutants, "is_complete", lambda number: False)
    subject = Subject(mutants, limit_s=1.0)
    found = subject.outcome(0)
    subject.close()
    assert (found.kind, found.stage) == (kind, "import")
    assert not found.fine


def test_a_process_that_sleeps_hangs(monkeypatch: pytest.MonkeyPatch, mutants: Mutants) -> None:
    monkeypatch.setattr(module, "import_model", lambda path: sleep(60))
    monkeypatch.setattr(module, "PATIENCE", 1)
    monkeypatch.setattr(mutants, "is_complete", lambda number: False)
    subject = Subject(mutants, limit_s=1.0)
    assert subject.outcome(0).kind == "hang"
    subject.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.2)
    monkeypatch.setattr(module, "PATIENCE", 300)


@pytest.mark.usefixtures("short")
def test_the_command_line_says_that_a_limit_is_reached() -> None:
    found = by_command_line(seeds()["digits"], Outcome("hang", "import", "more than 0.2 s"))
    assert found.kind == "limited"


def test_a_whole_model_is_verified(tmp_path: Path) -> None:
    assert attempt(seeds()["sparse"], tmp_path, None, complete=True) == Outcome("verified")
    assert attempt(seeds()["sparse"], tmp_path, None, complete=False) == Outcome("compiled")
    assert attempt(b"\0", tmp_path, None, complete=False).kind == "refused"
