"""`rutc db`, and what `rutc doctor` says of the database of tuning records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rutc.tuner.database.database import Database
from rutc.tuner.database.trial import Trial
from tests.cli.conftest import Outcome, Rutc
from tests.tuner.trials import ORIGIN, trial


@pytest.fixture(autouse=True)
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the database is if nobody says it."""
    monkeypatch.setenv("RUTC_DB", str(tmp_path / "default.sqlite"))
    return tmp_path / "default.sqlite"


def fill(path: Path, *trials: Trial) -> Path:
    with Database.open(path) as db:
        db.add(trials)
    return path


def refused(outcome: Outcome, words: str) -> None:
    assert outcome.status == 2, outcome.stderr
    assert outcome.stderr.count("error:") == 1
    assert words in outcome.stderr


@pytest.mark.parametrize("name", ["stats", "export", "import", "merge"])
def test_every_command_explains_itself(rutc: Rutc, name: str) -> None:
    assert name in rutc("db", "--help").stdout
    result = rutc("db", name, "--help")
    assert result.status == 0
    assert "--json" in result.stdout
    assert "--db" in result.stdout


def test_stats(rutc: Rutc, default: Path) -> None:
    odd = Trial(trial(0).task, ORIGIN, "\x1b[2J", status="crashed", error="x")
    fill(default, trial(0), trial(1), odd)
    found = rutc("db", "stats", "--json").json
    assert found["where"] == str(default)
    assert (found["tasks"], found["trials"], found["schema"]) == (1, 3, 2)
    assert found["statuses"] == {"measured": 2, "failed": 0, "crashed": 1, "timeout": 0}
    assert found["versions"] == {"0.1": 3}
    machine = {"cpu": ORIGIN.cpu, "processor": "znver3", "trials": 3, "last": "2026-11-25"}
    assert found["machines"] == [machine]
    shown = rutc("db", "stats").stdout
    assert "3 trials of 1 task," in shown
    assert "AMD EPYC 7B13" in shown
    assert rutc("db", "stats", "--db", f"sqlite:///{default}", "--json").json == found


def test_what_machines_are_called_does_not_steer_a_terminal(rutc: Rutc, default: Path) -> None:
    odd = "[red]\x1b[2Jcpu[/]"
    origin = type(ORIGIN)(odd, "p", (), {}, "1", "2026-11-25")
    fill(default, Trial(trial(0).task, origin, "", status="failed"))
    shown = rutc("db", "stats").stdout
    assert "\x1b" not in shown
    assert "[red]␛[2Jcpu[/]" in shown


def test_export_and_import(rutc: Rutc, default: Path, tmp_path: Path) -> None:
    fill(default, trial(0, 100, 10), trial(1))
    file = tmp_path / "records.jsonl.gz"
    assert rutc("db", "export", file, "--json").json == {"file": str(file), "trials": 2}
    other = tmp_path / "new" / "other.sqlite"
    assert "2 new trials" in rutc("db", "import", file, "--db", other).stdout
    again = rutc("db", "import", file, "--db", other, "--json")
    assert again.json == {"where": str(other), "new": 0, "replaced": 0, "kept": 2}
    replaced = rutc("db", "import", file, "--db", other, "--replace", "--json")
    assert replaced.json["replaced"] == 2
    once = file.read_bytes()
    assert rutc("db", "export", file, "--db", other).stdout == f"{file}: 2 trials\n"
    assert file.read_bytes() == once
    assert sorted(p.name for p in tmp_path.iterdir()) == ["default.sqlite", "new", file.name]


def test_merge(rutc: Rutc, default: Path, tmp_path: Path) -> None:
    fill(default, trial(0, 100, 10))
    other = fill(tmp_path / "other.sqlite", trial(0, 100, 5), trial(1))
    found = rutc("db", "merge", other, "--json").json
    assert found == {"where": str(default), "new": 1, "replaced": 1, "kept": 0}
    assert "0 new trials" in rutc("db", "merge", f"sqlite:///{other}").stdout


def test_what_cannot_be_done(rutc: Rutc, default: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl.gz"
    refused(rutc("db", "stats"), f"no database of tuning records at {default}")
    refused(rutc("db", "export", file), "no database of tuning records")
    refused(rutc("db", "import", file), f"cannot import {file}: No such file")
    refused(
        rutc("db", "merge", tmp_path / "none"), f"at {tmp_path / 'none'}: name one that there is"
    )
    assert not file.exists()
    fill(default, trial(0))
    refused(rutc("db", "merge", default), "cannot be merged into itself")
    refused(rutc("db", "export", tmp_path / "none" / "x.gz"), "cannot write")
    file.symlink_to("elsewhere")
    refused(rutc("db", "export", file), "only regular files are replaced")
    (tmp_path / "text").write_text("no database " * 100)
    result = rutc("db", "stats", "--db", tmp_path / "text", "--json")
    refused(result, "no database of SQLite")
    assert result.json["exit_status"] == 2
    refused(rutc("db", "stats", "--db", "nothing://x"), "no URL of a database")
    assert list(tmp_path.glob(".rutc-*")) == []


def test_doctor(rutc: Rutc, default: Path) -> None:
    assert rutc("doctor", "--json").json["tuning records"] == f"{default} (not there yet)"
    assert not default.exists()
    fill(default, trial(0), trial(1))
    found = rutc("doctor", "--json").json
    assert found["tuning records"] == f"{default}: 2 trials"
    assert str(found["sqlalchemy"])[0].isdigit()
    default.write_text("no database " * 100)
    found = rutc("doctor", "--json")
    assert found.status == 1
    assert "no database of SQLite" in str(found.json["problems"])


@pytest.mark.parametrize(
    "module", ["rutc.cli", "rutc.driver.api", "rutc.driver.compiler", "rutc.report.doctor"]
)
def test_a_database_that_is_not_used_is_not_loaded(module: str) -> None:
    code = f"import sys, {module}\nprint('sqlalchemy' in sys.modules, 'sqlite3' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.split() == ["False", "False"]
