"""Records as rows of the tables, and back; rows are equal if all of them is, not only a digest."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, Row, Table, bindparam, insert, or_, select, update

from rutc.base.record import record
from rutc.tuner.database.faults import DamagedError
from rutc.tuner.database.plain_records import WrongError, origin_of, task_of, trial_of
from rutc.tuner.database.tables import ORIGIN, TASK, TRIAL
from rutc.tuner.database.trial import Origin, Task, Trial, plain_json

T = TypeVar("T", Origin, Task)
Values = dict[str, object]

CHUNK = 500
"""Rows that one statement names: databases limit its parameters."""


@record
class Added:
    """How many trials were new, took the place of an older one, or left that where it was."""

    new: int = 0
    replaced: int = 0
    kept: int = 0

    def __add__(self, other: Added) -> Added:
        """Returns the sums."""
        return Added(self.new + other.new, self.replaced + other.replaced, self.kept + other.kept)


def origin_values(origin: Origin) -> Values:
    """The columns of an origin, but for its id and place."""
    return {
        "digest": origin.key,
        "cpu": origin.cpu,
        "processor": origin.processor,
        "features": plain_json(origin.features),
        "machine": plain_json(origin.machine),
        "version": origin.version,
        "date": origin.date,
    }


def origin_in(row: Row[tuple[object, ...]]) -> Origin:
    """The origin of a row. Raises DamagedError where it is none."""
    with _read("origin"):
        listed = {name: json.loads(getattr(row, name)) for name in ("features", "machine")}
        return origin_of({**_said(row, ORIGIN), **listed})


def task_values(task: Task) -> Values:
    """The columns of a task, but for its id and place."""
    return {
        "digest": task.key,
        "kernel": task.kernel,
        "constants": plain_json(task.constants),
        "target": task.target,
    }


def task_in(row: Row[tuple[object, ...]]) -> Task:
    """The task of a row. Raises DamagedError where it is none."""
    with _read("task"):
        return task_of({**_said(row, TASK), "constants": json.loads(row.constants)})


def trial_in(row: Row[tuple[object, ...]], task: Task, origin: Origin) -> Trial:
    """The trial of a row, of what it refers to. Raises DamagedError where it is none."""
    with _read("trial"):
        return trial_of(_said(row, TRIAL), task, origin)


def _said(row: Row[tuple[object, ...]], table: Table) -> Values:
    return {c.name: getattr(row, c.name) for c in table.c}


@contextmanager
def _read(what: str) -> Iterator[None]:
    try:
        yield
    except WrongError as error:
        raise DamagedError(f"of the {what} {error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"a row is no {what}") from error


TOLD_APART = ("task_id", "origin_id", "schedule", "threads", "state")


def _trial_values(trial: Trial, task_id: int, origin_id: int) -> Values:
    return {
        "digest": trial.key,
        "task_id": task_id,
        "origin_id": origin_id,
        "schedule": trial.schedule,
        "threads": trial.threads,
        "state": trial.state,
        **_measured_values(trial),
    }


def _measured_values(trial: Trial) -> Values:
    names = ("template", "status", "median_ns", "low_ns", "high_ns", "reference_ns")
    return {name: getattr(trial, name) for name in (*names, "error", "summary")}


def same(connection: Connection, table: Table, values: Values) -> int | None:
    """The id of the row that has these values; None if there is none."""
    for row in connection.execute(select(table).where(table.c.digest == values["digest"])):
        if _agrees(row, values, values.keys()):
            found = row.id
            assert isinstance(found, int)
            return found
    return None


def put(connection: Connection, trials: Sequence[Trial], *, replace: bool) -> Added:
    """Adds trials to the tables, in the transaction of the connection.

    Of trials that are the same but for what was found, one is kept: the last if `replace`, else
    the one whose median has the narrowest interval.
    """
    tasks = _ids(connection, TASK, [t.task for t in trials], task_values)
    origins = _ids(connection, ORIGIN, [t.origin for t in trials], origin_values)
    kept = 0
    chosen: dict[tuple[object, ...], tuple[Trial, Values]] = {}
    for trial in trials:
        values = _trial_values(trial, tasks[trial.task], origins[trial.origin])
        name = tuple(values[column] for column in TOLD_APART)
        if name in chosen:
            kept += 1
        if name not in chosen or replace or _is_better(trial, chosen[name][0].interval_ns):
            chosen[name] = trial, values
    # All writers go through the rows in one order, so that none waits for another in a circle.
    ordered = sorted(chosen.values(), key=lambda pair: str(pair[1]["digest"]))
    added = Added(kept=kept)
    for first in range(0, len(ordered), CHUNK):
        added += _put(connection, ordered[first : first + CHUNK], replace=replace)
    return added


def _put(connection: Connection, pairs: Sequence[tuple[Trial, Values]], *, replace: bool) -> Added:
    columns = [TRIAL.c[name] for name in ("id", "digest", *TOLD_APART, "status", "low_ns")]
    rows = _rows(connection, TRIAL, [*columns, TRIAL.c.high_ns], [v for _, v in pairs])
    new: list[Values] = []
    better: list[Values] = []
    for trial, values in pairs:
        beside = rows[str(values["digest"])]
        found = next((row for row in beside if _agrees(row, values, TOLD_APART)), None)
        if found is None:
            before = sum(other["digest"] == values["digest"] for other in new)
            new.append({**values, "place": len(beside) + before})
            continue
        width = _width(found)
        if replace or _is_better(trial, width):
            more = {"row": found.id, "width": trial.interval_ns}
            better.append({**_measured_values(trial), **more})
    if new:
        connection.execute(insert(TRIAL), new)
    replaced = sum(_replace(connection, values, always=replace) for values in better)
    return Added(len(new), replaced, len(pairs) - len(new) - replaced)


def _width(row: Row[tuple[object, ...]]) -> float:
    """How wide the interval of the median of a trial's row is; without one it is endless."""
    if row.status != "measured":
        return float("inf")
    with _read("trial"):
        return float(row.high_ns - row.low_ns)


def _is_better(trial: Trial, width: float) -> bool:
    return trial.interval_ns < width


def _replace(connection: Connection, values: Values, *, always: bool) -> int:
    """Writes what was found into a row, if that is narrower still; returns how many rows changed.

    Another transaction may have written there since the row was read.
    """
    row, width = values.pop("row"), values.pop("width")
    change = update(TRIAL).where(TRIAL.c.id == row).values(values)
    if not always:
        wider = TRIAL.c.high_ns - TRIAL.c.low_ns > bindparam("width", width)
        change = change.where(or_(TRIAL.c.status != "measured", wider))
    return connection.execute(change).rowcount


def _ids(
    connection: Connection, table: Table, items: Iterable[T], values_of: Callable[[T], Values]
) -> dict[T, int]:
    """The ids of the rows of items, which are inserted where they are missing."""
    wanted = {item: values_of(item) for item in items}
    ordered = sorted(wanted.values(), key=lambda values: str(values["digest"]))
    ids: dict[T, int] = {}
    missing: list[Values] = []
    for again in (False, True):
        rows = _rows(connection, table, list(table.c), ordered)
        missing = []
        for item, values in wanted.items():
            beside = rows[str(values["digest"])]
            found = next((row for row in beside if _agrees(row, values, values)), None)
            if found is not None:
                ids[item] = found.id
            else:
                before = sum(other["digest"] == values["digest"] for other in missing)
                missing.append({**values, "place": len(beside) + before})
        if not missing or again:
            break
        missing.sort(key=lambda values: str(values["digest"]))
        connection.execute(insert(table), missing)
    assert len(ids) == len(wanted)
    return ids


def _rows(
    connection: Connection, table: Table, columns: Sequence[object], values: Sequence[Values]
) -> dict[str, list[Row[tuple[object, ...]]]]:
    """The rows that have the digests of some values."""
    found: dict[str, list[Row[tuple[object, ...]]]] = defaultdict(list)
    for digests in _chunks([str(v["digest"]) for v in values]):
        query = select(*columns).where(table.c.digest.in_(digests))  # type: ignore[call-overload]
        for row in connection.execute(query):
            found[row.digest].append(row)
    return found


def _chunks(items: Sequence[str]) -> Iterator[Sequence[str]]:
    distinct = list(dict.fromkeys(items))
    for first in range(0, len(distinct), CHUNK):
        yield distinct[first : first + CHUNK]


def _agrees(row: Row[tuple[object, ...]], values: Values, names: Iterable[str]) -> bool:
    """Whether a row has these values of the columns of some names."""
    return all(getattr(row, name) == values[name] for name in names)
