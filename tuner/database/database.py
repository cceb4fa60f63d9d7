"""The database of tuning records: what schedules of kernels took on which machines.

A file of SQLite by default, any database that SQLAlchemy knows by its URL. Several processes may
write to one; what `add` has returned for is kept, whatever ends a process, and of what it has not,
nothing is. This module imports SQLAlchemy, so import it where the database is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, func, select, text

from rutc.base.location import Location, located
from rutc.base.record import record
from rutc.errors import UserError
from rutc.tuner.database import exchange
from rutc.tuner.database.engine import Transactions
from rutc.tuner.database.faults import DamagedError
from rutc.tuner.database.stored import (
    CHUNK,
    Added,
    origin_in,
    origin_values,
    put,
    same,
    task_in,
    task_values,
    trial_in,
)
from rutc.tuner.database.tables import METADATA, ORIGIN, TASK, TRIAL, VERSION
from rutc.tuner.database.trial import STATUSES, Likeness, Origin, State, Status, Task, Trial

T = TypeVar("T")


@record
class MachineCount:
    """A processor, how many trials it measured, and the day of the last of them."""

    cpu: str
    processor: str
    trials: int
    last: str


@record
class Stats:
    """What a database holds; `bytes` is None where it cannot be told."""

    where: str
    schema: int
    bytes: int | None
    tasks: int
    trials: int
    statuses: tuple[tuple[Status, int], ...]
    machines: tuple[MachineCount, ...]
    versions: tuple[tuple[str, int], ...]


class Database:
    """A database of tuning records, open until the end of its `with`."""

    def __init__(self, location: Location, *, create: bool) -> None:
        """Takes what `open` has found."""
        self.location = location
        self._transactions = Transactions(location, create=create)

    @classmethod
    def open(cls, given: str | Path | None = None, *, create: bool = True) -> Self:
        """Returns the database at a path or URL; None: that of `$RUTC_DB`, or the user's.

        With `create` it is made where there is none, and its folder, by the first trials that are
        added. An older one is made today's.

        Raises:
            UserError: it cannot be opened, is of a newer rutc, or is something else.
        """
        return cls(located(given), create=create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its connections."""
        self._transactions.close()

    def add(self, trials: Iterable[Trial], *, replace: bool = False) -> Added:
        """Adds trials, all of them or none; once it returns they are kept.

        Of trials of one task, origin, schedule, state and number of threads one is kept:
        that whose median has the narrowest interval, or the last one with `replace`.

        Raises:
            UserError: they cannot be written.
        """
        given = list(trials)
        return self._add(lambda: iter(given), replace=replace)

    def trials(
        self,
        task: Task | None = None,
        origin: Origin | None = None,
        *,
        status: Status | None = None,
        state: State | None = None,
        threads: int | None = None,
    ) -> Iterator[Trial]:
        """Yields the trials that have all of what is given, those first that were added first.

        It reads some at a time: what others add meanwhile may be among them.

        Raises:
            UserError: the database cannot be read.
        """
        wanted = {"status": status, "state": state, "threads": threads}
        where = [TRIAL.c[name] == value for name, value in wanted.items() if value is not None]
        for table, column, item in (
            (TASK, TRIAL.c.task_id, task),
            (ORIGIN, TRIAL.c.origin_id, origin),
        ):
            if item is None:
                continue
            number = self._id(table, item)
            if number is None:
                return iter(())
            where.append(column == number)
        return self._pages(where)

    def best(
        self,
        task: Task,
        like: Likeness,
        *,
        threads: int = 1,
        state: State = "near",
    ) -> Trial | None:
        """Returns the fastest trial of an equal task on the machines nearest to one; None: none.

        `like` tells how near they are: `trial.like(origin)`.

        Raises:
            UserError: the database cannot be read.
        """

        def work(connection: Connection) -> Trial | None:
            number = same(connection, TASK, task_values(task))
            if number is None:
                return None
            of_task = (
                TRIAL.c.task_id == number,
                TRIAL.c.threads == threads,
                TRIAL.c.state == state,
                TRIAL.c.status == "measured",
            )
            least = func.min(TRIAL.c.median_ns).label("least")
            query = select(TRIAL.c.origin_id, least).where(*of_task).group_by(TRIAL.c.origin_id)
            fastest = {row.origin_id: row.least for row in connection.execute(query)}
            origins = _origins(connection, fastest)
            distances = {n: d for n, o in origins.items() if (d := like(o)) is not None}
            if not distances:
                return None
            near = [n for n, d in distances.items() if d == min(distances.values())]
            first = (
                select(TRIAL)
                .where(*of_task, TRIAL.c.origin_id.in_(near))
                .order_by(TRIAL.c.median_ns, TRIAL.c.digest, TRIAL.c.id)
                .limit(1)
            )
            row = connection.execute(first).one()
            return trial_in(row, task, origins[row.origin_id])

        return self._transactions.read(work)

    def tasks(self) -> Iterator[Task]:
        """Yields what was tuned, in the order of the keys.

        Raises:
            UserError: the database cannot be read.
        """
        for number in self._task_numbers():
            yield self._transactions.read(lambda c, n=number: _tasks(c, [n])[n])  # type: ignore[misc]

    def count(self) -> int:
        """Returns the number of trials.

        Raises:
            UserError: the database cannot be read.
        """
        return self._transactions.read(lambda connection: _count(connection, TRIAL))

    def stats(self) -> Stats:
        """Returns what it holds.

        Raises:
            UserError: the database cannot be read.
        """

        def work(connection: Connection) -> Stats:
            number = func.count().label("number")
            by_status = select(TRIAL.c.status, number).group_by(TRIAL.c.status)
            counts = {row.status: row.number for row in connection.execute(by_status)}
            joined = ORIGIN.join(TRIAL, TRIAL.c.origin_id == ORIGIN.c.id)
            cpu = (ORIGIN.c.cpu, ORIGIN.c.processor)
            last = func.max(ORIGIN.c.date).label("last")
            by_cpu = select(*cpu, number, last).select_from(joined).group_by(*cpu)
            by_version = (
                select(ORIGIN.c.version, number).select_from(joined).group_by(ORIGIN.c.version)
            )
            machines = [
                MachineCount(row.cpu, row.processor, row.number, row.last)
                for row in connection.execute(by_cpu)
            ]
            versions = [(row.version, row.number) for row in connection.execute(by_version)]
            return Stats(
                str(self.location),
                VERSION,
                self._bytes(connection),
                _count(connection, TASK),
                sum(counts.values()),
                tuple((status, counts.get(status, 0)) for status in STATUSES),
                tuple(sorted(machines, key=lambda m: (m.cpu, m.processor))),
                tuple(sorted(versions)),
            )

        return self._transactions.read(work)

    def export(self, file: BinaryIO) -> int:
        """Writes all of it into a file, as `exchange` has it; returns the number of trials.

        The bytes depend on what is stored only, not on the order in which it came.

        Raises:
            UserError: the database cannot be read.
            OSError: the file cannot be written.
        """
        return exchange.write(file, self._grouped())

    def load(self, path: Path, *, replace: bool = False) -> Added:
        """Adds the trials of a file that `export` wrote, all of them or none.

        Raises:
            UserError: the file cannot be read or is no such file, or the database not be written.
        """
        return self._add(lambda: exchange.read(path), replace=replace)

    def merge(self, other: str | Path, *, replace: bool = False) -> Added:
        """Adds the trials of another database, all of them or none.

        Raises:
            UserError: one of the databases cannot be used, or the other one is this one.
        """
        location = located(other)
        if _is_same(location, self.location):
            raise UserError(f"{location} cannot be merged into itself: name another database")
        with type(self)(location, create=False) as source:
            return self._add(source.trials, replace=replace)

    def _add(self, source: exchange.Source, *, replace: bool) -> Added:
        # What cannot be read at all makes no database.
        next(iter(source()), None)

        def work(connection: Connection) -> Added:
            added, rest = Added(), source()
            while chunk := list(islice(rest, CHUNK)):
                added += put(connection, chunk, replace=replace)
            return added

        return self._transactions.write(work)

    def _id(self, table: Table, item: Task | Origin) -> int | None:
        """The number of a task or origin; None if it is not there."""
        values = task_values(item) if isinstance(item, Task) else origin_values(item)
        return self._transactions.read(lambda connection: same(connection, table, values))

    def _pages(self, where: Sequence[ColumnElement[bool]]) -> Iterator[Trial]:
        """The trials under some conditions; each page of them is read by itself."""
        last = 0
        while True:
            query = select(TRIAL).where(and_(TRIAL.c.id > last, *where)).order_by(TRIAL.c.id)
            page = self._transactions.read(lambda c, q=query: _page(c, q.limit(CHUNK)))  # type: ignore[misc]
            if not page:
                return
            for number, trial in page:
                last = number
                yield trial

    def _task_numbers(self) -> list[int]:
        query = select(TASK.c.id).order_by(TASK.c.digest, TASK.c.place)
        return self._transactions.read(lambda c: list(c.execute(query).scalars()))

    def _grouped(self) -> Iterator[list[Trial]]:
        """All trials, those of a task together, in an order that only depends on them."""
        for number in self._task_numbers():
            found = list(self._pages([TRIAL.c.task_id == number]))
            yield sorted(found, key=lambda trial: trial.key)

    def _bytes(self, connection: Connection) -> int | None:
        path = self.location.path
        if path is not None:
            beside = [path, path.with_name(path.name + "-wal")]
            return sum(p.stat().st_size for p in beside if p.exists())
        if connection.dialect.name != "postgresql":
            return None
        sizes = [
            connection.execute(text("SELECT pg_total_relation_size(:name)"), {"name": name})
            for name in METADATA.tables
        ]
        return sum(int(size.scalar_one()) for size in sizes)


def _is_same(one: Location, other: Location) -> bool:
    if one.path is None or other.path is None:
        return one == other and one.url != ""
    return one.path.resolve() == other.path.resolve()


def _count(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def _origins(connection: Connection, numbers: Iterable[int]) -> dict[int, Origin]:
    return _by_number(connection, ORIGIN, set(numbers), origin_in)


def _tasks(connection: Connection, numbers: Iterable[int]) -> dict[int, Task]:
    return _by_number(connection, TASK, set(numbers), task_in)


def _by_number(
    connection: Connection,
    table: Table,
    numbers: set[int],
    of: Callable[[Row[tuple[object, ...]]], T],
) -> dict[int, T]:
    """What trials refer to by number: of all of them, there is a row."""
    query = select(table).where(table.c.id.in_(numbers))
    found = {row.id: of(row) for row in connection.execute(query)}
    if len(found) < len(numbers):
        raise DamagedError("a trial is of what is not there")
    return found


def _page(connection: Connection, query: Select[tuple[object, ...]]) -> list[tuple[int, Trial]]:
    """Some trials, each with the number of its row."""
    rows = list(connection.execute(query))
    tasks = _tasks(connection, (row.task_id for row in rows))
    origins = _origins(connection, (row.origin_id for row in rows))
    return [(row.id, trial_in(row, tasks[row.task_id], origins[row.origin_id])) for row in rows]
