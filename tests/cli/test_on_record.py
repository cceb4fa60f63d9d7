"""What commands say of the record: where schedules and plans come from, and what they took."""

from __future__ import annotations

from pathlib import Path

import pytest

from rutc.driver.options import Options
from rutc.driver.plans.planning import RECORD, imported, planned
from rutc.driver.timing.plan_bench import PlanChange
from rutc.driver.timing.side_by_side import Ratio
from rutc.driver.tuning.plan_records import plan_task, realised, row_of_change, row_of_plan
from rutc.driver.tuning.tuning_records import NOT_BELIEVED, origin_of
from rutc.graph_opt import versions
from rutc.graph_opt.decide.neighbours import legal, neighbours
from rutc.report.explain import explain_model
from rutc.runtime.artifact import open_artifact
from rutc.tuner import choose
from rutc.tuner.database.database import Database
from tests.cli.conftest import Rutc
from tests.cli.records import MACHINE, another, put_on_record, subject_of

pytestmark = pytest.mark.usefixtures("database")


def manifest_of(library: Path) -> dict[str, object]:
    artifact = open_artifact(library)
    with artifact.file:
        return dict(artifact.manifest())


def twice_as_fast(path: Path, model: Path) -> None:
    """Puts a schedule of the second product on record, with the default one."""
    subject = subject_of(model, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    put_on_record(path, subject, [(usual, 100.0), (another(subject), 50.0)])


def test_all_commands_tell_of_a_schedule_on_record(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    twice_as_fast(database, wide)
    compiled = rutc("compile", wide, "-o", tmp_path / "net.so", "--no-verify")
    assert "schedules on record: 1 of 2 kernels" in compiled.stdout
    again = rutc("compile", wide, "-o", tmp_path / "net.so", "--no-verify", "--json").json
    assert again["recorded"] == 1
    listed = manifest_of(tmp_path / "net.so")["kernels"]
    assert isinstance(listed, list)
    (told,) = (k["records"][0] for k in listed if k["records"])
    assert told["ratio"] == pytest.approx(0.5)
    assert told["tried"] == 1
    shown = rutc("inspect", tmp_path / "net.so").stdout
    assert "schedules on record: 1 of 2 kernels" in shown
    assert "x2.00" in shown
    said = rutc("explain", wide, "second").stdout
    assert "schedule: on record, 2.00 times as fast as the usual one (2.00 to 2.00)" in said
    assert told["cpu"] in said
    assert told["date"] in said
    # The records have 0.5 ns for a cycle.
    assert "learned, 100 measured; of the default one" in said
    assert "learned, 200 measured" in said
    assert "2.00 times as fast" in rutc("explain", wide).stdout.replace("\n", " ")
    none = rutc("explain", wide, "second", "--db", "none").stdout
    assert "schedule: the default one\n" in none


def test_what_is_explained_is_what_is_compiled(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    twice_as_fast(database, wide)
    assert rutc("compile", wide, "-o", tmp_path / "net.so", "--no-verify").status == 0
    listed = manifest_of(tmp_path / "net.so")["kernels"]
    assert isinstance(listed, list)
    compiled = {k["name"]: k["schedule"] for k in listed}
    with_records = explain_model(wide, Options(db=str(database))).kernels
    assert {k.launch: "; ".join(k.schedule) for k in with_records} == compiled
    without = explain_model(wide).kernels
    assert {k.launch: "; ".join(k.schedule) for k in without} != compiled


@pytest.mark.parametrize(
    ("time", "note", "why"),
    [
        (120.0, "", "none is faster for sure"),
        (50.0, NOT_BELIEVED, "none is faster in a model"),
    ],
)
def test_why_the_default_schedule_stays_is_said(
    rutc: Rutc, wide: Path, database: Path, time: float, note: str, why: str
) -> None:
    subject = subject_of(wide, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    put_on_record(database, subject, [(usual, 100.0), (another(subject), time)], note)
    assert f"schedule: the default one; of 1 tried on {origin_of(MACHINE).cpu}" in (
        said := rutc("explain", wide, "second").stdout
    )
    assert why in said
    assert "learned, 200 measured\n" in said
    assert "nothing is on record" in rutc("explain", wide, "first").stdout


def test_a_search_that_tried_the_default_schedule_alone_is_told_so(
    rutc: Rutc, wide: Path, database: Path
) -> None:
    subject = subject_of(wide, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    put_on_record(database, subject, [(usual, 100.0)])
    said = rutc("explain", wide, "second").stdout
    assert f"the default one; no other one was tried on {origin_of(MACHINE).cpu}, " in said
    assert "learned, 200 measured\n" in said


def put_plan(database: Path, model: Path, high: float) -> None:
    """Puts another plan of a model on record, and that it was tried."""
    options = Options()
    graph = imported(model, options)
    usual = planned(versions(graph, MACHINE), MACHINE)[0]
    assert usual.assignment is not None
    first = realised(graph, usual.assignment, MACHINE)
    assert first is not None
    found = next(f for n in neighbours(first, types=False) if (f := legal(first, n)) is not None)
    task, origin, ratio = plan_task(graph, MACHINE, options), origin_of(MACHINE), 0.8
    took = Ratio(ratio, 0.79, high, 100.0)
    with Database.open(database) as db:
        change = PlanChange("another layout", found, frozenset(), frozenset())
        db.add(
            [
                row_of_change(task, origin, change, took, usual.assignment),
                row_of_plan(task, origin, found.assignment, took, usual.assignment),
            ],
            replace=True,
        )


def test_all_commands_tell_of_a_plan_on_record(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    put_plan(database, wide, 0.81)
    compiled = rutc("compile", wide, "-o", tmp_path / "net.so", "--no-verify")
    fast = (
        "plan: on record, 1.25 times as fast as the usual one (1.23 to 1.27), the best of 1 tried"
    )
    assert fast in compiled.stdout
    assert fast in rutc("inspect", tmp_path / "net.so").stdout
    said = rutc("explain", wide).stdout
    assert fast in said
    assert "of the usual one:" in said
    plan = manifest_of(tmp_path / "net.so")["plan"]
    assert isinstance(plan, dict)
    assert plan["from"] == RECORD
    assert plan["record"]["ratio"] == 0.8


def test_why_the_usual_plan_stays_is_said(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    put_plan(database, wide, 1.01)
    why = f"of 1 other decision tried on {origin_of(MACHINE).cpu}"
    compiled = rutc("compile", wide, "-o", tmp_path / "net.so", "--no-verify")
    assert f"plan: the usual one; {why}" in compiled.stdout
    assert why in rutc("explain", wide).stdout
    plain = rutc("explain", wide, "--db", "none").stdout
    assert plain.startswith("plan: the usual one\n")


def test_a_plan_on_record_comes_before_a_search_by_estimates(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    put_plan(database, wide, 0.81)
    how = ("--plan", "search", "--plan-time", "0")
    output = ("-o", tmp_path / "net.so", "--no-verify")
    assert "plan: on record, 1.25" in rutc("compile", wide, *output, *how).stdout
    recorded = manifest_of(tmp_path / "net.so")["plan"]
    assert isinstance(recorded, dict)
    assert recorded["from"] == RECORD
    # What is not taken is told, and what was searched for instead.
    put_plan(database, wide, 1.01)
    shown = rutc("explain", wide, *how).stdout
    compiled = rutc("compile", wide, *output, *how).stdout
    for text in (shown, compiled):
        assert "of 1 other decision tried on" in text
        assert "none is faster for sure" in text
        assert "search by estimates" in text
