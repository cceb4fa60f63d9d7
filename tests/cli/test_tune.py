"""`rutc tune`, and how `rutc compile` takes what is on record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import NoReturn, cast

import pytest

import rutc as package
from rutc.driver.options import Options
from rutc.driver.timing.model_bench import ModelBench, Pace, Subject
from rutc.driver.tuning.confirm import needed
from rutc.driver.tuning.schedule_search import SearchLimits
from rutc.driver.tuning.search_terms import Searched
from rutc.driver.tuning.tune_model import tune_model
from rutc.driver.tuning.tune_plan import PlanFound
from rutc.driver.tuning.tuning_records import (
    NOT_BELIEVED,
    RecordedSchedules,
    judged,
    origin_of,
    recorded,
    task_of,
)
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.report.tune_command import plan_line, seconds_of
from rutc.tensor_ir.steps import print_schedule
from rutc.tuner import choose
from rutc.tuner.choice import Choice
from rutc.tuner.database.database import Database
from tests.cli.conftest import Rutc
from tests.cli.records import another, others, put_on_record, subject_of, usual_of
from tests.signals import as_in_foreground

pytestmark = pytest.mark.usefixtures("database")


def schedules(library: Path) -> set[str]:
    with package.load(library, threads=1) as session:
        kernels = session.manifest["kernels"]
    assert isinstance(kernels, list)
    return {k["schedule"] for k in kernels}


def test_records_know_the_version_of_a_package_that_nobody_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Folders on the path of modules have no metadata."""

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata.Distribution, "from_name", missing)
    assert origin_of(native_target().machine).version == package.__version__


def test_a_search_keeps_what_it_measures(rutc: Rutc, wide: Path, database: Path) -> None:
    found = rutc("tune", wide, "--trials", "20", "--no-plans", "--json")
    assert found.status == 0, found.stderr
    said = found.json
    assert said["plan"] is None
    assert said["trials"] == said["failed"] or int(str(said["trials"])) >= 20
    assert said["database"] == str(database)
    kernels = said["kernels"]
    assert isinstance(kernels, list)
    # Kernels that take less than a microsecond are not searched.
    assert "second" in {k["name"] for k in kernels}
    assert all(k["best_cycles"] <= k["default_cycles"] for k in kernels)
    with Database.open(database, create=False) as db:
        trials = list(db.trials())
        again = db.count()
    assert {t.state for t in trials} == {"model"}
    # Those of default schedules are kept, too, and are none.
    assert again == int(str(said["trials"])) + len(kernels)
    assert sum(k["trials"] for k in kernels) == said["trials"]
    assert all("regions" in json.loads(t.summary) for t in trials)
    assert all(
        r.ratio is not None and r.place is not None
        for task in {t.task for t in trials}
        for r in recorded([t for t in trials if t.task == task])
    )
    # A second search knows what the first one measured.
    more = rutc("tune", wide, "--trials", "6")
    assert more.status == 0, more.stderr
    assert "trials in" in more.stdout
    assert "kept in" in more.stdout
    assert said["timed"] == "processor"
    assert "timed in runs of the model on one thread, by its processor time" in more.stdout
    with Database.open(database, create=False) as db:
        assert db.count() > again


def test_default_schedules_are_no_trials(rutc: Rutc, wide: Path, database: Path) -> None:
    """As many others are tried as are asked for, however many kernels there are."""
    found = rutc("tune", wide, "--trials", "1", "--no-plans", "--json")
    assert found.status == 0, found.stderr
    kernels = cast(list[dict[str, int]], found.json["kernels"])
    assert kernels
    assert (found.json["trials"], sum(k["trials"] for k in kernels)) == (1, 1)
    with Database.open(database, create=False) as db:
        assert db.count() == len(kernels) + 1


def test_a_search_says_that_it_had_no_time_for_schedules(
    rutc: Rutc, wide: Path, database: Path
) -> None:
    """As on a machine that others keep busy: it ends early, with what a first round would take."""
    del database
    found = rutc("tune", wide, "--time", "0.05s", "--no-plans")
    assert found.status == 0, found.stderr
    assert "no schedules were tried: a first round" in found.stdout
    told = rutc("tune", wide, "--time", "0.05s", "--no-plans", "--json").json
    assert isinstance(told["lacked_seconds"], float)
    assert told["lacked_seconds"] > 0.05
    enough = rutc("tune", wide, "--trials", "12", "--no-plans", "--json").json
    assert enough["lacked_seconds"] == 0


@pytest.mark.parametrize("seconds", [40.0, 150.0])
def test_a_busy_machine_tries_schedules_in_minutes(
    wide: Path, database: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """All that is confirmed would take longer than there is time, so that it has fewer runs."""
    slow = Pace(4.0, 4.0, 7.0, 0.07)
    monkeypatch.setattr(ModelBench, "pace", slow)
    assert needed(slow, None).seconds > 40.0
    limits = SearchLimits(seconds, trials=2)
    with Database.open(database) as db:
        found = tune_model(wide, db, limits, searched=Searched(plans=False))
    lacks = seconds < needed(slow, None).made + 2 * slow.round
    assert (found.trials, found.lacked > seconds) == (0 if lacks else 2, lacks)


def test_a_compilation_takes_the_fastest_on_record(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    subject = subject_of(wide, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    other = another(subject)
    put_on_record(database, subject, [(usual, 100.0), (other, 50.0)])
    assert rutc("compile", wide, "-o", tmp_path / "with.so").status == 0
    assert rutc("compile", wide, "-o", tmp_path / "without.so", "--db", "none").status == 0
    found, default = (schedules(tmp_path / f"{name}.so") for name in ("with", "without"))
    # One kernel has another schedule.
    assert len(found - default) == len(default - found) == 1


@pytest.mark.parametrize("case", ["slower", "hardly faster", "doubted", "once", "another default"])
def test_what_is_not_clearly_faster_is_left_alone(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path, case: str
) -> None:
    subject = subject_of(wide, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    other = another(subject)
    rows = [(usual, 100.0), (other, {"slower": 120.0, "hardly faster": 99.5}.get(case, 50.0))]
    note = NOT_BELIEVED if case == "doubted" else ""
    put_on_record(database, subject, rows, note, believed=case != "once")
    if case == "another default":
        with Database.open(database) as db:
            trials = [replace(t, summary=t.summary.replace(usual_of(t), "x")) for t in db.trials()]
            db.add(trials, replace=True)
    for name in ("net", "none"):
        more = ("--db", "none") if name == "none" else ()
        output = tmp_path / f"{name}.so"
        assert rutc("compile", wide, "-o", output, "--no-verify", *more).status == 0
    assert schedules(tmp_path / "net.so") == schedules(tmp_path / "none.so")


def test_the_runner_up_of_what_is_believed_or_doubted_is_not_taken(
    wide: Path, database: Path
) -> None:
    """It was timed once, so that it may be the faster of both by chance."""
    subject = subject_of(wide, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    first, second = others(subject, 2)
    put_on_record(database, subject, [(usual, 100.0), (second, 50.0)], believed=False)
    with Database.open(database) as db:
        schedules = RecordedSchedules(db, subject.machine)
        assert schedules.look_up(subject).choice is None
        put_on_record(database, subject, [(usual, 100.0), (first, 60.0)])
        assert schedules.look_up(subject).choice == first
        put_on_record(database, subject, [(usual, 100.0), (first, 60.0)], NOT_BELIEVED)
        assert schedules.look_up(subject).choice is None


def test_what_whole_runs_tell_is_kept(wide: Path, database: Path) -> None:
    subject, origin = subject_of(wide, "second"), origin_of(native_target().machine)
    usual = choose(subject.kernel, subject.machine, subject.constants)
    own = another(subject)
    put_on_record(database, subject, [(usual, 100.0), (own, 50.0)], believed=False)
    with Database.open(database) as db:
        for faster in (True, False, True):
            db.add(judged(own, subject, origin, db, faster=faster), replace=True)
            told = {r.text: r for r in recorded(db.trials(task_of(subject)))}[
                print_schedule(own.schedule)
            ]
            assert (told.believed, told.doubted) == (faster, not faster)
            assert (RecordedSchedules(db, subject.machine).look_up(subject).choice == own) == faster


def test_equal_records_make_equal_bytes(wide: Path, tmp_path: Path, database: Path) -> None:
    subject = subject_of(wide, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    put_on_record(database, subject, [(usual, 100.0), (another(subject), 50.0)])
    made = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RUTC_CACHE_MIB": "0"}
        script = Path(sys.executable).with_name("rutc")
        command = [script, "compile", wide, "-o", folder / "net.so", "--no-verify"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        made.append((folder / "net.so").read_bytes())
    assert made[0] == made[1]


def test_new_records_are_not_hidden_by_what_was_compiled_before(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    subject = subject_of(wide, "second")
    usual = choose(subject.kernel, subject.machine, subject.constants)
    other = another(subject)
    put_on_record(database, subject, [(usual, 100.0)])
    assert rutc("compile", wide, "-o", tmp_path / "net.so", "--no-verify").status == 0
    before = schedules(tmp_path / "net.so")
    put_on_record(database, subject, [(usual, 100.0), (other, 50.0)])
    assert rutc("compile", wide, "-o", tmp_path / "net.so", "--no-verify").status == 0
    assert schedules(tmp_path / "net.so") != before


def test_what_is_given_is_tried_first(wide: Path, database: Path) -> None:
    subject = subject_of(wide, "second")
    own = another(subject)

    def given(asked: Subject) -> tuple[Choice, ...]:
        return (own,) if asked == subject else ()

    with Database.open(database) as db:
        searched = Searched(plans=False, given=given)
        found = tune_model(wide, db, SearchLimits(trials=8), searched=searched)
        trials = list(db.trials(task_of(subject)))
    assert found.trials >= 8
    (mine,) = [t for t in trials if t.template == "given"]
    assert (mine.status, mine.schedule) == ("measured", print_schedule(own.schedule))
    # After the default one.
    assert trials.index(mine) == 1


def test_one_decision_and_several_are_told_apart(wide: Path) -> None:
    usual = decide(import_model(wide), native_target().machine)
    told = {n: plan_line(PlanFound(usual, n)) for n in (1, 2000)}
    assert told[1] == "1 other decision of the plan tried, none faster for sure"
    assert told[2000] == "2,000 other decisions of the plan tried, none faster for sure"


def test_an_interrupted_search_keeps_all_it_measured(wide: Path, database: Path) -> None:
    script = Path(sys.executable).with_name("rutc")
    with subprocess.Popen(
        [script, "tune", wide, "--time", "5m", "--no-plans", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_in_foreground,
    ) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.3)
            # The file is there before its tables are.
            with suppress(UserError), Database.open(database, create=False) as db:
                if db.count() >= 12:
                    break
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    said = json.loads(stdout)
    assert said["interrupted"]
    with Database.open(database, create=False) as db:
        assert db.count() >= 12
        # Default schedules are no trials. It may have been stopped between a trial and its count.
        assert 1 <= db.count() - said["trials"] <= len(said["kernels"]) + 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--time", "soon"], "is no duration"),
        (["--kernel", "third"], "no kernel's name has third in it"),
        (["--target", "aarch64"], "cannot be timed here"),
        (["--dim", "batch=2"], "batch"),
    ],
)
def test_what_cannot_be_searched_is_one_error(
    rutc: Rutc, wide: Path, database: Path, arguments: list[str], words: str
) -> None:
    found = rutc("tune", wide, "--trials", "1", *arguments)
    assert found.status == 2
    assert found.stderr.count("error:") == 1
    assert words in found.stderr
    assert not database.exists()


def test_a_search_without_a_trial_makes_a_database(rutc: Rutc, model: Path, database: Path) -> None:
    found = rutc("tune", model, "--trials", "1", "--json")
    assert found.status == 0, found.stderr
    with Database.open(database, create=False) as db:
        assert db.count() == found.json["trials"] == 0


def test_a_compilation_searches_first_if_asked(
    rutc: Rutc, wide: Path, tmp_path: Path, database: Path
) -> None:
    found = rutc("compile", wide, "-o", tmp_path / "net.so", "--tune", "9", "--no-verify")
    assert found.status == 0, found.stderr
    assert "trials in" in found.stderr
    with Database.open(database, create=False) as db:
        assert db.count() >= 9
    for until, words in (("0", "is no duration"), ("9x", "is no duration")):
        refused = rutc("compile", wide, "-o", tmp_path / "net.so", "--tune", until)
        assert refused.status == 2
        assert words in refused.stderr


def test_searches_are_for_what_is_compiled(
    rutc: Rutc, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compile --tune` and `tune` hand all that decides the plan to the search."""
    asked: list[Options] = []

    def search(
        model: Path, database: object, limits: object, options: Options, *others: object
    ) -> NoReturn:
        asked.append(options)
        raise UserError("enough")

    monkeypatch.setattr("rutc.driver.tuning.tune_model.tune_model", search)
    said = ["--exact-algorithms", "--keep-subnormals", "--precision", "int8", "--tolerance", "0.3"]
    for command in (["compile", "-o", tmp_path / "net.so", "--tune", "9"], ["tune"]):
        assert rutc(command[0], wide, *command[1:], *said).status == 2
    assert len(asked) == 2
    for options in asked:
        assert options.exact_algorithms
        assert options.keep_subnormals
        assert (options.precision, options.tolerance) == ("int8", 0.3)


def test_durations() -> None:
    assert [seconds_of(t) for t in ("60s", "5m", "1.5h", "90", "2min", ".5m")] == [
        *(60, 300, 5400, 90, 120, 30),
    ]
    for text in ("", "s", "5d", "-3s", "1e9s", "inf"):
        with pytest.raises(UserError, match="no duration"):
            seconds_of(text)
