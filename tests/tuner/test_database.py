"""The database of tuning records: what is stored, found, exchanged, and brought up to date."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from rutc.base.location import located
from rutc.emit.targets import x86
from rutc.errors import UserError
from rutc.tuner.database import database as module
from rutc.tuner.database import tables
from rutc.tuner.database import trial as records
from rutc.tuner.database.database import Database
from rutc.tuner.database.stored import Added
from rutc.tuner.database.trial import Origin, Task, Trial, digest, facts, like, plain_json
from tests.examples import examples
from tests.tuner.trials import ORIGIN, TASK, trial, trials

MEMORY = "sqlite://"
OTHER = Task("another kernel", (), "aarch64")


@pytest.fixture
def db() -> Iterator[Database]:
    with Database.open(MEMORY) as database:
        yield database


def exported(database: Database) -> bytes:
    file = io.BytesIO()
    database.export(file)
    return file.getvalue()


@given(st.lists(trials(), max_size=4))
@examples(40)
def test_what_is_stored_comes_back(given: list[Trial]) -> None:
    with Database.open(MEMORY) as db, Database.open(MEMORY) as copy:
        added = db.add(given)
        distinct = {t.key for t in given}
        assert added.new == len(distinct) == db.count()
        assert added.new + added.kept == len(given)
        found = list(db.trials())
        assert {t.key for t in found} == distinct
        copy.add(db.trials())
        assert exported(copy) == exported(db)


@given(st.lists(trials(), max_size=4))
@examples(25)
def test_a_file_has_all_that_is_stored(
    tmp_path_factory: pytest.TempPathFactory, given: list[Trial]
) -> None:
    path = tmp_path_factory.mktemp("export") / "records.jsonl.gz"
    with Database.open(MEMORY) as db, Database.open(MEMORY) as copy:
        db.add(given)
        path.write_bytes(exported(db))
        assert copy.load(path).new == db.count()
        assert set(copy.trials()) == set(db.trials())
        assert exported(copy) == path.read_bytes()


@given(st.text())
def test_zeros_are_escaped(value: str) -> None:
    column = tables.Escaped()
    stored = column.process_bind_param(value, None)  # type: ignore[arg-type]
    assert stored is not None
    assert "\0" not in stored
    assert column.process_result_value(stored, None) == value  # type: ignore[arg-type]


def test_origins_have_the_facts_of_a_machine() -> None:
    machine = x86.avx2()
    found = facts(machine)
    assert found.keys() == {f.name for f in fields(machine)} - {"coefficients"}
    origin = replace(ORIGIN, machine=found)
    assert origin.key == replace(ORIGIN, machine=dict(reversed(found.items()))).key
    assert origin.key != ORIGIN.key


def bad_values() -> list[Callable[[], object]]:
    return [
        lambda: trial(0, threads=0),
        lambda: trial(0, state="warm"),
        lambda: trial(0, status="lost"),
        lambda: trial(0, median_ns=None),
        lambda: trial(0, median_ns=float("nan")),
        lambda: trial(0, reference_ns=-1.0),
        lambda: trial(0, error="\ud800"),
        lambda: replace(trial(0), status="failed"),
        lambda: replace(trial(0, status="failed"), low_ns=1.0),
        lambda: replace(TASK, constants=("w", "a")),
        lambda: replace(ORIGIN, features=("b", "a")),
        lambda: replace(ORIGIN, machine={"l1": None}),
        lambda: replace(ORIGIN, machine={"l1": float("inf")}),
    ]


@pytest.mark.parametrize("make", bad_values())
def test_what_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_the_narrower_interval_stays(db: Database) -> None:
    assert db.add([trial(0, 100, 10)]) == Added(new=1)
    assert db.add([trial(0, 90, 20)]) == Added(kept=1)
    assert db.add([trial(0, 110, 5)]) == Added(replaced=1)
    assert db.add([trial(0, status="crashed", error="signal 11")]) == Added(kept=1)
    assert [t.median_ns for t in db.trials()] == [110]
    assert db.add([trial(0, 90, 20)], replace=True) == Added(replaced=1)
    assert [t.median_ns for t in db.trials()] == [90]


def test_what_was_measured_takes_the_place_of_what_failed(db: Database) -> None:
    db.add([trial(0, status="timeout", error="5 s")])
    assert db.add([trial(0, status="failed")]).kept == 1
    assert db.add([trial(0, 100, 10)]).replaced == 1
    (found,) = db.trials()
    assert (found.status, found.error) == ("measured", "")


def test_of_equal_ones_that_come_together_one_stays(db: Database) -> None:
    both = [trial(0, 100, 10), trial(0, 90, 5), trial(0, 80, 20)]
    assert db.add(both) == Added(new=1, kept=2)
    assert [t.median_ns for t in db.trials()] == [90]
    db.add(both, replace=True)
    assert [t.median_ns for t in db.trials()] == [80]


def test_what_tells_trials_apart(db: Database) -> None:
    one = trial(0)
    others = [
        replace(one, task=OTHER),
        replace(one, origin=replace(ORIGIN, date="2026-11-26")),
        replace(one, schedule="split(y, 99)"),
        replace(one, threads=2),
        replace(one, state="far"),
    ]
    assert db.add([one, *others]).new == 6
    assert db.add([replace(one, template="rows", summary="{}")]).kept == 1


def test_many_at_once(db: Database) -> None:
    many = [trial(i, task=Task(f"kernel {i % 700}", (), "v3")) for i in range(1100)]
    assert db.add(many).new == 1100
    assert db.add(many).kept == 1100
    assert set(db.trials()) == set(many)
    assert len(list(db.tasks())) == len(set(db.tasks())) == 700


def test_nothing_is_added_of_what_breaks_off(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.add([trial(0)])
    monkeypatch.setattr(module, "CHUNK", 10)

    def broken() -> Iterator[Trial]:
        yield from map(trial, range(1, 50))
        raise RuntimeError("lost")

    monkeypatch.setattr(module.exchange, "read", lambda path: broken())
    with pytest.raises(RuntimeError, match="lost"):
        db.load(Path())
    assert db.count() == 1
    assert len(list(db.tasks())) == 1


def test_trials_are_filtered(db: Database) -> None:
    far = trial(1, state="far", threads=4)
    failed = trial(2, status="failed", task=OTHER)
    later = trial(3, origin=replace(ORIGIN, date="2027-01-01"))
    db.add([trial(0), far, failed, later])
    assert set(db.trials(TASK)) == {trial(0), far, later}
    assert set(db.trials(OTHER)) == {failed}
    assert set(db.trials(Task("none", (), ""))) == set()
    assert set(db.trials(origin=later.origin)) == {later}
    assert set(db.trials(TASK, ORIGIN, state="near", threads=1)) == {trial(0)}
    assert set(db.trials(status="failed")) == {failed}


def test_trials_may_be_added_while_others_are_read(tmp_path: Path) -> None:
    with Database.open(tmp_path / "t.sqlite") as db:
        db.add(map(trial, range(1200)))
        for number, found in enumerate(db.trials()):
            if number < 1200:
                db.add([replace(found, threads=2)] if number % 400 == 0 else [])
        assert db.count() == 1203


def _elsewhere(cpu: str, processor: str, *features: str) -> Origin:
    return replace(ORIGIN, cpu=cpu, processor=processor, features=features)


def test_the_best_of_the_nearest_machine(db: Database) -> None:
    here = like(ORIGIN)
    assert db.best(TASK, here) is None
    foreign = trial(0, 6, origin=_elsewhere("Xeon", "skylake", "avx2", "avx512f", "fma"))
    relative = trial(1, 10, origin=_elsewhere("Core", "haswell", "avx2", "fma"))
    sibling = trial(2, 20, origin=_elsewhere("AMD Ryzen", "znver3", "avx2", "fma"))
    own = [trial(3, 40), trial(4, 30), trial(5, 35, origin=replace(ORIGIN, date="2027-01-01"))]
    for more, best in (([foreign], None), ([relative], relative), ([sibling], sibling)):
        db.add(more)
        assert db.best(TASK, here) == best
    db.add(own)
    assert db.best(TASK, here) == own[1]
    assert db.best(OTHER, here) is None
    assert db.best(TASK, here, threads=2) is None
    assert db.best(TASK, here, state="far") is None
    # Features that a target does not use make no difference.
    relevant = like(ORIGIN, frozenset(["avx2", "fma"]))
    assert [relevant(t.origin) for t in (foreign, relative, sibling, own[0])] == [2, 2, 1, 0]


def test_what_was_not_measured_is_never_best(db: Database) -> None:
    db.add([trial(0, status=status) for status in ("failed", "crashed", "timeout")])
    assert db.best(TASK, like(ORIGIN)) is None


def test_equal_digests_are_no_equal_texts(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "digest", lambda *texts: "0" * 64)
    others = [trial(0, 50, task=OTHER), trial(1, 60, task=OTHER)]
    many = [trial(0), trial(1), *others, trial(0, origin=replace(ORIGIN, date="2027"))]
    assert db.add(many[:1]).new == 1
    assert db.add(many).new == 4
    assert db.add(many).kept == 5
    assert set(db.tasks()) == {TASK, OTHER}
    assert sorted(t.schedule for t in db.trials(OTHER)) == [t.schedule for t in others]
    best = db.best(OTHER, like(ORIGIN))
    assert best is not None
    assert best.median_ns == 50
    assert db.best(Task("unknown", (), ""), like(ORIGIN)) is None


def test_stats(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    later = replace(ORIGIN, date="2027-01-01", version="0.2")
    arm = replace(ORIGIN, cpu="Neoverse", processor="neoverse-v1")
    with Database.open(path) as db:
        assert db.stats().trials == 0
        db.add([trial(0), trial(1, origin=later), trial(2, origin=arm, status="crashed")])
        db.add([trial(0, task=OTHER)])
        found = db.stats()
    assert (found.where, found.schema, found.tasks, found.trials) == (str(path), 2, 2, 4)
    assert dict(found.statuses) == {"measured": 3, "failed": 0, "crashed": 1, "timeout": 0}
    assert [(m.cpu, m.processor, m.trials, m.last) for m in found.machines] == [
        ("AMD EPYC 7B13", "znver3", 3, "2027-01-01"),
        ("Neoverse", "neoverse-v1", 1, "2026-11-25"),
    ]
    assert found.versions == (("0.1", 3), ("0.2", 1))
    assert found.bytes is not None
    assert found.bytes > 0


def test_an_export_does_not_depend_on_the_order(tmp_path: Path) -> None:
    many = [trial(i, task=(TASK, OTHER)[i % 2], threads=1 + i % 3) for i in range(30)]
    with Database.open(MEMORY) as one, Database.open(tmp_path / "t.sqlite") as other:
        one.add(many)
        for number in reversed(range(30)):
            other.add([many[number]])
        assert exported(one) == exported(other)
    lines = [json.loads(line) for line in gzip.decompress(exported_of(many)).splitlines()]
    assert lines[0] == {"rutc": "tuning records", "format": 2}
    assert [next(iter(line)) for line in lines[1:4]] == ["task", "origin", "trial"]


def exported_of(many: list[Trial]) -> bytes:
    with Database.open(MEMORY) as db:
        db.add(many)
        return exported(db)


def test_merging(tmp_path: Path) -> None:
    one, other = tmp_path / "one.sqlite", tmp_path / "other.sqlite"
    with Database.open(one) as db:
        db.add([trial(0, 100, 10), trial(1)])
    with Database.open(other) as db:
        db.add([trial(0, 90, 5), trial(2)])
    with Database.open(one) as db:
        assert db.merge(other) == Added(new=1, replaced=1)
        assert db.merge(f"sqlite:///{other}") == Added(kept=2)
        assert db.count() == 3
        (tmp_path / "link").symlink_to(one)
        with pytest.raises(UserError, match="merged into itself"):
            db.merge(tmp_path / "link")
        with pytest.raises(UserError, match="no database of tuning records"):
            db.merge(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


HEADER = '{"rutc":"tuning records","format":2}\n'
GOOD = gzip.decompress(exported_of([trial(0)])).decode()


def _before(packing: object, summary: str = "") -> bytes:
    """What an export had when constants were packed beside the schedule, in format 1."""
    head, *lines, last, _ = GOOD.split("\n")
    record = json.loads(last)
    record["trial"]["schedule"] = "split(y, 1)"
    record["trial"]["packing"] = {"w": packing}
    record["trial"]["summary"] = summary
    return "\n".join([head.replace("2", "1"), *lines, json.dumps(record), ""]).encode()


PACKING = [["k", "n"], [["n", 16], ["k", 4]]]
"""That of `trial(0)`."""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\x1f\x8b", "damaged or cut off"),
        (gzip.compress(GOOD.encode(), mtime=0)[:-20], "damaged or cut off"),
        (b"\xff\xfe", "line 1 is no tuning record"),
        (b"[1]\n", "line 1 is no tuning record: it is no object"),
        (b'{"a":1}\n', "does not begin as an export does"),
        (b'{"rutc":"tuning records","format":3}\n', "of a newer rutc: update rutc"),
        (f"{HEADER}nonsense\n".encode(), "line 2 is no tuning record"),
        (f'{HEADER}{{"trail":{{}}}}\n'.encode(), "neither a task, an origin nor a trial"),
        (f'{HEADER}{{"trial":{{"origin":0}}}}\n'.encode(), "does not come before it"),
        (f"{HEADER}{'[' * 100_000}\n".encode(), "line 2 is no tuning record"),
        (GOOD.replace("measured", "guessed").encode(), "there is no state"),
        (GOOD.replace('"threads":1', '"threads":true').encode(), "threads is no whole number"),
        (GOOD.replace('"median_ns":100.0', '"median_ns":NaN').encode(), "a time cannot be nan"),
        (GOOD.replace('"median_ns":100.0', '"median_ns":"1"').encode(), "median_ns is no number"),
        (_before([["k", "n"], [["n", 16, 1]]]), "the packing is none"),
        (_before([["k", "n"], [["n", True]]]), "the packing is none"),
        (_before(["k", []]), "the packing is none"),
        (_before([["k", 1], []]), "the packing is none"),
        (GOOD.replace('"format":2', '"format":1').encode(), "the packing is none"),
        (GOOD.replace('"l1":32768', '"l1":null').encode(), "a machine's l1 is no fact"),
        (GOOD.replace('"avx2","fma"', '"fma","avx2"').encode(), "features must be sorted"),
        (GOOD.replace("znver3", "\\ud800").encode(), "line 3 is no tuning record"),
    ],
)
def test_files_that_are_no_exports(
    tmp_path: Path, db: Database, content: bytes, words: str
) -> None:
    assert content != GOOD.encode()
    path = tmp_path / "records"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as raised:
        db.load(path)
    assert "nothing of it was stored" in str(raised.value)
    assert db.count() == 0
    assert list(db.tasks()) == []


def test_a_plain_file_is_read_too(tmp_path: Path, db: Database) -> None:
    (tmp_path / "records").write_text(GOOD)
    assert db.load(tmp_path / "records").new == 1
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="cannot import"):
            db.load(missing)


def test_files_of_the_first_format_are_read(tmp_path: Path, db: Database) -> None:
    before = digest(f"split(y, 1) {plain_json({'w': PACKING})}")
    content = _before(PACKING, json.dumps({"default": before}))
    (tmp_path / "records").write_bytes(content)
    assert db.load(tmp_path / "records").new == 1
    (found,) = db.trials()
    assert found == replace(trial(0), summary=found.summary)
    assert json.loads(found.summary) == {"default": digest(found.schedule)}


def test_tables_of_the_first_version_become_todays(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    usual = trial(0)
    said, before = (
        json.dumps({"default": digest(text)}, separators=(",", ":"))
        for text in (usual.schedule, f"split(y, 1) {plain_json({'w': PACKING})}")
    )
    with Database.open(path) as db:
        others = [trial(2, schedule="split(y, 3)"), trial(3, schedule="", summary="none")]
        db.add([usual, trial(1, summary=said), *others])
        there = set(db.trials())
    packing = json.dumps({"w": PACKING})
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE tuning_trial ADD COLUMN packing TEXT DEFAULT '{}'")
        pack = "pack(w, [k, n], [[n, 16], [k, 4]]); "
        connection.execute(
            "UPDATE tuning_trial SET packing = ?, schedule = replace(schedule, ?, ''), "
            "digest = 'that of before' || id WHERE schedule LIKE 'pack%'",
            (packing, pack),
        )
        old = tables.Compressed().process_bind_param(before, None)  # type: ignore[arg-type]
        new = tables.Compressed().process_bind_param(said, None)  # type: ignore[arg-type]
        changed = connection.execute(
            "UPDATE tuning_trial SET summary = ? WHERE summary = ?", (old, new)
        )
        assert changed.rowcount == 1
        connection.execute("UPDATE tuning_schema SET version = 1")
    connection.close()
    with Database.open(path) as db:
        found = set(db.trials())
        assert found == there
        assert {t.summary for t in found} == {t.summary for t in there} >= {said}
        assert db.add(there).kept == 4


def _set_version(path: Path, version: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tuning_schema SET version = ?", (version,))
    connection.close()


def test_newer_tables_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with Database.open(path) as db:
        db.add([])
    for version, words in ((3, "made by a newer rutc.* Update rutc"), (0, "does not say")):
        _set_version(path, version)
        for create in (True, False):
            with pytest.raises(UserError, match=words):
                Database.open(path, create=create)


def test_older_tables_become_todays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.sqlite"
    with Database.open(path) as db:
        db.add([trial(0)])

    def older(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE tuning_trial ADD COLUMN noise FLOAT"))

    def broken(connection: Connection) -> None:
        older(connection)
        raise UserError("no")

    monkeypatch.setattr(tables, "VERSION", 4)
    monkeypatch.setattr(tables, "MIGRATIONS", {2: lambda c: None, 3: broken})
    with pytest.raises(UserError, match="no"):
        Database.open(path)
    monkeypatch.setattr(tables, "MIGRATIONS", {2: older, 3: lambda c: None})
    with Database.open(path) as db:
        assert list(db.trials()) == [trial(0)]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version FROM tuning_schema").fetchall() == [(4,)]
        assert connection.execute("SELECT noise FROM tuning_trial").fetchall() == [(None,)]
    connection.close()


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUTC_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert located().path == tmp_path / "data" / "rutc" / "tuning.sqlite"
    with Database.open() as db:
        db.add([trial(0)])
    assert (tmp_path / "data" / "rutc" / "tuning.sqlite").exists()
    monkeypatch.setenv("RUTC_DB", str(tmp_path / "set.sqlite"))
    assert located().path == tmp_path / "set.sqlite"
    assert located("x.sqlite").path == located("sqlite:///x.sqlite").path == Path("x.sqlite")
    assert located("sqlite:////x.sqlite").path == Path("/x.sqlite")
    assert located("sqlite+pysqlite://").path is None
    shown = located("postgresql://me:a@b:c@host/db?password=secret&x=1")
    assert str(shown) == "postgresql://me:***@host/db?password=***&x=1"


@pytest.mark.parametrize("name", ["with space.sqlite", "a%20?b#c&d.sqlite", "ü\udc80.sqlite"])
def test_names_of_files(tmp_path: Path, name: str) -> None:
    with Database.open(tmp_path / name) as db:
        db.add([trial(0)])
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with Database.open(tmp_path / name, create=False) as db:
        assert db.count() == 1
