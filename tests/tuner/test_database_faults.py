"""The database of tuning records among several writers, killed ones, and what cannot be used."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rutc.errors import UserError
from rutc.tuner.database import engine
from rutc.tuner.database.database import Database
from rutc.tuner.database.trial import Task, Trial
from tests.tuner.trials import FORK, NOBODY, TASK, elsewhere, trial

ROUNDS = 20
BATCH = 12


def batch(number: int, size: int = BATCH) -> list[Trial]:
    """The trials of a task of their own, whose text does not compress."""
    text = random.Random(number).randbytes(2000).hex()
    return [trial(i, task=Task(f"{number} {text}", (), "v3")) for i in range(size)]


def counts(db: Database) -> dict[int, int]:
    """Batch -> how many of its trials there are."""
    found: dict[int, int] = {}
    for one in db.trials():
        number = int(one.task.kernel.split()[0])
        found[number] = found.get(number, 0) + 1
    return found


def write_until_killed(where: str | Path, first: int, pipe: int) -> None:
    """Adds batch after batch, and tells the number of each that is added."""
    with Database.open(where) as db:
        number = first
        while True:
            db.add(batch(number))
            os.write(pipe, struct.pack("i", number))
            number += 1


def killed_writers(where: str | Path, rounds: int) -> set[int]:
    """Starts writers and kills them at random moments; the numbers of batches that were added."""
    told: set[int] = set()
    rng = random.Random()
    for number in range(rounds):
        reader, writer = os.pipe()
        process = FORK.Process(target=write_until_killed, args=(where, number * 1000, writer))
        process.start()
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            # Half of them are killed early, perhaps while they open it. An addition takes some ms.
            data = pipe.read(4) if number % 2 else b""
            time.sleep(rng.random() * 0.05)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            data += pipe.read()
        told |= {n for (n,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])}
    return told


def test_killed_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    told = killed_writers(path, ROUNDS)
    assert len(told) >= ROUNDS // 2
    with Database.open(path) as db:
        found = counts(db)
        assert told <= found.keys()
        assert set(found.values()) == {BATCH}
        db.add(batch(-1))
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def write_the_same(where: str | Path, seed: int) -> None:
    rng = random.Random(seed)
    numbers = list(range(60))
    rng.shuffle(numbers)
    with Database.open(where) as db:
        for first in range(0, 60, 10):
            db.add([trial(n, 100 + seed, 10 + (n + seed) % 4) for n in numbers[first : first + 10]])


def check_writers_of_the_same(where: str | Path) -> None:
    """Several processes make a database and write equal trials to it; the narrowest stay."""
    writers = [FORK.Process(target=write_the_same, args=(where, seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    with Database.open(where) as db:
        found = list(db.trials())
        assert len(found) == len({t.key for t in found}) == 60
        assert {t.interval_ns for t in found} == {10}
        assert list(db.tasks()) == [TASK]


def test_several_processes_write_the_same(tmp_path: Path) -> None:
    check_writers_of_the_same(tmp_path / "t.sqlite")


def test_a_forked_process_may_use_what_is_open(tmp_path: Path) -> None:
    with Database.open(tmp_path / "t.sqlite") as db:
        db.add([trial(0)])
        assert elsewhere(lambda: (db.add([trial(1)]).new, db.count())) == (1, 2)
        db.add([trial(2)])
        assert db.count() == 3


def test_waiting_for_others_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.sqlite"
    add_one(path)
    monkeypatch.setattr(engine, "PATIENCE_S", 0.2)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Database.open(path) as db:
        with pytest.raises(UserError, match="others have been writing to it for too long"):
            db.add([trial(1)])
        assert db.count() == 1
        holder.execute("ROLLBACK")
        db.add([trial(1)])
    holder.close()


def fill(path: Path) -> list[int]:
    """Adds batches until there is no space; those that were added."""
    done: list[int] = []

    def add(db: Database) -> None:
        for number in range(1000):
            db.add(batch(number))
            done.append(number)

    with Database.open(path) as db:
        with pytest.raises(UserError, match="no space left"):
            add(db)
        assert set(counts(db)) == set(done)
    return done


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for 600 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command `mount`")
    if done.returncode != 0:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "t.sqlite"
    done = fill(path)
    assert len(done) > 5
    with Database.open(path) as db:
        assert counts(db) == dict.fromkeys(done, BATCH)
    with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(UserError):
        add_one(small_disk / "new.sqlite")


def test_a_limit_of_a_files_size(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"

    def limited() -> list[int]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        return fill(path)

    done = elsewhere(limited)
    assert len(done) > 5
    with Database.open(path) as db:
        assert counts(db) == dict.fromkeys(done, BATCH)
        db.add(batch(2000))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users may look into, and nobody but this one write to."""
    folder = Path(tempfile.mkdtemp(prefix="rutc-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_reader(work: Callable[[], object]) -> object:
    """What a function returns where this user's files may only be read."""
    return elsewhere(work, NOBODY if os.geteuid() == 0 else None)


def protect(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)


def add_one(path: Path) -> object:
    with Database.open(path) as db:
        return db.add([trial(5)])


def read_all(path: Path) -> object:
    with Database.open(path, create=False) as db:
        return db.count(), len(list(db.trials())), db.stats().trials


def test_a_folder_that_may_only_be_read(open_folder: Path) -> None:
    path = open_folder / "t.sqlite"
    with Database.open(path) as db:
        db.add(batch(0))
    before = path.read_bytes()
    protect(open_folder)
    assert as_reader(lambda: read_all(path)) == (BATCH, BATCH, BATCH)
    with pytest.raises(UserError, match="may not be written"):
        as_reader(lambda: add_one(path))
    for missing in (open_folder / "new.sqlite", open_folder / "more" / "new.sqlite"):
        with pytest.raises(UserError, match=r"cannot (use|make)"):
            as_reader(lambda path=missing: add_one(path))  # type: ignore[misc]
    assert path.read_bytes() == before
    assert [p.name for p in open_folder.iterdir()] == ["t.sqlite"]
    open_folder.chmod(0o755)


def test_what_another_user_writes_to_is_read(open_folder: Path) -> None:
    path = open_folder / "t.sqlite"
    with Database.open(path) as db:
        db.add(batch(0))
        assert (open_folder / "t.sqlite-wal").stat().st_size > 0
        assert as_reader(lambda: read_all(path)) == (BATCH, BATCH, BATCH)
        db.add(batch(1))
        assert as_reader(lambda: read_all(path)) == (2 * BATCH, 2 * BATCH, 2 * BATCH)


def test_a_file_that_may_not_be_read(open_folder: Path) -> None:
    path = open_folder / "t.sqlite"
    add_one(path)
    path.chmod(0)
    if os.geteuid() != 0:
        pytest.skip("only the super-user can be another one")
    with pytest.raises(UserError, match="cannot use"):
        as_reader(lambda: read_all(path))


def _text(path: Path) -> None:
    path.write_text("a text that is no database, and long enough to be read as one\n" * 40)


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (name TEXT)")
    connection.close()


def _half(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE tuning_schema (name TEXT, version TEXT)")
    connection.close()


def _damaged(path: Path) -> None:
    with Database.open(path) as db:
        for number in range(20):
            db.add(batch(number))
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_text, "no database of SQLite"),
        (_foreign, "a database of something else"),
        (_half, "does not say the version"),
        (_damaged, "damaged"),
        (Path.mkdir, "it is a folder"),
        (os.mkfifo, "it is no regular file"),
    ],
)
def test_what_is_no_database(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    path = tmp_path / "t.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(UserError, match=words) as raised:
        add_one(path)
    assert str(path) in str(raised.value)
    if before is not None:
        assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if "-" not in p.name] == ["t.sqlite"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tuning_task SET kernel = x'0123'",
        "UPDATE tuning_task SET kernel = 'text'",
        "UPDATE tuning_task SET constants = x'ff00'",
        "UPDATE tuning_task SET constants = '[1]'",
        "UPDATE tuning_origin SET machine = '3'",
        "UPDATE tuning_origin SET machine = 'x'",
        "UPDATE tuning_origin SET features = '{}'",
        "UPDATE tuning_origin SET cpu = x'ff00'",
        "UPDATE tuning_origin SET id = 7",
        "UPDATE tuning_trial SET origin_id = 'x'",
        "UPDATE tuning_trial SET threads = 'x'",
        "UPDATE tuning_trial SET threads = -1",
        "UPDATE tuning_trial SET state = 'x'",
        "UPDATE tuning_trial SET median_ns = NULL",
        "UPDATE tuning_trial SET low_ns = 'x'",
        "UPDATE tuning_trial SET high_ns = -1",
        "UPDATE tuning_trial SET summary = 5",
        "DROP TABLE tuning_trial",
        "DROP TABLE tuning_origin",
    ],
)
def test_damaged_records_are_told(tmp_path: Path, change: str) -> None:
    path = tmp_path / "t.sqlite"
    with Database.open(path) as db:
        db.add([trial(0)])
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(UserError, match=r"cannot use .*t\.sqlite: it is damaged"):
        read_all(path)


def test_an_empty_file_becomes_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "and" / "t.sqlite"
    with pytest.raises(UserError, match="no database of tuning records"):
        Database.open(path, create=False)
    assert not path.parent.exists()
    add_one(path)
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(UserError, match="no tuning records in"):
        Database.open(empty, create=False)
    add_one(empty)
    for impossible in (path / "below", tmp_path / ("x" * 300), Path("a\0b")):
        with pytest.raises(UserError, match="cannot make or read"):
            add_one(impossible)


def test_a_file_is_made_by_what_is_written_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("folder") / "t.sqlite"
    with Database.open(path) as db, Database.open(path) as other:
        assert (db.count(), list(db.trials()), db.stats().trials) == (0, [], 0)
        assert elsewhere(db.count) == 0
        (tmp_path / "text").write_text("no records")
        with pytest.raises(UserError, match="text"):
            db.load(tmp_path / "text")
        assert not path.parent.exists()
        monkeypatch.chdir("/")
        db.add([trial(0)])
        assert other.count() == db.count() == 1
        other.add([trial(1)])
        assert db.count() == 2
    with Database.open(tmp_path / path, create=False) as db:
        assert db.count() == 2


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me:secret@127.0.0.1:1/records", "server cannot be reached"),
        ("nothing://host/records", "no URL of a database that SQLAlchemy knows"),
        ("://", "no URL of a database"),
        ("postgresql://host:port/x", "no URL of a database"),
        ("oracle+cx_oracle://me:secret@host/x", "pip install cx_Oracle"),
    ],
)
def test_servers_that_cannot_be_used(url: str, words: str) -> None:
    if url.startswith("postgresql://me"):
        pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(UserError, match=words) as raised:
        Database.open(url)
    assert "secret" not in str(raised.value)


def test_a_missing_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r"pip install 'psycopg\[binary\]'"):
        Database.open("postgresql://me@host/records")
