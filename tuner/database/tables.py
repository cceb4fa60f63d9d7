"""The tables of the database of tuning records, and how older ones become today's.

    tuning_schema   the version of these tables
    tuning_origin   where and when something was measured
    tuning_task     what is tuned
    tuning_trial    what a schedule of a task took at an origin

Rows of the last three are found by `digest`. Equal digests of unequal rows differ in `place`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from sqlalchemy import (
    Column,
    ColumnClause,
    Connection,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    column,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

from rutc.errors import UserError
from rutc.tuner.database.faults import DamagedError
from rutc.tuner.database.older import digest_before, with_default, with_packs
from rutc.tuner.database.trial import digest

VERSION = 2
"""The version of the tables that this rutc reads and writes."""
LOCK = int.from_bytes(b"rutc", "big")
"""The number of the lock on a server under which tables are made."""

Migration = Callable[[Connection], None]


class Escaped(TypeDecorator[str]):
    r"""A text without zeros, which PostgreSQL cannot store: `\0` and `\\` stand for them."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns what is stored."""
        return None if value is None else value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Returns what was given. Raises DamagedError for what is no text."""
        if not isinstance(value, str | None):
            raise DamagedError("a text is none")
        if value is None or "\\" not in value:
            return value
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))


class Compressed(TypeDecorator[str]):
    """A long text, compressed."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        """Returns what is stored."""
        return None if value is None else zlib.compress(value.encode())

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        """Returns what was given. Raises DamagedError for what is no compressed text."""
        try:
            return None if value is None else zlib.decompress(value).decode()
        except (TypeError, ValueError) as error:
            raise DamagedError("a compressed text is none") from error


METADATA = MetaData()
DIGEST = String(64)
WORD = String(16)


def _found_by_digest() -> tuple[SchemaItem, ...]:
    """The columns by which a row is told from others."""
    return (
        Column("id", Integer, primary_key=True),
        Column("digest", DIGEST, nullable=False),
        Column("place", Integer, nullable=False),
        UniqueConstraint("digest", "place"),
    )


SCHEMA = Table(
    "tuning_schema",
    METADATA,
    Column("name", WORD, primary_key=True),
    Column("version", Integer, nullable=False),
)
ORIGIN = Table(
    "tuning_origin",
    METADATA,
    *_found_by_digest(),
    Column("cpu", Escaped, nullable=False),
    Column("processor", Escaped, nullable=False),
    Column("features", Escaped, nullable=False),
    Column("machine", Escaped, nullable=False),
    Column("version", Escaped, nullable=False),
    Column("date", Escaped, nullable=False),
)
TASK = Table(
    "tuning_task",
    METADATA,
    *_found_by_digest(),
    Column("kernel", Compressed, nullable=False),
    Column("constants", Escaped, nullable=False),
    Column("target", Escaped, nullable=False),
)
TRIAL = Table(
    "tuning_trial",
    METADATA,
    *_found_by_digest(),
    Column("task_id", ForeignKey(TASK.c.id), nullable=False),
    Column("origin_id", ForeignKey(ORIGIN.c.id), nullable=False),
    Column("schedule", Escaped, nullable=False),
    Column("template", Escaped, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("state", WORD, nullable=False),
    Column("status", WORD, nullable=False),
    Column("median_ns", Double),
    Column("low_ns", Double),
    Column("high_ns", Double),
    Column("reference_ns", Double),
    Column("error", Escaped, nullable=False),
    Column("summary", Compressed, nullable=False),
    Index("tuning_trial_best", "task_id", "threads", "state", "median_ns"),
    Index("tuning_trial_origin", "origin_id"),
)


def _packing_in_steps(connection: Connection) -> None:
    """Schedules say how constants are packed; before, trials had a column for it."""
    keys = {
        t: {row.id: row.digest for row in connection.execute(select(t.c.id, t.c.digest))}
        for t in (TASK, ORIGIN)
    }
    packing: ColumnClause[str] = column("packing", Escaped)
    names = ("id", "task_id", "origin_id", "schedule", "threads", "state", "summary")
    old = select(*(TRIAL.c[name] for name in names), packing).select_from(TRIAL)
    changed: list[dict[str, object]] = []
    digests: dict[str, str] = {}
    for row in connection.execute(old):
        beside = json.loads(row.packing)
        schedule = with_packs(row.schedule, beside)
        digests[digest_before(row.schedule, beside)] = digest(schedule)
        told = (keys[TASK][row.task_id], keys[ORIGIN][row.origin_id], schedule)
        key = digest(*told, str(row.threads), row.state)
        changed.append({"row": row.id, "digest": key, "schedule": schedule, "summary": row.summary})
    if changed:
        for values in changed:
            values["summary"] = with_default(str(values["summary"]), digests)
        connection.execute(update(TRIAL).where(TRIAL.c.id == bindparam("row")), changed)
    connection.execute(text("ALTER TABLE tuning_trial DROP COLUMN packing"))


MIGRATIONS: Mapping[int, Migration] = MappingProxyType({1: _packing_in_steps})
"""Version -> what makes tables of the next one of them, in the transaction that it is given."""


def version_of(connection: Connection, where: str) -> int | None:
    """Returns the version of the tables; None if there are none.

    Raises:
        UserError: they are of a newer rutc, or what is there is no such database.
    """
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    version = connection.execute(select(SCHEMA.c.version)).scalar()
    if not isinstance(version, int) or version < 1:
        raise UserError(
            f"{where} does not say the version of its tables: it is no database that rutc made; "
            "name another one"
        )
    if version > VERSION:
        raise UserError(
            f"{where} was made by a newer rutc: its tables have version {version}, and this rutc "
            f"knows those up to {VERSION}. Update rutc, or use another database"
        )
    if version == VERSION:
        for table in METADATA.tables:
            if not inspect(connection).has_table(table):
                raise DamagedError(f"it lacks the table {table}")
    return version


def prepare(connection: Connection, where: str) -> None:
    """Makes the tables where there are none, and today's of older ones.

    Raises:
        UserError: there is a newer database, or one of something else.
    """
    if connection.dialect.name == "postgresql":
        # Who comes second waits here, and then finds the tables.
        connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
    version = version_of(connection, where)
    if version is None:
        if connection.dialect.name == "sqlite" and inspect(connection).get_table_names():
            raise UserError(f"{where} is a database of something else than rutc: name another file")
        METADATA.create_all(connection)
        connection.execute(insert(SCHEMA).values(name="tables", version=VERSION))
        return
    for old in range(version, VERSION):
        MIGRATIONS[old](connection)
        connection.execute(update(SCHEMA).values(version=old + 1))
