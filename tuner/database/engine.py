"""Connections to a database of tuning records, and transactions that others may be in the way of.

A file of SQLite has many readers and one writer at a time (a write-ahead log, where its file system
allows one): writers wait for each other. What is committed is on the disk. A file that may not be
written is read as it is.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from errno import EACCES
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool, StaticPool

from rutc.base.location import VARIABLE, Location
from rutc.errors import UserError
from rutc.tuner.database import tables
from rutc.tuner.database.faults import FAULTS, Fault, collides, passes, told

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long to wait for others that write."""
PAUSE_S = 0.02
COLLISIONS = 50
"""Times that others may add the same rows first."""
REACH_S = 10
"""How long a server may take to answer."""
WRITES = "rutc_writes"
PACKAGES = {"psycopg": "'psycopg[binary]'"}
"""What installs a module where that is not its name."""


class Transactions:
    """What runs in transactions on a database."""

    def __init__(self, location: Location, *, create: bool) -> None:
        """Takes where it is, and whether to make it where there is none.

        A file is made by the first transaction that writes; until then memory stands for it.

        Raises:
            UserError: there is none, or it cannot be used.
        """
        self.where = str(location)
        self._missing: Location | None = None
        if create and location.path is not None and _is_missing(location.path, self.where):
            # Relative names stay what they are where the current folder changes.
            self._missing = Location(location.path.absolute(), "")
            location = Location(None, "")
        self._open(location, create=create)

    def _open(self, location: Location, *, create: bool) -> None:
        self._engine = _engine(location, self.where, create=create)
        self._process = os.getpid()
        try:
            self._prepare(create=create)
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        """Makes a file that is missing, or opens the one that others made meanwhile."""
        if self._missing is not None:
            self.close()
            self._open(self._missing, create=True)
            self._missing = None

    def _prepare(self, *, create: bool) -> None:
        version = self._run(lambda c: tables.version_of(c, self.where), writes=False)
        if version is None and not create:
            raise UserError(f"there are no tuning records in {self.where}: name another database")
        if version != tables.VERSION:
            try:
                self._run(lambda c: tables.prepare(c, self.where), writes=True)
            except UserError as error:
                if version is None:
                    raise
                raise UserError(
                    f"the tables of {self.where} are of version {version}, and cannot become those "
                    f"of version {tables.VERSION}: {error}. Once they are, reading them is enough"
                ) from error
        if create and self._engine.dialect.name == "sqlite":
            _keep_log(self._engine)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Returns what `work` returns, which only reads; it may run several times.

        Raises:
            UserError: the database cannot be used.
        """
        if self._missing is not None and self._missing.there:
            self._make()
        return self._run(work, writes=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Returns what `work` returns, of which all is written or nothing.

        Raises:
            UserError: the database cannot be used.
        """
        self._make()
        return self._run(work, writes=True)

    def close(self) -> None:
        """Ends all connections."""
        self._engine.dispose(close=self._process == os.getpid())

    def _run(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        if self._process != os.getpid():
            # A process that was forked has no part in its parent's connections.
            self._engine.dispose(close=False)
            self._process = os.getpid()
            if self._missing is not None:
                self._prepare(create=True)
        deadline = time.monotonic() + PATIENCE_S
        collisions = 0
        engine = self._engine.execution_options(**{WRITES: writes})
        while True:
            try:
                with engine.connect() as connection, connection.begin():
                    return work(connection)
            except FAULTS as error:
                collisions += collides(error)
                if not _is_tried_again(error, collisions, deadline):
                    raise told(error, self.where) from error
            time.sleep(PAUSE_S * random.random())


def _is_tried_again(error: Fault, collisions: int, deadline: float) -> bool:
    if collides(error):
        return collisions < COLLISIONS
    return passes(error) and time.monotonic() < deadline


def _engine(location: Location, where: str, *, create: bool) -> Engine:
    if location.url:
        return _server(location)
    if location.path is None:
        # One connection, or each would have a memory of its own.
        engine = create_engine("sqlite://", creator=_memory, poolclass=StaticPool)
    else:
        path = _checked(location.path, where, create=create)
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
        writable = writable and os.access(path.parent, os.W_OK)

        def connect() -> sqlite3.Connection:
            return _writing(path) if writable else _reading(path)

        engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer waits at the beginning: one that has read would be refused at its first row.
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _server(location: Location) -> Engine:
    try:
        url = make_url(location.url)
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        options = {"connect_timeout": REACH_S} if url.get_driver_name() == "psycopg" else {}
        return create_engine(url, pool_pre_ping=True, connect_args=options)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{location} needs the Python package {error.name}, which is not installed: run "
            f"`pip install {PACKAGES.get(error.name or '', error.name)}`"
        ) from error
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise UserError(
            f"{location} is no URL of a database that SQLAlchemy knows ({error}): give a file's "
            "name, or a URL like postgresql://USER@HOST/NAME"
        ) from error


def _checked(path: Path, where: str, *, create: bool) -> Path:
    """The path, at which there is a file, or a folder for one.

    Raises:
        UserError: there is something else, or nothing and it is not to be made.
    """
    if _is_missing(path, where):
        if not create:
            raise UserError(
                f"there is no database of tuning records at {where}: name one that there is; "
                "`rutc tune` and `rutc db import` make one"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot(where, error) from error
    # Relative names stay what they are where the current folder changes.
    return path.absolute()


def _is_missing(path: Path, where: str) -> bool:
    """Whether there is no file at a path, where one may be.

    Raises:
        UserError: there is something else, or there can be none.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        folder = next(p for p in path.absolute().parents if p.exists())
        if not os.access(folder, os.W_OK):
            raise _cannot(where, PermissionError(EACCES, os.strerror(EACCES))) from None
        return True
    except (OSError, ValueError) as error:
        raise _cannot(where, error) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise UserError(f"cannot use {where} as a database: it is {kind}; name a file")
    return False


def _cannot(where: str, error: Exception) -> UserError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UserError(
        f"cannot make or read the database {where}: {why}; name another file with --db or "
        f"{VARIABLE}"
    )


def _memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


def _writing(path: Path) -> sqlite3.Connection:
    connection = _open(path, "mode=rwc")
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_log(engine: Engine) -> None:
    """Lets a file of SQLite, now known to be rutc's, have a write-ahead log.

    Where others hold it at this moment, or the file system does not allow one, all works without.
    """
    connection = engine.raw_connection()
    try:
        with suppress(sqlite3.OperationalError):
            connection.cursor().execute("PRAGMA journal_mode=WAL").fetchall()
    finally:
        connection.close()


def _reading(path: Path) -> sqlite3.Connection:
    """A connection to a file that may not be written, nor its folder.

    Its log needs files beside it. Without any the file is all there is, and is read alone.
    """
    connection = _open(path, "mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except sqlite3.OperationalError:
        connection.close()
        log = path.resolve().with_name(path.resolve().name + "-wal")
        if log.exists() and log.stat().st_size > 0:
            raise
        return _open(path, "mode=ro&immutable=1")
    except BaseException:
        connection.close()
        raise
    return connection


def _open(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{how}",
        uri=True,
        timeout=PATIENCE_S / 2,
        isolation_level=None,
        check_same_thread=False,
    )
