"""The database of tuning records on a server: PostgreSQL, where it is installed."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rutc.errors import UserError
from rutc.tuner.database.database import Database
from rutc.tuner.database.stored import Added
from rutc.tuner.database.trial import Task, like
from tests.cli.conftest import invoke
from tests.tuner.test_database_faults import (
    BATCH,
    check_writers_of_the_same,
    counts,
    killed_writers,
)
from tests.tuner.trials import ORIGIN, trial

ROUNDS = 8


def programs() -> Path:
    """The folder of the server's programs."""
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    on_path = shutil.which("initdb")
    if on_path:
        found.append(Path(on_path).parent)
    for folder in found:
        if (folder / "initdb").exists():
            return folder
    pytest.skip("no server of PostgreSQL is installed (Debian's package: postgresql)")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The end of URLs of a server that only listens in a folder of its own."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    folder = programs()
    # Names of sockets are short, so this is no folder of pytest's.
    data = Path(tempfile.mkdtemp(prefix="rutc-pg-"))
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(data, user)

    def call(program: str, *arguments: str) -> None:
        subprocess.run(
            [folder / program, *arguments],
            user=user,
            cwd=data,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )

    cluster = str(data / "cluster")
    options = f"-c listen_addresses= -k {data} -p 5999 -c fsync=off"
    try:
        call("initdb", "-D", cluster, "-A", "trust", "-U", "rutc", "-E", "UTF8", "--no-sync")
        call("pg_ctl", "-D", cluster, "-o", options, "-l", f"{data}/log", "-w", "start")
        try:
            yield f"?host={data}&port=5999"
        finally:
            call("pg_ctl", "-D", cluster, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(data)


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """A new database."""
    name = request.node.name
    run(server, f'CREATE DATABASE "{name}"')
    return f"postgresql://rutc@/{name}{server}"


def run(server: str, statement: str, name: str = "postgres") -> None:
    import psycopg

    with psycopg.connect(f"postgresql://rutc@/{name}{server}", autocommit=True) as connection:
        connection.execute(statement.encode())


def test_records(url: str, tmp_path: Path) -> None:
    odd = trial(1, task=Task("zero \0 \\0 \\", ("a\0",), "ü"), status="failed", error="\0")
    many = [trial(0), odd, trial(2, 80), trial(3, 70, threads=2)]
    with Database.open(url) as db, Database.open(tmp_path / "t.sqlite") as file:
        assert db.add(many) == file.add(many) == Added(new=4)
        assert db.add([trial(0, 90, 5), trial(2, 20, 30)]) == Added(replaced=1, kept=1)
        file.add([trial(0, 90, 5)])
        assert set(db.trials()) == set(file.trials())
        assert list(db.tasks()) == list(file.tasks())
        assert db.best(trial(0).task, like(ORIGIN)) == trial(2, 80)
        exports = io.BytesIO(), io.BytesIO()
        db.export(exports[0])
        file.export(exports[1])
        assert exports[0].getvalue() == exports[1].getvalue()
        assert file.merge(url) == Added(kept=4)
        file.add([trial(9)])
        assert db.merge(tmp_path / "t.sqlite") == Added(new=1, kept=4)
        with pytest.raises(UserError, match="merged into itself"):
            db.merge(url)
        stats = db.stats()
        assert stats.bytes is not None
        assert stats.bytes > 10_000
        assert (stats.trials, dict(stats.statuses)["failed"]) == (5, 1)
    with Database.open(url, create=False) as db:
        assert db.count() == 5


def test_several_processes_write_the_same(url: str) -> None:
    check_writers_of_the_same(url)


def test_killed_writers_lose_nothing(url: str) -> None:
    told = killed_writers(url, ROUNDS)
    with Database.open(url) as db:
        found = counts(db)
        assert told <= found.keys()
        assert set(found.values()) <= {BATCH}


def test_what_the_server_refuses(url: str, server: str) -> None:
    with pytest.raises(UserError, match=r"URL's host, database, user.*nowhere"):
        Database.open(f"postgresql://rutc@/nowhere{server}")
    with pytest.raises(UserError, match="no tuning records in"):
        Database.open(url, create=False)
    Database.open(url).close()
    run(server, "CREATE ROLE reader LOGIN")
    tables = "ALL TABLES IN SCHEMA public"
    reader = url.replace("rutc@", "reader@")
    with pytest.raises(UserError, match="may not be written"):
        Database.open(reader)
    run(server, f"GRANT SELECT ON {tables} TO reader", "test_what_the_server_refuses")
    with Database.open(reader) as db:
        assert db.count() == 0
        with pytest.raises(UserError, match="may not be written"):
            db.add([trial(0)])


def test_the_command_line(url: str, tmp_path: Path) -> None:
    with Database.open(tmp_path / "t.sqlite") as file:
        file.add([trial(0)])
    merged = invoke("db", "merge", tmp_path / "t.sqlite", "--db", url, "--json")
    assert (merged.status, merged.json["new"]) == (0, 1)
    assert invoke("db", "stats", "--db", url, "--json").json["trials"] == 1
